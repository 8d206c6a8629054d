//! The claim on a remote disk: a mark on the disk that says who owns it, and a fence at the target that keeps
//! everyone else out. Both live with the disk, so every path to it and every daemon sees them.
//!
//! The fence is a persistent reservation, Exclusive Access - Registrants Only (SPC-4 5.13), under a key derived from
//! this claim. RESERVE arbitrates between two initiators that arrive at once. Any registrant may read, so an
//! initiator that finds a reservation registers, reads the mark, and backs off if the owner may be alive. A
//! reservation is attributed to a dead owner only if its key matches the mark; any other key belongs to an initiator
//! that is taking the disk right now.
//!
//! A new nexus says nothing about what happened while we were away, so the claim is re-established on it before any
//! other command; this also registers the nexus beside our existing ones. The same happens after a RESERVATION
//! CONFLICT, a reset and a preemption. If the disk has a new owner by then, the claim is lost for good. A watch reads
//! the mark every second, even without I/O.
//!
//! A target without persistent reservations has only the mark. Two initiators that start at once are then told apart
//! by reading the mark again a second later, and an owner that is taken over can still write until it notices, within
//! about a second.

use std::rc::{Rc, Weak};

use engine::{Buf, Duration, LaneFuture, spawn, time};

use super::{
    cdb::{self, CdbBytes, ReserveOut},
    machine::{Event, OwnershipEvent, Subject},
    nexus::Nexus,
    path::Path,
    patience::AT_ONCE_MAX,
    sense::Verdict,
    session::{Data, RESERVATION_CONFLICT},
    unit::RemoteUnit,
};
use crate::{
    Claim, Error, ErrorKind, Result,
    claim::{
        LABEL_BYTES, LabelStanding, Others, refuse_alive, refuse_data, refuse_ours, refuse_running,
        refuse_unfenced, tell_replaced,
    },
};

/// Exclusive Access - Registrants Only (SPC-4 6.15.3.4).
pub(super) const EXCLUSIVE_REGISTRANTS: u8 = 6;
/// How many times to start over because another initiator changed the reservation or the mark meanwhile.
const ROUNDS_MAX: usize = 8;
/// Pause between two attempts on a disk that another initiator is claiming.
const ROUND_PAUSE: Duration = Duration::from_millis(50);
/// Interval between two reads of the mark while the claim is held.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before a command is resent to a busy target.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// How long an unfenced mark has to stand before it counts.
const SETTLE: Duration = Duration::from_secs(1);

/// The outcome of a command sent on behalf of the claim.
pub(super) enum ClaimAnswer {
    Good(Vec<u8>),
    Conflict,
    /// The target does not support the command; holds the target's explanation.
    Refused(String),
}

/// What PERSISTENT RESERVE IN / READ RESERVATION reports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportedReservation {
    /// The target has no persistent reservations.
    Unknown,
    Free,
    Held {
        key: u64,
        kind: u8,
    },
}

/// The outcome of an attempt to reserve.
enum Attempt {
    /// The reservation is ours.
    Reserved,
    /// Another initiator was faster: start over.
    Again,
    /// The target does not support this kind of reservation.
    MarkOnly,
}

impl RemoteUnit {
    /// Claims the disk and starts watching the claim.
    pub(super) async fn claim(self: &Rc<RemoteUnit>, claim: &Claim) -> Result<()> {
        self.tell_ownership(OwnershipEvent::ClaimBegins);
        let claimed = self.claim_all(claim).await;
        self.tell_ownership(OwnershipEvent::ClaimEnds);
        claimed
    }

    async fn claim_all(self: &Rc<RemoteUnit>, claim: &Claim) -> Result<()> {
        // Ensures a working session, with the unit attentions from before our time consumed.
        self.run(&cdb::test_unit_ready(), Data::None, &mut self.patience())
            .await?;
        let nexus = self.nexus(&mut self.patience()).await?;
        // A reservation of our own from before a restart stands where it is: it gets another key there.
        let holding = self.holding_path(&nexus).await;
        let nexus = holding.and_then(Path::usable).unwrap_or(nexus);
        let at = time::now();
        let is_reserved = self.take(&nexus, claim).await?;
        claim.proved(at);
        let claim = claim.clone();
        spawn(watch(Rc::downgrade(self), claim.clone()));
        self.paths.tell_fence(!is_reserved);
        self.claim.replace(Some(claim));
        self.tell_ownership(OwnershipEvent::Claimed { is_reserved });
        // Registrations are per I_T nexus (SPC-4 5.13.7).
        for other in self.paths.usable() {
            if let Err(error) = self.establish_claim(&other).await {
                self.check_owned()?;
                // That path alone cannot be used.
                if !Rc::ptr_eq(&other, &nexus) {
                    other.end(error);
                } else if !other.is_over() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Releases the claim: takes our name off the mark first, while the fence still stands.
    pub(super) async fn release_claim(&self) -> Result<()> {
        let claim = self.claim.borrow().clone();
        self.paths.tell_fence(false);
        let Some(claim) = claim.filter(Claim::is_held) else {
            return Ok(());
        };
        claim.close();
        let Some(nexus) = self.paths.usable().next() else {
            // The mark that stays behind tells the next claimant whose it was.
            return Ok(());
        };
        let mark = self.read_mark(&nexus).await?;
        if matches!(mark, ClaimAnswer::Good(block) if claim.is_marked(&block).is_ok()) {
            self.write_mark(&nexus, claim.released_block()).await?;
        }
        if self.machine.borrow().is_reserved() {
            for nexus in self.paths.usable() {
                self.unregister(&nexus, &claim).await;
            }
            self.end_left_behind(&nexus, &claim).await?;
        }
        Ok(())
    }

    /// Ends the reservation of a nexus of ours that is lost, and could not do it itself.
    async fn end_left_behind(&self, nexus: &Rc<Nexus>, claim: &Claim) -> Result<()> {
        if self.is_reserved(nexus, claim).await? && self.register(nexus, claim).await? {
            self.oust(nexus, claim, claim.key()).await?;
            self.unregister(nexus, claim).await;
        }
        Ok(())
    }

    /// Takes the disk unless an owner that may be alive has it. Returns whether the disk is fenced.
    async fn take(&self, nexus: &Rc<Nexus>, claim: &Claim) -> Result<bool> {
        for round in 1..=ROUNDS_MAX {
            let step = match self.reservation(nexus).await? {
                ReportedReservation::Unknown => Attempt::MarkOnly,
                ReportedReservation::Free => self.reserve(nexus, claim).await?,
                ReportedReservation::Held { key, kind } => {
                    let is_last = round == ROUNDS_MAX;
                    self.preempt(nexus, claim, (key, kind), is_last).await?
                }
            };
            match step {
                Attempt::MarkOnly => {
                    self.mark_unfenced(nexus, claim).await?;
                    return Ok(false);
                }
                Attempt::Reserved => {
                    if let Err(error) = self.drop_others(nexus, claim).await {
                        self.unregister(nexus, claim).await;
                        return Err(error);
                    }
                    if self.is_reserved(nexus, claim).await? {
                        let marked = self.mark_fenced(nexus, claim).await;
                        if marked.is_err() {
                            self.unregister(nexus, claim).await;
                        }
                        return marked.map(|()| true);
                    }
                }
                Attempt::Again => {}
            }
            time::sleep(ROUND_PAUSE).await;
        }
        Err(refuse_alive(&self.holder(nexus).await))
    }

    /// Reserves a disk that has no reservation. Reads the mark first: its owner may be about to come back, and would
    /// mistake our reservation for a take-over.
    async fn reserve(&self, nexus: &Rc<Nexus>, claim: &Claim) -> Result<Attempt> {
        let block = match self.read_mark(nexus).await? {
            ClaimAnswer::Good(block) => block,
            ClaimAnswer::Conflict => return Ok(Attempt::Again),
            ClaimAnswer::Refused(why) => return Err(Error::new(ErrorKind::Medium, why)),
        };
        judge(claim, &block)?;
        if !self.register(nexus, claim).await? {
            return Ok(Attempt::MarkOnly);
        }
        let reserve = ReserveOut::reserve(EXCLUSIVE_REGISTRANTS, claim.key());
        let step = match self.reserve_out(nexus, reserve).await? {
            ClaimAnswer::Good(_) => return Ok(Attempt::Reserved),
            ClaimAnswer::Conflict => Attempt::Again,
            ClaimAnswer::Refused(_) => Attempt::MarkOnly,
        };
        self.unregister(nexus, claim).await;
        Ok(step)
    }

    /// Takes a reservation, given by its key and type, away from a dead owner.
    async fn preempt(
        &self,
        nexus: &Rc<Nexus>,
        claim: &Claim,
        (key, kind): (u64, u8),
        is_last: bool,
    ) -> Result<Attempt> {
        if !self.register(nexus, claim).await? {
            return Err(refuse_alive(&self.holder(nexus).await));
        }
        let is_allowed = claim.others() != Others::Refuse || claim.is_own_key(key);
        let standing = match self.read_mark(nexus).await? {
            ClaimAnswer::Good(block) => Some(claim.standing(&block, false)),
            // A reservation of another type, under which even registrants may not read.
            ClaimAnswer::Conflict | ClaimAnswer::Refused(_) => None,
        };
        let refused = match standing {
            Some(LabelStanding::Ours) => Some(refuse_ours()),
            Some(LabelStanding::Dead(mark)) if mark.key() == key => {
                tell_replaced(&mark);
                None
            }
            Some(LabelStanding::Running(owner)) if claim.others() == Others::Fence => {
                Some(refuse_running(&owner))
            }
            _ if is_allowed => None,
            Some(LabelStanding::Alive(owner) | LabelStanding::Running(owner)) => {
                Some(refuse_alive(&owner))
            }
            // Whoever it is may be about to write its mark, or to leave.
            Some(_) if !is_last => {
                self.unregister(nexus, claim).await;
                return Ok(Attempt::Again);
            }
            _ => Some(refuse_alive(&self.holder(nexus).await)),
        };
        if let Some(refused) = refused {
            self.unregister(nexus, claim).await;
            return Err(refused);
        }
        // It was this nexus's own, from before a restart, and has the new key now (SPC-4 5.13.7).
        if self.is_reserved(nexus, claim).await? {
            return Ok(Attempt::Reserved);
        }
        let target_name = &self.config().target_name;
        tracing::info!(target_name, kind, "preempting the reservation {key:016x}h");
        let told = self.oust(nexus, claim, key).await?;
        if matches!(told, ClaimAnswer::Good(_)) {
            return Ok(Attempt::Reserved);
        }
        self.unregister(nexus, claim).await;
        match told {
            ClaimAnswer::Refused(why) => Err(Error::new(ErrorKind::Protocol, why)),
            _ => Ok(Attempt::Again),
        }
    }

    /// PREEMPT AND ABORT: removes the registrations under `key`, aborts the tasks sent under them, and takes over the
    /// reservation if that key held it. A target without the abort (tgt) still refuses later commands.
    async fn oust(&self, nexus: &Rc<Nexus>, claim: &Claim, key: u64) -> Result<ClaimAnswer> {
        let preempt = |aborts| ReserveOut::preempt(EXCLUSIVE_REGISTRANTS, claim.key(), key, aborts);
        match self.reserve_out(nexus, preempt(true)).await? {
            ClaimAnswer::Refused(_) => self.reserve_out(nexus, preempt(false)).await,
            told => Ok(told),
        }
    }

    /// Preempts all foreign registrations, since every registrant has full access, and aborts their tasks, until the
    /// target lists no key but ours.
    async fn drop_others(&self, nexus: &Rc<Nexus>, claim: &Claim) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let others = self.other_keys(nexus, claim).await?;
            if others.is_empty() {
                return Ok(());
            }
            for key in others {
                self.oust(nexus, claim, key).await?;
            }
        }
        Err(refuse_alive(
            "another initiator, whose registration cannot be removed",
        ))
    }

    /// The registered keys other than ours.
    async fn other_keys(&self, nexus: &Rc<Nexus>, claim: &Claim) -> Result<Vec<u64>> {
        const LEN: u16 = 8 + 8 * 1024;
        let read = cdb::persistent_reserve_in(cdb::READ_KEYS, LEN);
        let data = match self.tell(nexus, &read, Data::In(LEN.into())).await? {
            ClaimAnswer::Good(data) => data,
            ClaimAnswer::Conflict => return Err(refuse_alive("an initiator that has reserved it")),
            ClaimAnswer::Refused(why) => {
                let why = format!("the target does not report who is registered: {why}");
                return Err(Error::new(ErrorKind::Protocol, why));
            }
        };
        let listed = data.get(4..8).zip(data.get(8..));
        let keys =
            listed.and_then(|(len, keys)| keys.get(..(be(len) as usize).min(LEN as usize - 8)));
        let Some(keys) = keys else {
            let why = format!(
                "READ KEYS returned {} bytes, less than it announces",
                data.len()
            );
            return Err(Error::new(ErrorKind::Protocol, why));
        };
        let keys = keys.chunks_exact(8).map(be);
        Ok(keys.filter(|key| *key != claim.key()).collect())
    }

    /// Writes the mark behind our fence, where nobody else can write, and reads it back.
    async fn mark_fenced(&self, nexus: &Rc<Nexus>, claim: &Claim) -> Result<()> {
        // Another owner may have come between our first look and our reservation.
        let block = self.must_read_mark(nexus).await?;
        judge(claim, &block)?;
        self.write_and_read(nexus, claim).await
    }

    /// Writes the mark on a disk that cannot be fenced.
    async fn mark_unfenced(&self, nexus: &Rc<Nexus>, claim: &Claim) -> Result<()> {
        let block = self.must_read_mark(nexus).await?;
        match claim.standing(&block, false) {
            LabelStanding::Alive(owner) if claim.others() == Others::Fence => {
                return Err(refuse_unfenced(&owner));
            }
            LabelStanding::Dead(mark) => tell_replaced(&mark),
            _ => judge(claim, &block)?,
        }
        self.write_and_read(nexus, claim).await?;
        time::sleep(SETTLE).await;
        let block = self.must_read_mark(nexus).await?;
        claim.is_marked(&block).map_err(|by| refuse_alive(&by))?;
        tracing::info!(
            target_name = self.config().target_name,
            "the target does not support the persistent reservations that keep others out: other \
             owners can only be warned by this one's mark"
        );
        Ok(())
    }

    async fn write_and_read(&self, nexus: &Rc<Nexus>, claim: &Claim) -> Result<()> {
        self.write_mark(nexus, claim.block()).await?;
        let block = self.must_read_mark(nexus).await?;
        claim.is_marked(&block).map_err(|by| refuse_alive(&by))
    }

    /// Writes the mark again, if it still is ours.
    pub(super) async fn label_again(&self, claim: &Claim) -> Result<()> {
        let nexus = self.nexus(&mut self.patience()).await?;
        let block = self.must_read_mark(&nexus).await?;
        claim.is_marked(&block).map_err(|by| refuse_alive(&by))?;
        self.write_and_read(&nexus, claim).await
    }

    /// Re-establishes the claim on `nexus`, if there is a claim; nothing else may be sent on the nexus before that.
    ///
    /// # Errors
    /// `Preempted` when the disk has a new owner (permanent); otherwise whatever kept us from finding out.
    pub(super) async fn establish_claim(&self, nexus: &Rc<Nexus>) -> Result<()> {
        let _establishing = self.establishing.take(1).await;
        self.establish(nexus).await
    }

    /// Waits until the claim is no longer shaken. Returns early when the session has ended: another session will
    /// settle it.
    ///
    /// # Errors
    /// As [`RemoteUnit::establish_claim`]; the claim stays shaken.
    pub(super) async fn steady_claim(&self, nexus: &Rc<Nexus>) -> Result<()> {
        let mut rounds = 0..ROUNDS_MAX;
        while self.is_claim_shaken() {
            if rounds.next().is_none() {
                let why =
                    "the target reports with every command that its reservations may have ended";
                return Err(Error::new(ErrorKind::TimedOut, why));
            }
            let _establishing = self.establishing.take(1).await;
            if nexus.is_over() {
                return Ok(());
            }
            if self.is_claim_shaken() {
                match self.establish(nexus).await {
                    Err(error) if !nexus.is_over() => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Re-establishes the claim; the caller holds the turn. Events that shake the claim while this runs are not
    /// covered by its result.
    async fn establish(&self, nexus: &Rc<Nexus>) -> Result<()> {
        let events = self.machine.borrow().events(Subject::Claim);
        let claim = self.claim.borrow().clone();
        let Some(claim) = claim else {
            let key = self.machine.borrow().fence_key();
            if let Some(key) = key {
                self.take_in(nexus, key).await?;
            }
            self.handle(Event::Settled(Subject::Claim, events));
            return Ok(());
        };
        let is_reserved = self.machine.borrow().is_reserved();
        let mut why = "the disk's reservation keeps changing";
        for _ in 0..ROUNDS_MAX {
            claim.check()?;
            let at = time::now();
            if is_reserved && !self.reserve_again(nexus, &claim).await? {
                continue;
            }
            match self.read_mark(nexus).await? {
                ClaimAnswer::Good(block) => {
                    if let Err(by) = claim.is_marked(&block) {
                        // Behind our reservation nobody else has written: the disk was set back, which its user is to look at.
                        let is_watched = self.machine.borrow().is_watched();
                        if is_reserved && is_watched && Claim::is_label(&block) {
                            self.tell_ownership(OwnershipEvent::StartedAgain);
                            self.write_mark(nexus, claim.block()).await?;
                            continue;
                        }
                        if is_reserved {
                            self.unregister(nexus, &claim).await;
                        }
                        return Err(self.lose(&claim, &by));
                    }
                    claim.proved(at);
                    self.handle(Event::Settled(Subject::Claim, events));
                    return Ok(());
                }
                // We hold the reservation, but came in through another portal group, where this port is not
                // registered.
                ClaimAnswer::Conflict if is_reserved => {
                    self.register(nexus, &claim).await?;
                    why = "the target rejects this session, although it is registered";
                }
                ClaimAnswer::Conflict => {
                    let by = self.holder(nexus).await;
                    return Err(self.lose(&claim, &by));
                }
                ClaimAnswer::Refused(why) => return Err(Error::new(ErrorKind::Medium, why)),
            }
        }
        Err(Error::new(ErrorKind::Protocol, why))
    }

    /// Makes sure that we hold the reservation, which a target may have lost in a power cycle. Returns whether we do;
    /// if not, the caller should look again.
    async fn reserve_again(&self, nexus: &Rc<Nexus>, claim: &Claim) -> Result<bool> {
        match self.reservation(nexus).await? {
            ReportedReservation::Unknown => {
                let why = "the target no longer supports persistent reservations";
                Err(Error::new(ErrorKind::Protocol, why))
            }
            ReportedReservation::Held { key, .. } if key == claim.key() => Ok(true),
            ReportedReservation::Held { key, .. } if self.take_back(nexus, claim, key).await? => {
                Ok(false)
            }
            ReportedReservation::Held { .. } => {
                let by = self.holder(nexus).await;
                // A registration of ours would let us write inside the new owner's fence.
                self.unregister(nexus, claim).await;
                Err(self.lose(claim, &by))
            }
            ReportedReservation::Free => {
                // Another owner may have come and gone meanwhile.
                let ClaimAnswer::Good(block) = self.read_mark(nexus).await? else {
                    return Ok(false);
                };
                match claim.is_marked(&block) {
                    Err(by) if !self.is_set_back(claim, &block) => {
                        self.unregister(nexus, claim).await;
                        return Err(self.lose(claim, &by));
                    }
                    _ => {}
                }
                self.register(nexus, claim).await?;
                let reserve = ReserveOut::reserve(EXCLUSIVE_REGISTRANTS, claim.key());
                let told = self.reserve_out(nexus, reserve).await?;
                Ok(matches!(told, ClaimAnswer::Good(_)))
            }
        }
    }

    /// Takes the reservation under `key` if it is of a former claim of ours, with which the target was set back. Returns whether
    /// it is.
    async fn take_back(&self, nexus: &Rc<Nexus>, claim: &Claim, key: u64) -> Result<bool> {
        if !self.machine.borrow().is_watched() || !self.register(nexus, claim).await? {
            return Ok(false);
        }
        let is_ours = match self.read_mark(nexus).await? {
            ClaimAnswer::Good(block) => self.is_set_back(claim, &block),
            ClaimAnswer::Conflict | ClaimAnswer::Refused(_) => false,
        };
        if is_ours {
            let target_name = &self.config().target_name;
            tracing::warn!(
                target_name,
                "the target was set back to a former claim of ours"
            );
            self.oust(nexus, claim, key).await?;
            self.drop_others(nexus, claim).await?;
        }
        Ok(is_ours)
    }

    /// Whether the disk was set back to before our claim, as its label says, and its user is a mirror, which looks at it.
    fn is_set_back(&self, claim: &Claim, block: &[u8]) -> bool {
        self.machine.borrow().is_watched() && claim.is_set_back(block)
    }

    fn lose(&self, claim: &Claim, by: &str) -> Error {
        claim.lose(&self.config().target_name, by)
    }

    /// Registers our key, replacing any registered key; returns whether the target accepts it.
    async fn register(&self, nexus: &Rc<Nexus>, claim: &Claim) -> Result<bool> {
        self.register_key(nexus, claim.key()).await
    }

    pub(super) async fn register_key(&self, nexus: &Rc<Nexus>, key: u64) -> Result<bool> {
        let register = |aptpl| ReserveOut::register_and_ignore(key, aptpl);
        let told = self.reserve_out_with_aptpl(nexus, register).await?;
        Ok(matches!(told, ClaimAnswer::Good(_)))
    }

    /// Releases the reservation if `nexus` holds it, and removes its registration, which should release it too (SPC-4
    /// 5.13.11.3), but does not on every target (istgt). Best effort: the result makes no difference to the caller.
    pub(super) async fn unregister(&self, nexus: &Rc<Nexus>, claim: &Claim) {
        let release = ReserveOut::release(EXCLUSIVE_REGISTRANTS, claim.key());
        let _ = self.reserve_out(nexus, release).await;
        self.unregister_key(nexus, claim.key()).await;
    }

    pub(super) async fn unregister_key(&self, nexus: &Rc<Nexus>, key: u64) {
        let unregister = |aptpl| ReserveOut::unregister(key, aptpl);
        let _ = self.reserve_out_with_aptpl(nexus, unregister).await;
    }

    /// With APTPL the target keeps all registrations across a power loss; the last REGISTER or unregister decides for
    /// everyone (SPC-4 5.13.5). Some targets (tgt) have no APTPL.
    async fn reserve_out_with_aptpl(
        &self,
        nexus: &Rc<Nexus>,
        out: impl Fn(bool) -> ReserveOut,
    ) -> Result<ClaimAnswer> {
        match self.reserve_out(nexus, out(true)).await? {
            ClaimAnswer::Refused(_) => self.reserve_out(nexus, out(false)).await,
            told => Ok(told),
        }
    }

    async fn is_reserved(&self, nexus: &Rc<Nexus>, claim: &Claim) -> Result<bool> {
        let (key, kind) = (claim.key(), EXCLUSIVE_REGISTRANTS);
        Ok(self.reservation(nexus).await? == ReportedReservation::Held { key, kind })
    }

    pub(super) async fn reservation(&self, nexus: &Rc<Nexus>) -> Result<ReportedReservation> {
        const LEN: u16 = 24;
        let read = cdb::persistent_reserve_in(cdb::READ_RESERVATION, LEN);
        let data = match self.tell(nexus, &read, Data::In(LEN.into())).await? {
            ClaimAnswer::Good(data) => data,
            ClaimAnswer::Refused(_) => return Ok(ReportedReservation::Unknown),
            // A RESERVE (6) reservation excludes this command, too.
            ClaimAnswer::Conflict => return Err(refuse_alive("an initiator that has reserved it")),
        };
        Ok(match (data.get(4..8).map(be), data.get(8..24)) {
            (Some(16..), Some(held)) => ReportedReservation::Held {
                key: be(&held[..8]),
                kind: held[13] & 0xf,
            },
            _ => ReportedReservation::Free,
        })
    }

    pub(super) async fn reserve_out(
        &self,
        nexus: &Rc<Nexus>,
        out: ReserveOut,
    ) -> Result<ClaimAnswer> {
        let list = Buf::copy_of(&out.list).into();
        self.tell(nexus, &out.cdb, Data::Out(list)).await
    }

    /// Sends one command on this very nexus, retrying past unit attentions. What it returns is from the disk of this
    /// volume.
    pub(super) fn tell<'a>(
        &'a self,
        nexus: &'a Rc<Nexus>,
        cdb: &'a CdbBytes,
        data: Data,
    ) -> LaneFuture<'a, Result<ClaimAnswer>> {
        LaneFuture::new(async move {
            let mut last = String::new();
            for _ in 0..AT_ONCE_MAX {
                let reply = self.execute(nexus, cdb, data.clone()).await?;
                if reply.status == RESERVATION_CONFLICT && !reply.is_in_doubt {
                    return Ok(ClaimAnswer::Conflict);
                }
                match self.judge(nexus, &reply) {
                    None => return Ok(ClaimAnswer::Good(reply.data.to_vec())),
                    Some((Verdict::Fail(_), why)) => return Ok(ClaimAnswer::Refused(why)),
                    Some((Verdict::Retry | Verdict::Restarted, why)) => last = why,
                    Some((Verdict::RetryLater, why)) => {
                        last = why;
                        time::sleep(BUSY_PAUSE).await;
                    }
                }
            }
            Err(Error::new(ErrorKind::TimedOut, last))
        })
    }
}

/// A big-endian number of up to eight bytes.
pub(super) fn be(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Whether the mark on the disk allows `claim` to take it.
fn judge(claim: &Claim, block: &[u8]) -> Result<()> {
    match claim.standing(block, false) {
        LabelStanding::Free | LabelStanding::Dead(_) => Ok(()),
        LabelStanding::Ours => Err(refuse_ours()),
        LabelStanding::Data if claim.others() == Others::Overrule => Ok(()),
        LabelStanding::Data => Err(refuse_data()),
        LabelStanding::Running(owner) if claim.others() == Others::Fence => {
            Err(refuse_running(&owner))
        }
        LabelStanding::Alive(_) | LabelStanding::Running(_) if claim.others() != Others::Refuse => {
            Ok(())
        }
        LabelStanding::Alive(owner) | LabelStanding::Running(owner) => Err(refuse_alive(&owner)),
    }
}

/// Checks every second that the claim still stands, until the disk or the claim is gone.
async fn watch(unit: Weak<RemoteUnit>, claim: Claim) {
    loop {
        time::sleep(WATCH_INTERVAL).await;
        let Some(this) = unit.upgrade().filter(|_| claim.check().is_ok()) else {
            return;
        };
        let picked = this.paths.pick(false);
        let (lba, blocks) = this.mark_place();
        drop(this);
        let (at, read) = (time::now(), cdb::read(lba, blocks));
        let reply = match &picked {
            Some(nexus) => Some(nexus.execute(&read, Data::In(LABEL_BYTES)).await),
            None => None,
        };
        let Some(this) = unit.upgrade() else { return };
        match picked.zip(reply) {
            Some((_, Ok(reply)))
                if reply.is_good() && claim.is_marked(&reply.data.to_vec()).is_ok() =>
            {
                claim.proved(at);
            }
            Some((nexus, Ok(reply))) => {
                let _ = this.judge(&nexus, &reply);
                if matches!(reply.status, 0 | RESERVATION_CONFLICT) {
                    this.shake_claim();
                }
                let _ = this.establish_claim(&nexus).await;
            }
            // Logging in again re-establishes the claim.
            _ => {
                let (command, mut patience) = (cdb::test_unit_ready(), this.patience());
                let _ = this.run(&command, Data::None, &mut patience).await;
            }
        }
    }
}
