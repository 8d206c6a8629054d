//! A logical unit from the initiator's side: runs commands until they succeed, fail for good or run out of time, and
//! acts on what the responses report (a restart, a changed capacity).
//!
//! Nothing here recurses: executing a command is one attempt on one session, follow-up queries are single attempts of
//! a bounded number, and all attempts of a request share its [`Patience`].

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::{Rc, Weak},
    sync::Arc,
};

use engine::{LaneFuture, LaneHandle, sync::Budget};
use scsi::Status;

use super::{
    cdb::{self, Cdb},
    claimed::Claimed,
    config::IscsiConfig,
    doors::Doors,
    doubt::Doubt,
    facts::Facts,
    identity::DiskIdentity,
    nexus::Nexus,
    own::End,
    paths::Paths,
    patience::Patience,
    sense::{Sense, Verdict},
    session::{Data, RESERVATION_CONFLICT, Reply},
    unflushed::Unflushed,
};
use crate::{Error, ErrorKind, Len, Result, announcer::Announcer};

/// How many times to read the capacity when the target keeps reporting that it may have changed.
const CAPACITY_ATTEMPTS_MAX: u32 = 3;

/// What a reply requires us to do, and why; `None`: it is good.
pub(super) type Judgement = Option<(Verdict, String)>;

/// A logical unit.
pub(super) struct Unit {
    pub(super) me: Weak<Unit>,
    pub(super) paths: Paths,
    pub(super) unflushed: Unflushed,
    pub(super) claimed: Claimed,
    /// The other lanes' access to it.
    pub(super) doors: Doors,
    /// Target restarts seen so far.
    restarts: Cell<u64>,
    /// Block size in bytes and length, once known.
    pub(super) extent: OnceCell<(u32, Len)>,
    /// What the disk has reported, once it is open.
    pub(super) facts: OnceCell<Arc<Facts>>,
    /// Whom to tell when the disk is no longer what it was.
    announcer: OnceCell<Announcer>,
    /// The disk's identity, once known: every path has to lead to it.
    pub(super) identity: OnceCell<DiskIdentity>,
    /// A task is querying which target ports may be used.
    pub(super) access_is_asked: Cell<bool>,
    /// A task repeats that query from time to time.
    pub(super) access_is_watched: Cell<bool>,
    /// Serializes resets.
    pub(super) resetting: Rc<Budget>,
    /// The capacity has to be read before anything else is sent: the target said that it changed, or may have while
    /// it could not tell us.
    may_have_grown: Cell<bool>,
    /// The disk was opened as one without a volatile cache.
    pub(super) writes_through: Cell<bool>,
    /// Whether that and the other mode parameters are still so; they have to be read before anything else is sent.
    pub(super) cache: Doubt,
    /// What is wrong with the capacity, as last logged; empty: nothing.
    problem: RefCell<String>,
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

impl Unit {
    /// A unit whose sessions are spread over `lanes` in turn, starting with the current lane.
    pub(super) fn new(config: IscsiConfig, lanes: &[LaneHandle]) -> Rc<Unit> {
        Rc::new_cyclic(|me| Unit {
            me: me.clone(),
            paths: Paths::new(config, lanes),
            unflushed: Unflushed::new(),
            claimed: Claimed::default(),
            doors: Doors::default(),
            restarts: Cell::new(0),
            extent: OnceCell::new(),
            facts: OnceCell::new(),
            announcer: OnceCell::new(),
            identity: OnceCell::new(),
            access_is_asked: Cell::new(false),
            access_is_watched: Cell::new(false),
            resetting: Budget::new(1),
            may_have_grown: Cell::new(false),
            writes_through: Cell::new(false),
            cache: Doubt::default(),
            problem: RefCell::default(),
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

    /// The capacity may have changed: it is read before the next command.
    pub(super) fn doubt_capacity(&self) {
        // One that is not known yet will be read anyway.
        if self.extent.get().is_some() {
            self.may_have_grown.set(true);
            self.paths.notify();
        }
    }

    pub(super) fn config(&self) -> &IscsiConfig {
        self.paths.config()
    }

    /// The patience of one request.
    pub(super) fn patience(&self) -> Patience {
        self.paths.patience()
    }

    /// Sends a command until it succeeds, fails for good, or `patience` runs out.
    pub(super) async fn run(
        &self,
        cdb: &Cdb,
        data: Data,
        patience: &mut Patience,
    ) -> Result<Reply> {
        loop {
            self.claimed.check()?;
            let Some(nexus) = self.paths.pick(cdb.changes_medium()) else {
                // Boxed, as below.
                LaneFuture::new(self.wait(cdb.changes_medium(), patience)).await?;
                continue;
            };
            if self.claimed.is_shaken() || self.may_have_changed() {
                // Boxed, as below.
                if !LaneFuture::new(self.settle(&nexus, patience)).await? {
                    continue;
                }
            }
            if self.writes_through.get() && cdb.changes_medium() {
                // A cache may have been found since the request began.
                self.unflushed.check()?;
            }
            let restarts = self.restarts.get();
            let sent = nexus.execute(cdb, data.clone()).await;
            // If a restart was noticed while a write was in flight, its GOOD does not count: the write may have been
            // executed before the restart and lost. It is resent.
            let stands = !cdb.changes_medium() || self.restarts.get() == restarts;
            match sent {
                Ok(reply) if reply.is_good() && stands => return Ok(reply),
                // Boxed, to keep the future of a successful command small.
                sent => LaneFuture::new(self.failed(&nexus, sent, cdb, patience)).await?,
            }
        }
    }

    /// Whether the disk's capacity, write cache or claim has to be checked before the next command.
    pub(super) fn is_unsettled(&self) -> bool {
        self.may_have_changed() || self.claimed.is_unsettled()
    }

    fn may_have_changed(&self) -> bool {
        self.may_have_grown.get() || self.cache.is_open()
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
        // A disk that was closed and is used again has let its paths go, and a lone path comes back on demand only.
        if self.paths.is_at_rest() || self.paths.live().next().is_none() {
            self.bring_back();
        }
        self.paths.wait(writes, patience).await
    }

    /// Settles what has to be known before the next command: the capacity, the claim and the write cache. Returns
    /// whether all are known; if not, the caller should try again.
    async fn settle(&self, nexus: &Rc<Nexus>, patience: &mut Patience) -> Result<bool> {
        self.look_at_capacity(nexus).await;
        // Other lanes were waiting for it.
        self.paths.notify();
        // The claim comes after the capacity, because any response may shake it, and then the command must not be sent.
        let known = match self.steady_claim(nexus).await {
            Ok(()) => self.settle_cache(nexus).await,
            lost => lost,
        };
        match known {
            Ok(()) if self.claimed.is_shaken() => {
                let why = "the target reports that its reservations may have ended";
                patience.again(true, why).await?;
                Ok(false)
            }
            Ok(()) => {
                // Another session is asked the same: a target that never answers is not asked for ever.
                if let Some(End { error, .. }) = nexus.link().end_now() {
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
        cdb: &Cdb,
        patience: &mut Patience,
    ) -> Result<()> {
        let reply = match sent {
            Ok(reply) => reply,
            Err(error) if !nexus.is_over() => return Err(error),
            Err(error) => return self.lost_with(nexus, &error, cdb, patience).await,
        };
        if reply.status == RESERVATION_CONFLICT && self.claimed.shake() {
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
            None => Ok(()),
            Some((Verdict::Fail(kind), why)) => Err(Error::new(kind, why)),
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
        cdb: &Cdb,
        patience: &mut Patience,
    ) -> Result<()> {
        let writes = cdb.changes_medium();
        let mut is_in_time = patience.lost(why);
        while writes && nexus.haunts() {
            if !self.paths.is_latest(nexus) {
                // Another nexus has taken its place, and nobody will end its writes any more.
                self.paths.leave_unfenced([nexus.clone()].into_iter());
                break;
            }
            if is_in_time.is_ok() {
                is_in_time = self.wait(true, patience).await;
            }
            if is_in_time.is_err() {
                // A caller that sees the error may write again, on any lane.
                self.closed_doors(|| nexus.haunts()).await;
                return is_in_time;
            }
        }
        if writes && nexus.is_unfenced() {
            return Err(Unit::unfenced());
        }
        is_in_time?;
        let mut counts = self.paths.counts.borrow_mut();
        counts.resent += 1;
        counts.writes_resent += u64::from(writes);
        Ok(())
    }

    /// The target has restarted and may have lost acknowledged writes.
    pub(super) fn restarted(&self) {
        self.restarts.set(self.restarts.get() + 1);
        let covered = self.unflushed.covered();
        self.tell_losses(self.unflushed.restarted(covered));
        self.judge_lanes(covered);
    }

    pub(super) fn tell_losses(&self, are_lost: bool) {
        if are_lost {
            tracing::error!(
                target_name = self.config().target_name,
                "the target restarted or failed with unflushed writes: they may be lost"
            );
        }
    }

    /// What a reply on `nexus` requires us to do. What it puts in doubt is looked at before the next command. A restart
    /// counts at once, but one that may be known already is left to whoever takes the nexus into use or has it catch up.
    pub(super) fn judge(&self, nexus: &Nexus, reply: &Reply) -> Judgement {
        if reply.is_good() {
            return None;
        }
        if reply.is_in_doubt {
            self.doubt_cache();
        }
        const BUSY: u8 = Status::Busy as u8;
        const TASK_SET_FULL: u8 = Status::TaskSetFull as u8;
        const TASK_ABORTED: u8 = Status::TaskAborted as u8;
        let verdict = match (reply.status, reply.sense()) {
            (_, Some(sense)) => {
                if sense.may_be_of_another_length() {
                    self.doubt_capacity();
                }
                if sense.tells_of_protection() {
                    self.doubt_cache();
                }
                if sense.tells_of_access() {
                    self.look_at_access();
                }
                if sense.may_have_ended_reservations() {
                    self.claimed.shake();
                }
                let config = self.config();
                (
                    sense.verdict(),
                    sense.report(&config.target_name, config.lun),
                )
            }
            (BUSY | TASK_SET_FULL, None) => {
                (Verdict::RetryLater, "the target stays busy".to_owned())
            }
            (TASK_ABORTED, None) => (Verdict::Retry, "another initiator aborts it".to_owned()),
            (RESERVATION_CONFLICT, None) => {
                let why = "another initiator has reserved the disk".to_owned();
                (Verdict::Fail(ErrorKind::ReservationConflict), why)
            }
            (status, None) => {
                let why = format!("the target returned the unknown SCSI status {status:02x}h");
                (Verdict::Fail(ErrorKind::Protocol), why)
            }
        };
        let verdict = match verdict {
            // A reset is no restart, which would have ended this session.
            _ if reply.sense().is_some_and(Sense::is_reset) && nexus.was_our_reset() => {
                let why = "the target reports our own reset".to_owned();
                (Verdict::Retry, why)
            }
            (Verdict::Fail(_), _) if reply.is_in_doubt => {
                let why = "the target reported that the LUN may be another disk".to_owned();
                (Verdict::Retry, why)
            }
            verdict => verdict,
        };
        if verdict.0 == Verdict::Restarted {
            match nexus.tells_old_stories() {
                true => nexus.hear_of_restart(),
                false => {
                    self.restarted();
                    self.hear_others(nexus);
                }
            }
        }
        Some(verdict)
    }

    /// Reads the capacity if it may have changed, and adopts it if the disk has grown. If the disk has shrunk or the
    /// query fails, the length stays; waiting commands go on in any case.
    async fn look_at_capacity(&self, nexus: &Rc<Nexus>) {
        let Some((block_size_bytes, len)) = self.extent.get() else {
            return;
        };
        if !self.may_have_grown.take() {
            return;
        }
        let target_name = &self.config().target_name;
        let from = len.bytes();
        let problem = match self.ask_capacity(nexus).await {
            Ok(Capacity {
                block_size_bytes: other,
                ..
            }) if other != *block_size_bytes => {
                format!("the disk now has blocks of {other} bytes: open the volume again")
            }
            Ok(capacity) => {
                let to = capacity.blocks * u64::from(*block_size_bytes);
                if to > from {
                    tracing::info!(target_name, from, to, "the disk has grown");
                    len.grow(to);
                    self.announce();
                }
                match to < from {
                    true => format!(
                        "the disk has shrunk to {to} bytes from {from}: restore its size and check \
                         the data"
                    ),
                    false => String::new(),
                }
            }
            // A session that is lost, as when the target stops, or that may lead to another disk says nothing: another one
            // or a later answer does.
            Err(_) if nexus.is_over() || nexus.is_in_doubt() => {
                self.may_have_grown.set(true);
                return;
            }
            Err(error) => {
                let problem =
                    format!("the disk may have grown, but its capacity cannot be read: {error}");
                if problem != *self.problem.borrow() {
                    tracing::warn!(target_name, "{problem}");
                }
                self.problem.replace(problem);
                return;
            }
        };
        // A target that repeats the same answer must not flood the log.
        if !problem.is_empty() && problem != *self.problem.borrow() {
            tracing::error!(target_name, "{problem}");
        }
        self.problem.replace(problem);
    }

    /// Reads the capacity with a bounded number of single attempts on this nexus.
    async fn ask_capacity(&self, nexus: &Rc<Nexus>) -> Result<Capacity> {
        let mut why = String::new();
        for _ in 0..CAPACITY_ATTEMPTS_MAX {
            let command = cdb::read_capacity_16(32);
            let reply = self.execute(nexus, &command, Data::In(32)).await?;
            match self.judge(nexus, &reply) {
                None => {
                    // This reply already reflects the change that the unit attention announced.
                    self.may_have_grown.set(false);
                    match Capacity::parse_16(&reply.data.to_vec()) {
                        Some(capacity) => return capacity,
                        None => return self.ask_short_capacity(nexus).await,
                    }
                }
                Some((Verdict::Fail(_), _)) => return self.ask_short_capacity(nexus).await,
                Some((_, again)) => why = again,
            }
        }
        self.may_have_grown.set(false);
        Err(Error::new(ErrorKind::TimedOut, why))
    }

    /// READ CAPACITY (10), for a disk that has no READ CAPACITY (16).
    async fn ask_short_capacity(&self, nexus: &Rc<Nexus>) -> Result<Capacity> {
        let command = cdb::read_capacity_10();
        let reply = self.execute(nexus, &command, Data::In(8)).await?;
        match self.judge(nexus, &reply) {
            None => Capacity::parse_10(&reply.data.to_vec()).ok_or_else(untold)?,
            Some((_, why)) => Err(Error::new(ErrorKind::TimedOut, why)),
        }
    }
}

pub(super) fn untold() -> Error {
    Error::new(ErrorKind::Protocol, "the disk reports no capacity")
}

impl Capacity {
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
