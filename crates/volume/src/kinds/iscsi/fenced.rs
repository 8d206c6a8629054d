//! The fence of a mirror's owner on a remote copy: its steps as commands, and what becomes of a session that logs in after
//! the fence was made.
//!
//! All sessions of the disk register the fence's key with APTPL, so that the target remembers it. A session that logs in
//! later registers too, if the reservation is still this fence's; it is used only if no newer key was registered by then,
//! because a newer owner registers first and looks for older keys last. A fence that the target has lost is never made
//! again under its key: the copy has failed, and is fenced anew. So has one whose target has restarted, as the disk may be an
//! older copy of itself since, with the reservation that was there then; if it is the only copy, its owner says that it goes
//! on by reading the reservation.

use std::rc::Rc;

use ::mirror::{
    fence::{FenceAnswer, FenceCommand},
    key::FenceKey,
};

use super::{
    cdb::{self, ReserveOut},
    claim::{ClaimAnswer, EXCLUSIVE_REGISTRANTS, ReportedReservation, be},
    machine::OwnershipEvent,
    nexus::Nexus,
    session::Data,
    unit::RemoteUnit,
};
use crate::{
    Error, ErrorKind, Result,
    planted::{Bug, is_planted},
};

/// The longest list of keys that is read, in bytes: its length has 16 bits.
const KEYS_LEN: u16 = 8 + 8 * 1000;
/// What a target of copies has.
const LASTING: &str =
    "persistent reservations that outlive a power cut (APTPL), with PREEMPT AND ABORT";
/// How many times a new session tries to get in while the reservation changes.
const ROUNDS_MAX: usize = 4;

impl RemoteUnit {
    /// Carries out `step` of the fence under `key`.
    pub(super) async fn fence_step(
        &self,
        key: FenceKey,
        step: FenceCommand,
    ) -> Result<FenceAnswer> {
        let nexus = self.nexus(&mut self.patience()).await?;
        match step {
            FenceCommand::ReadKeys => Ok(FenceAnswer::Keys(self.keys(&nexus).await?)),
            FenceCommand::Register => self.register_all(&nexus, key).await,
            FenceCommand::ReadReservation => {
                let holder = self.holding_key(&nexus).await?;
                if holder == Some(key.raw()) {
                    self.tell_ownership(OwnershipEvent::Fenced(key));
                }
                Ok(FenceAnswer::Reservation(holder))
            }
            FenceCommand::Reserve => {
                let reserve = ReserveOut::reserve(EXCLUSIVE_REGISTRANTS, key.raw());
                self.reserve_step(&nexus, reserve).await
            }
            FenceCommand::Preempt(older) => {
                let (key, older) = (key.raw(), older.raw());
                let aborts = !is_planted(Bug::FenceEndsNothing);
                let preempt = ReserveOut::preempt(EXCLUSIVE_REGISTRANTS, key, older, aborts);
                self.reserve_step(&nexus, preempt).await
            }
            FenceCommand::Reset if is_planted(Bug::FenceEndsNothing) => Ok(FenceAnswer::Good),
            FenceCommand::Reset => match self.reset_for_fence(&nexus).await? {
                true => Ok(FenceAnswer::Good),
                false => Err(lacks("LOGICAL UNIT RESET", "it was refused")),
            },
        }
    }

    /// Refuses a disk that says itself that it cannot be fenced (REPORT CAPABILITIES, SPC-4 6.15.4). One that does not say is
    /// found out when it is.
    pub(super) async fn suits(&self) -> Result<()> {
        const LEN: u16 = 8;
        const PTPL_C: u8 = 0x01;
        const TYPES_ARE_VALID: u8 = 0x80;
        const EXCLUSIVE_REGISTRANTS_TYPE: u8 = 0x40;
        let nexus = self.nexus(&mut self.patience()).await?;
        let ask = cdb::persistent_reserve_in(cdb::REPORT_CAPABILITIES, LEN);
        let answer = self.tell(&nexus, &ask, Data::In(LEN.into())).await?;
        let ClaimAnswer::Good(told) = answer else {
            return Ok(());
        };
        let [_, _, can, says, types, ..] = told[..] else {
            return Ok(());
        };
        if can & PTPL_C == 0 {
            return Err(lacks(LASTING, "it says that it has no APTPL"));
        }
        if says & TYPES_ARE_VALID != 0 && types & EXCLUSIVE_REGISTRANTS_TYPE == 0 {
            let why = "it says that it has no such reservation";
            return Err(lacks("Exclusive Access, Registrants Only", why));
        }
        Ok(())
    }

    /// Registers `key` for every session.
    async fn register_all(&self, nexus: &Rc<Nexus>, key: FenceKey) -> Result<FenceAnswer> {
        // Sessions that log in before the fence is made are taken in after it.
        self.tell_ownership(OwnershipEvent::FenceBegins);
        let answer = self.register_fence(nexus, key).await?;
        let others: Vec<_> = self.paths.usable().collect();
        for other in others.iter().filter(|other| !Rc::ptr_eq(other, nexus)) {
            match self.register_fence(other, key).await {
                Ok(FenceAnswer::Good) => {}
                Ok(_) => other.end(not_taken_in()),
                Err(error) => other.end(error),
            }
        }
        Ok(answer)
    }

    async fn register_fence(&self, nexus: &Rc<Nexus>, key: FenceKey) -> Result<FenceAnswer> {
        let register = ReserveOut::register_and_ignore(key.raw(), true);
        self.reserve_step(nexus, register).await
    }

    fn is_protected(&self) -> bool {
        let facts = self.facts.get();
        facts.is_some_and(|facts| facts.shape.read_only.is_on())
    }

    async fn reserve_step(&self, nexus: &Rc<Nexus>, out: ReserveOut) -> Result<FenceAnswer> {
        match self.reserve_out(nexus, out).await? {
            ClaimAnswer::Good(_) => Ok(FenceAnswer::Good),
            ClaimAnswer::Conflict => Ok(FenceAnswer::Conflict),
            ClaimAnswer::Refused(_) if self.is_protected() => {
                let message =
                    "it is write-protected at its target, and a copy of a mirror is written";
                Err(Error::new(ErrorKind::ReadOnly, message))
            }
            ClaimAnswer::Refused(why) => Err(lacks(LASTING, &why)),
        }
    }

    /// The registered keys, one for each session that has one.
    async fn keys(&self, nexus: &Rc<Nexus>) -> Result<Vec<u64>> {
        let read = cdb::persistent_reserve_in(cdb::READ_KEYS, KEYS_LEN);
        match self.tell(nexus, &read, Data::In(KEYS_LEN.into())).await? {
            ClaimAnswer::Good(data) => {
                let len = data.get(4..8).map_or(0, be) as usize;
                let keys = data.get(8..).unwrap_or_default();
                if keys.len() < len {
                    let message = format!("it has {} registered keys, too many to fence", len / 8);
                    return Err(Error::new(ErrorKind::Configuration, message));
                }
                Ok(keys[..len].chunks_exact(8).map(be).collect())
            }
            ClaimAnswer::Conflict => Err(not_taken_in()),
            ClaimAnswer::Refused(why) => Err(lacks("persistent reservations", &why)),
        }
    }

    async fn holding_key(&self, nexus: &Rc<Nexus>) -> Result<Option<u64>> {
        match self.reservation(nexus).await? {
            ReportedReservation::Unknown => Err(lacks("persistent reservations", "it has none")),
            ReportedReservation::Free => Ok(None),
            ReportedReservation::Held { key, kind } if kind == EXCLUSIVE_REGISTRANTS => {
                Ok(Some(key))
            }
            ReportedReservation::Held { key, kind } => {
                let message = format!(
                    "it is reserved by something else than a mirror (key {key:016x}h, type {kind}): end that reservation"
                );
                Err(Error::new(ErrorKind::Configuration, message))
            }
        }
    }

    /// Takes `nexus`, which has just logged in or was refused, into the fence under `key`. If that is lost, sessions may log in
    /// all the same, to make another one; nothing else is sent over them.
    pub(super) async fn take_in(&self, nexus: &Rc<Nexus>, key: FenceKey) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let holder = self.holding_key(nexus).await?;
            let is_newer = |raw: u64| FenceKey::from_raw(raw).is_some_and(|other| other > key);
            match holder {
                Some(holder) if holder == key.raw() => {}
                Some(holder) if is_newer(holder) => {
                    self.tell_ownership(OwnershipEvent::FenceSuperseded);
                    return Ok(());
                }
                None if is_planted(Bug::FencedAgain) => {
                    self.register_fence(nexus, key).await?;
                    let reserve = ReserveOut::reserve(EXCLUSIVE_REGISTRANTS, key.raw());
                    self.reserve_step(nexus, reserve).await?;
                }
                _ => {
                    self.tell_ownership(OwnershipEvent::FenceGone);
                    return Ok(());
                }
            }
            let registered = self.register_fence(nexus, key).await?;
            // A newer owner was there before our registration, or sees it.
            if self.keys(nexus).await?.into_iter().any(is_newer) {
                self.unregister_key(nexus, key.raw()).await;
                self.tell_ownership(OwnershipEvent::FenceSuperseded);
                return Ok(());
            }
            let proof = self.tell(nexus, &cdb::read(0, 0), Data::None).await?;
            if registered == FenceAnswer::Good && matches!(proof, ClaimAnswer::Good(_)) {
                return Ok(());
            }
        }
        Err(not_taken_in())
    }

    /// Waits for a session over which the disk can be asked something.
    pub(super) async fn reach(&self) -> Result<()> {
        self.nexus(&mut self.patience()).await.map(drop)
    }
}

fn not_taken_in() -> Error {
    let why = "the target does not let this session into the fence, although its key is registered";
    Error::new(ErrorKind::Unreachable, why)
}

fn lacks(what: &str, why: &str) -> Error {
    let message = format!("a copy of a mirror needs {what}, which its target has not: {why}");
    Error::new(ErrorKind::Configuration, message)
}
