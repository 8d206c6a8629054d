//! A logical unit from the initiator's side: runs commands until they succeed, fail for good or run out of time, and
//! acts on what the responses report (a restart, a changed capacity).
//!
//! Nothing here recurses: executing a command is one attempt on one session, follow-up queries are single attempts of
//! a bounded number, and all attempts of a request share its [`Patience`].

use std::{
    cell::{OnceCell, RefCell},
    fmt::Display,
    rc::{Rc, Weak},
    sync::Arc,
};

use engine::{Duration, LaneFuture, LaneHandle, spawn, sync::Budget, task, time};
use scsi::Status;

use super::{
    cdb::{self, CdbBytes},
    config::IscsiConfig,
    facts::DiskFacts,
    identity::DiskIdentity,
    lane_grants::LaneGrants,
    machine::{
        Action, Actions, Event, Geometry, GeometryTrouble, Machine, OwnershipEvent, Report, Subject,
    },
    nexus::Nexus,
    own::SessionEnd,
    paths::Paths,
    patience::Patience,
    sense::{Sense, Verdict},
    session::{Data, RESERVATION_CONFLICT, Reply},
    unflushed::Unflushed,
};
use crate::{Claim, Error, ErrorKind, Result, announcer::Announcer};

/// How many times to read the capacity when the target keeps reporting that it may have changed.
const CAPACITY_ATTEMPTS_MAX: u32 = 3;

/// What a reply requires us to do, and why; `None`: it is good.
pub(super) type Judgement = Option<(Verdict, String)>;

/// A logical unit.
pub(super) struct RemoteUnit {
    pub(super) me: Weak<RemoteUnit>,
    pub(super) paths: Paths,
    pub(super) unflushed: Unflushed,
    /// The claim, once there was one.
    pub(super) claim: RefCell<Option<Claim>>,
    /// What the other lanes may use of it.
    pub(super) grants: LaneGrants,
    /// What is known of the disk.
    pub(super) machine: Rc<RefCell<Machine>>,
    /// What the disk has reported, once it is open.
    pub(super) facts: OnceCell<Arc<DiskFacts>>,
    /// Whom to tell when the disk is no longer what it was.
    announcer: OnceCell<Announcer>,
    /// The disk's identity, once known: every path has to lead to it.
    pub(super) identity: OnceCell<DiskIdentity>,
    /// Serializes resets.
    pub(super) resetting: Rc<Budget>,
    /// Serializes what establishes the claim.
    pub(super) establishing: Rc<Budget>,
}

/// What READ CAPACITY reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) blocks: u64,
    pub(super) block_size_bytes: u32,
    /// log2 of the logical blocks per physical block.
    pub(super) physical_exponent: u8,
    /// LBPME: blocks may be unmapped.
    pub(super) is_thin: bool,
    /// LBPRZ: an unmapped block reads as zeroes.
    pub(super) unmapped_reads_zeroes: bool,
}

impl RemoteUnit {
    /// A unit whose sessions are spread over `lanes` in turn, starting with the current lane.
    pub(super) fn new(config: IscsiConfig, lanes: &[LaneHandle]) -> Rc<RemoteUnit> {
        let machine = Rc::new(RefCell::new(Machine::new(config.isids().count())));
        Rc::new_cyclic(|me| RemoteUnit {
            me: me.clone(),
            paths: Paths::new(config, lanes, &machine),
            unflushed: Unflushed::new(),
            claim: RefCell::default(),
            grants: LaneGrants::default(),
            machine,
            facts: OnceCell::new(),
            announcer: OnceCell::new(),
            identity: OnceCell::new(),
            resetting: Budget::new(1),
            establishing: Budget::new(1),
        })
    }

    /// From now on `announcer` is told when the disk is no longer what it was.
    pub(super) fn announce_to(&self, announcer: Announcer) {
        let _ = self.announcer.set(announcer);
    }

    /// The disk is no longer what it was.
    pub(super) fn announce(&self) {
        if let Some(announcer) = self.announcer.get() {
            announcer.tell();
        }
    }

    /// Takes an event, and does what follows from it. Returns what is left to whoever has caused it.
    pub(super) fn handle(&self, event: Event) -> Actions {
        let actions = self.machine.borrow_mut().handle(event, time::now());
        let mut left = Actions::new();
        for action in actions {
            match action {
                Action::Lose => {
                    let covered = self.unflushed.covered();
                    self.tell_losses(self.unflushed.restarted(covered));
                    self.judge_lanes(covered);
                }
                Action::AskOthers { told, others } => self.hear_others(told, others),
                Action::AskAboutAborts(told) => self.hear_of_aborts(told),
                Action::AskAccess => self.ask_all_access(),
                Action::WatchAccess(pause) => self.tell_after(pause, Event::AccessDue),
                Action::ComeBackIn(pause) => self.tell_after(pause, Event::ComeBack),
                Action::Recover(path) => self.recover(path),
                Action::RefuseWrites => self.refuse_writes(),
                Action::TakeWrites => self.unflushed.lose_cache(),
                Action::Follow(mode) => self.follow(mode),
                Action::EndAll => self.paths.abort(),
                Action::Grow(len_bytes) => self.grow(len_bytes),
                Action::LoseOfRound
                | Action::AskAgain
                | Action::OurReset
                | Action::TellGeometry(_)
                | Action::AskAccessAgainIn(_)
                | Action::LogIn
                | Action::LogInLater(_)
                | Action::TellLoss(_)
                | Action::TellRefusal(_)
                | Action::TellGivenUp(_)
                | Action::TellAccess(_) => left.push(action),
            }
        }
        // Whatever is known now, some request or lane may have waited for it.
        self.paths.notify();
        left
    }

    /// Takes `event` after `pause`.
    fn tell_after(&self, pause: Duration, event: Event) {
        let unit = self.me.clone();
        spawn(async move {
            time::sleep(pause).await;
            if let Some(unit) = unit.upgrade() {
                unit.paths.notice();
                unit.handle(event);
            }
        });
    }

    /// Something may have ended the claim. Returns whether there is one.
    pub(super) fn shake_claim(&self) -> bool {
        let is_claimed = self.claim.borrow().is_some() || self.machine.borrow().is_fenced();
        if is_claimed {
            self.handle(Event::Doubted(Subject::Claim));
        }
        is_claimed
    }

    /// Fails when the claim is lost or released, or the fence is not there any more.
    pub(super) fn check_owned(&self) -> Result<()> {
        self.machine.borrow().check_fence()?;
        match &*self.claim.borrow() {
            None => Ok(()),
            Some(claim) => claim.check(),
        }
    }

    /// Tells the machine what has happened to the claim or the fence.
    pub(super) fn tell_ownership(&self, event: OwnershipEvent) {
        self.handle(Event::Ownership(event));
    }

    /// Whether the claim has to be re-established before anything more is sent.
    pub(super) fn is_claim_shaken(&self) -> bool {
        self.machine.borrow().is_open(Subject::Claim)
    }

    /// The capacity may have changed: it is read before the next command.
    pub(super) fn doubt_capacity(&self) {
        self.handle(Event::Doubted(Subject::Capacity));
    }

    pub(super) fn config(&self) -> Rc<IscsiConfig> {
        self.paths.config()
    }

    /// The patience of one request.
    pub(super) fn patience(&self) -> Patience {
        self.paths.patience()
    }

    /// Sends a command until it succeeds, fails for good, or `patience` runs out.
    pub(super) async fn run(
        &self,
        cdb: &CdbBytes,
        data: Data,
        patience: &mut Patience,
    ) -> Result<Reply> {
        loop {
            self.check_owned()?;
            let Some(nexus) = self.paths.pick(cdb.changes_medium()) else {
                // Boxed, as below.
                LaneFuture::new(self.wait(cdb.changes_medium(), patience)).await?;
                continue;
            };
            if self.machine.borrow().is_any_open() {
                // Boxed, as below.
                if !LaneFuture::new(self.settle(&nexus, patience)).await? {
                    continue;
                }
            }
            if self.machine.borrow().writes_through() && cdb.changes_medium() {
                // A cache may have been found since the request began.
                self.unflushed.check()?;
            }
            let restarts = self.machine.borrow().restarts();
            let sent = nexus.execute(cdb, data.clone()).await;
            // If a restart was noticed while a write was in flight, its GOOD does not count: the write may have been
            // executed before the restart and lost. It is resent.
            let stands = !cdb.changes_medium() || self.machine.borrow().restarts() == restarts;
            match sent {
                Ok(reply) if reply.is_good() && stands => return Ok(reply),
                // Nothing was written.
                Ok(reply) if reply.first_difference().is_some() => return Ok(reply),
                // Boxed, to keep the future of a successful command small.
                sent => LaneFuture::new(self.failed(&nexus, sent, cdb, patience)).await?,
            }
        }
    }

    /// Whether the disk's capacity, write cache or claim has to be checked before the next command.
    pub(super) fn is_unsettled(&self) -> bool {
        let machine = self.machine.borrow();
        machine.is_any_open() || machine.is_being_claimed()
    }

    /// Ends it for good, as its owner orders. On return nothing of it is sent any more.
    pub(super) async fn end(&self) {
        self.handle(Event::Ends);
        let all = self.paths.nexuses();
        task::join_all(all.iter().map(|nexus| Box::pin(nexus.link().over()))).await;
        self.grants_revoked(|| true).await;
    }

    /// A nexus for talking to the target.
    ///
    /// # Errors
    /// When there is none within `patience`.
    pub(super) async fn nexus(&self, patience: &mut Patience) -> Result<Rc<Nexus>> {
        loop {
            match self.paths.pick(false) {
                Some(nexus) => return Ok(nexus),
                None => self.wait(false, patience).await?,
            }
        }
    }

    /// Waits until looking for a path again is worthwhile.
    async fn wait(&self, writes: bool, patience: &mut Patience) -> Result<()> {
        self.paths.check_ended()?;
        // A disk that was closed and is used again has let its paths go, and a lone path comes back at leisure only.
        if self.paths.is_at_rest() || self.paths.live().next().is_none() {
            self.bring_back();
        }
        self.paths.wait(writes, patience).await
    }

    /// Settles what has to be known before the next command: the capacity, the claim and the write cache. Returns
    /// whether all are known; if not, the caller should try again.
    async fn settle(&self, nexus: &Rc<Nexus>, patience: &mut Patience) -> Result<bool> {
        let is_known = self.look_at_capacity(nexus).await;
        if let Err(error) = is_known {
            match error.kind() {
                ErrorKind::Configuration => return Err(error),
                _ => patience.again(false, &error.to_string()).await?,
            }
            return Ok(false);
        }
        // The claim comes after the capacity, because any response may shake it, and then the command must not be sent.
        let known = match self.steady_claim(nexus).await {
            Ok(()) => self.settle_cache(nexus).await,
            lost => lost,
        };
        match known {
            Ok(()) if self.is_claim_shaken() => {
                let why = "the target reports that its reservations may have ended";
                patience.again(true, why).await?;
                Ok(false)
            }
            Ok(()) => {
                // Another session is asked the same: a target that never answers is not asked for ever.
                if let Some(SessionEnd { error, .. }) = nexus.link().end_now() {
                    patience.lost(&error)?;
                }
                Ok(nexus.takes_requests())
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                patience.again(false, &error.to_string()).await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until a command that did not succeed may be resent.
    ///
    /// # Errors
    /// When it has failed for good, or `patience` runs out.
    pub(super) async fn failed(
        &self,
        nexus: &Rc<Nexus>,
        sent: Result<Reply>,
        cdb: &CdbBytes,
        patience: &mut Patience,
    ) -> Result<()> {
        let reply = match sent {
            Ok(reply) => reply,
            Err(error) if !nexus.is_over() => return Err(error),
            Err(error) => return self.lost_with(nexus, &error, cdb, patience).await,
        };
        if reply.status == RESERVATION_CONFLICT && self.shake_claim() {
            // Another nexus of ours may be registered where this one is not.
            let known = self.steady_claim(nexus).await;
            if let Err(error) = known
                && error.kind() != ErrorKind::TimedOut
            {
                return Err(error);
            }
            let why = "another initiator has reserved the disk";
            return patience.again(true, why).await;
        }
        match self.judge(nexus, &reply) {
            Some((Verdict::Fail(kind), why)) => Err(Error::new(kind, why)),
            judged if cdb.is_once() && !reply.is_refusal() => {
                let restarted = || "the target has restarted".to_owned();
                Err(unknown(judged.map_or_else(restarted, |it| it.1)))
            }
            None => Ok(()),
            Some((Verdict::Retry | Verdict::Restarted, why)) => patience.again(true, &why).await,
            Some((Verdict::RetryLater, why)) => patience.again(false, &why).await,
        }
    }

    /// Waits until a command that was in flight when `nexus` was lost may be resent: a writing command only when the
    /// first attempt can no longer take effect.
    async fn lost_with(
        &self,
        nexus: &Rc<Nexus>,
        why: &Error,
        cdb: &CdbBytes,
        patience: &mut Patience,
    ) -> Result<()> {
        let writes = cdb.changes_medium();
        let mut is_in_time = patience.lost(why);
        while writes && nexus.may_still_write() {
            if !self.paths.is_latest(nexus) {
                // Another nexus has taken its place, and nobody will end its writes any more.
                self.handle(Event::GivenUp(nexus.id()));
                break;
            }
            if is_in_time.is_ok() {
                is_in_time = self.wait(true, patience).await;
            }
            if is_in_time.is_err() {
                // A caller that sees the error may write again, on any lane.
                self.grants_revoked(|| nexus.may_still_write()).await;
                return is_in_time;
            }
        }
        if writes && nexus.is_unfenced() {
            return Err(RemoteUnit::unfenced());
        }
        is_in_time?;
        if cdb.is_once() {
            return Err(unknown(why));
        }
        let mut counts = self.paths.counts.borrow_mut();
        counts.resent += 1;
        counts.writes_resent += u64::from(writes);
        Ok(())
    }

    pub(super) fn tell_losses(&self, are_lost: bool) {
        if are_lost {
            tracing::error!(
                target_name = self.config().target_name,
                "the target restarted or failed with unflushed writes: they may be lost"
            );
        }
    }

    /// What a reply on `nexus` requires us to do. What else it says is noted: a doubt is settled before the next command, a
    /// restart counts at once, but one that may be known already is left to whoever takes the nexus into use or asks it.
    pub(super) fn judge(&self, nexus: &Nexus, reply: &Reply) -> Judgement {
        if reply.is_good() {
            return None;
        }
        let sense = reply.sense();
        let mut report = sense.map(Sense::report).unwrap_or_default();
        report.mode |= reply.is_in_doubt;
        report.capacity |= reply.is_cut;
        let is_ours = report != Report::default()
            && self
                .handle(Event::Reported(nexus.id(), report))
                .contains(&Action::OurReset);
        if is_ours {
            let why = "the target reports our own reset".to_owned();
            return Some((Verdict::Retry, why));
        }
        match self.verdict(reply, sense) {
            (Verdict::Fail(_), _) if reply.is_in_doubt => {
                let why = "the target reported that the LUN may be another disk".to_owned();
                Some((Verdict::Retry, why))
            }
            verdict => Some(verdict),
        }
    }

    fn verdict(&self, reply: &Reply, sense: Option<Sense>) -> (Verdict, String) {
        const BUSY: u8 = Status::Busy as u8;
        const TASK_SET_FULL: u8 = Status::TaskSetFull as u8;
        const TASK_ABORTED: u8 = Status::TaskAborted as u8;
        let (verdict, why) = match (reply.status, sense) {
            (_, Some(sense)) => {
                let config = self.config();
                let why = sense.describe(&config.target_name, config.lun);
                return (sense.verdict(), why);
            }
            (BUSY | TASK_SET_FULL, None) => (Verdict::RetryLater, "the target stays busy"),
            (TASK_ABORTED, None) => (Verdict::Retry, "another initiator aborts it"),
            (RESERVATION_CONFLICT, None) => {
                let why = "another initiator has reserved the disk";
                (Verdict::Fail(ErrorKind::ReservationConflict), why)
            }
            (_, None) if reply.is_cut => (Verdict::Retry, "the target has blocks of another size"),
            (status, None) => {
                let why = format!("the target returned the unknown SCSI status {status:02x}h");
                return (Verdict::Fail(ErrorKind::Protocol), why);
            }
        };
        (verdict, why.to_owned())
    }

    /// Reads the capacity if it may have changed, and tells the machine.
    ///
    /// # Errors
    /// `Configuration` when the disk has blocks of another size, and nothing may be read or written; otherwise why it is
    /// not known. It is asked for again before the next command.
    async fn look_at_capacity(&self, nexus: &Rc<Nexus>) -> Result<()> {
        if !self.machine.borrow().is_open(Subject::Capacity) {
            return Ok(());
        }
        match self.ask_capacity(nexus).await {
            Ok((capacity, events)) => {
                self.tell_geometry(Event::Measured(capacity.geometry(), events), None);
                self.machine.borrow().check_blocks()
            }
            // A session that is lost, as when the target stops, or that may lead to another disk says nothing: another one
            // or a later answer does. Neither does one that others keep out by a reservation, which keeps out the next
            // command too.
            Err(error)
                if nexus.is_over()
                    || nexus.is_in_doubt()
                    || error.kind() == ErrorKind::ReservationConflict =>
            {
                Ok(())
            }
            Err(error) => {
                self.tell_geometry(Event::Unmeasured, Some(&error));
                Err(error)
            }
        }
    }

    /// Tells the machine what is known of the geometry now, or `why` it is not, and the user what is wrong.
    fn tell_geometry(&self, event: Event, why: Option<&Error>) {
        for action in self.handle(event) {
            let Action::TellGeometry(trouble) = action else {
                continue;
            };
            let target_name = &self.config().target_name;
            match why.filter(|_| trouble == GeometryTrouble::Untold) {
                Some(why) => tracing::error!(target_name, "{trouble}: {why}"),
                None => tracing::error!(target_name, "{trouble}"),
            }
        }
    }

    /// The disk has become longer.
    fn grow(&self, len_bytes: u64) {
        if let Some(facts) = self.facts.get() {
            let (len, target_name) = (&facts.shape.len, &self.config().target_name);
            let from = len.bytes();
            tracing::info!(target_name, from, to = len_bytes, "the disk has grown");
            len.grow(len_bytes);
            self.announce();
        }
    }

    /// The size of its blocks; the usual one, for a few whole blocks, while it is not known.
    pub(super) fn block_size_bytes(&self) -> u32 {
        self.machine.borrow().block_size_bytes().unwrap_or(512)
    }

    /// Reads the capacity with a bounded number of single attempts on this nexus. Also returns how many events that may have
    /// changed it the answer takes into account.
    async fn ask_capacity(&self, nexus: &Rc<Nexus>) -> Result<(Capacity, u64)> {
        let mut why = String::new();
        for _ in 0..CAPACITY_ATTEMPTS_MAX {
            let events = self.machine.borrow().events(Subject::Capacity);
            let command = cdb::read_capacity_16(32);
            let reply = self.execute(nexus, &command, Data::In(32)).await?;
            let long = match self.judge(nexus, &reply) {
                None => Capacity::parse_16(&reply.data.to_vec()),
                Some((Verdict::Fail(_), _)) => None,
                Some((_, again)) => {
                    why = again;
                    continue;
                }
            };
            let capacity = match long {
                Some(capacity) => capacity?,
                None => self.ask_short_capacity(nexus).await?,
            };
            return Ok((capacity, events));
        }
        Err(Error::new(ErrorKind::TimedOut, why))
    }

    /// READ CAPACITY (10), for a disk that has no READ CAPACITY (16).
    async fn ask_short_capacity(&self, nexus: &Rc<Nexus>) -> Result<Capacity> {
        let command = cdb::read_capacity_10();
        let reply = self.execute(nexus, &command, Data::In(8)).await?;
        match self.judge(nexus, &reply) {
            None => Capacity::parse_10(&reply.data.to_vec()).ok_or_else(untold)?,
            Some((Verdict::Fail(kind @ ErrorKind::ReservationConflict), why)) => {
                Err(Error::new(kind, why))
            }
            Some((_, why)) => Err(Error::new(ErrorKind::TimedOut, why)),
        }
    }
}

/// The error for a command of which `why` it is not known whether it took effect.
fn unknown(why: impl Display) -> Error {
    let message = format!("{why}; whether the blocks were compared and written is unknown");
    Error::new(ErrorKind::OutcomeUnknown, message)
}

pub(super) fn untold() -> Error {
    Error::new(ErrorKind::Protocol, "the disk reports no capacity")
}

impl Capacity {
    pub(super) fn geometry(self) -> Geometry {
        Geometry {
            block_size_bytes: self.block_size_bytes,
            len_bytes: self.blocks * u64::from(self.block_size_bytes),
        }
    }

    /// Parses the parameter data of READ CAPACITY (16) (SBC-3 5.16.2); `None`: it is too short.
    pub(super) fn parse_16(data: &[u8]) -> Option<Result<Capacity>> {
        let last = u64::from_be_bytes(*data.first_chunk()?);
        let block = u32::from_be_bytes(*data.get(8..)?.first_chunk()?);
        let flags = data.get(14)?;
        let capacity = Capacity {
            physical_exponent: data.get(13)? & 0xf,
            is_thin: flags & 0x80 != 0,
            unmapped_reads_zeroes: flags & 0x40 != 0,
            ..Capacity::plain(last, block)
        };
        Some(capacity.checked(last))
    }

    /// Parses the parameter data of READ CAPACITY (10) (SBC-3 5.15.2).
    pub(super) fn parse_10(data: &[u8]) -> Option<Result<Capacity>> {
        let last = u32::from_be_bytes(*data.first_chunk()?);
        let block = u32::from_be_bytes(*data.get(4..)?.first_chunk()?);
        Some(Capacity::plain(last.into(), block).checked(last.into()))
    }

    fn plain(last: u64, block_size_bytes: u32) -> Capacity {
        Capacity {
            blocks: last.saturating_add(1),
            block_size_bytes,
            physical_exponent: 0,
            is_thin: false,
            unmapped_reads_zeroes: false,
        }
    }

    fn checked(self, last: u64) -> Result<Capacity> {
        let block = self.block_size_bytes;
        let message = if block != 512 && block != 4096 {
            Some(format!(
                "the disk has blocks of {block} bytes: only 512 and 4096 are supported"
            ))
        } else if last >= u64::MAX / 4096 {
            Some(format!(
                "the disk reports {last} blocks, more than any disk has: check the target"
            ))
        } else {
            None
        };
        if let Some(message) = message {
            return Err(Error::new(ErrorKind::Configuration, message));
        }
        Ok(self)
    }
}
