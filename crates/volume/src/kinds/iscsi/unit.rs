//! A logical unit as its initiator knows it: runs commands until they have succeeded, failed for
//! good, or their time is up, and heeds what comes with the answers (a restart, another length).
//!
//! Nothing here nests: executing a command is one attempt on a session, whatever is to be asked
//! beside it is asked in plain attempts of a bounded number, and all of a request's attempts share
//! its [`Patience`].

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::Rc,
};

use engine::LaneFuture;
use scsi::Status;

use super::{
    cdb::{self, Cdb},
    claimed::Claimed,
    nexus::{Judgement, Nexus},
    patience::Patience,
    sense::{Sense, Verdict},
    session::{Data, RESERVATION_CONFLICT, Reply, Session},
    unflushed::Unflushed,
};
use crate::{Error, ErrorKind, Len, Result};

/// How often the capacity is asked for when the target says that it may be another one.
const CAPACITY_ATTEMPTS_MAX: u32 = 3;

/// A logical unit.
pub(super) struct Unit {
    pub(super) nexus: Nexus,
    pub(super) unflushed: Unflushed,
    pub(super) claimed: Claimed,
    /// Its block size in bytes, and its length, once they are known.
    pub(super) extent: OnceCell<(u32, Len)>,
    /// The target has said so, or has lost us and could not: its capacity is to be read before
    /// anything else is sent.
    may_have_grown: Cell<bool>,
    /// What is wrong with the capacity, of which the log has a line; empty: nothing.
    problem: RefCell<String>,
}

/// What READ CAPACITY tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) blocks: u64,
    pub(super) block_size_bytes: u32,
    /// Logical blocks of a physical one, as a power of two.
    pub(super) physical_exponent: u8,
    /// LBPME: blocks may be unmapped.
    pub(super) is_thin: bool,
    /// LBPRZ: a block that is unmapped reads as zeroes.
    pub(super) unmapped_reads_zeroes: bool,
}

impl Unit {
    pub(super) fn new(nexus: Nexus) -> Unit {
        Unit {
            nexus,
            unflushed: Unflushed::new(),
            claimed: Claimed::default(),
            extent: OnceCell::new(),
            may_have_grown: Cell::new(false),
            problem: RefCell::default(),
        }
    }

    /// The patience of one request.
    pub(super) fn patience(&self) -> Patience {
        Patience::new(self.nexus.config().reconnect_timeout)
    }

    /// Sends a command until it has succeeded, failed for good, or `patience` is at its end.
    pub(super) async fn run(
        &self,
        cdb: &Cdb,
        data: Data,
        patience: &mut Patience,
    ) -> Result<Reply> {
        loop {
            let session = self.nexus.session();
            self.claimed.check()?;
            if self.claimed.is_shaken() || self.may_have_grown.get() {
                // In a frame of its own, too.
                if !LaneFuture::new(self.settle(&session, patience)).await? {
                    continue;
                }
            }
            let sent = self.nexus.execute(&session, cdb, data.clone()).await;
            match sent {
                Ok(reply) if Unit::is_good(&reply) => return Ok(reply),
                // In a frame of its own, to keep that of a command that succeeds small.
                sent => LaneFuture::new(self.failed(&session, sent, cdb, patience)).await?,
            }
        }
    }

    /// Sees to what has to be known before the next command: how long the disk is, and whose. Says
    /// whether it is known; if not, it is worth another look.
    async fn settle(&self, session: &Rc<Session>, patience: &mut Patience) -> Result<bool> {
        self.look_at_capacity().await;
        // Last: whatever is answered may shake the claim, and then the command must not be sent.
        match self.steady_claim(session).await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                patience.again(false, &error.to_string()).await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until a command that did not succeed may be sent again.
    ///
    /// # Errors
    /// When it has failed for good, or `patience` is at its end.
    async fn failed(
        &self,
        session: &Rc<Session>,
        sent: Result<Reply>,
        cdb: &Cdb,
        patience: &mut Patience,
    ) -> Result<()> {
        let reply = match sent {
            Ok(reply) => reply,
            Err(error) if session.error().is_none() => return Err(error),
            Err(error) => {
                let judge = |reply: &Reply| self.judge(reply);
                let establish = |session: Rc<Session>| {
                    LaneFuture::new(async move { self.establish_claim(&session).await })
                };
                self.nexus
                    .reconnect(session, error, patience, &judge, &establish)
                    .await?;
                if cdb.changes_medium() && session.is_alive_at_target() {
                    let message = "the session was lost with the write in flight, which the \
                                   target could not be made to forget: it is not sent again";
                    return Err(Error::new(ErrorKind::Unreachable, message));
                }
                return Ok(());
            }
        };
        if reply.status == RESERVATION_CONFLICT && self.claimed.shake() {
            let why = "another initiator has reserved the disk";
            return patience.again(true, why).await;
        }
        match self.judge(&reply) {
            None => Ok(()),
            Some((Verdict::Fail(kind), why)) => Err(Error::new(kind, why)),
            Some((Verdict::Retry | Verdict::Restarted, why)) => patience.again(true, &why).await,
            Some((Verdict::RetryLater, why)) => patience.again(false, &why).await,
        }
    }

    fn is_good(reply: &Reply) -> bool {
        const GOOD: u8 = Status::Good as u8;
        const CONDITION_MET: u8 = Status::ConditionMet as u8;
        matches!(reply.status, GOOD | CONDITION_MET)
    }

    /// What a reply asks us to do. A restart of the target or a new length takes effect at once.
    pub(super) fn judge(&self, reply: &Reply) -> Judgement {
        if Unit::is_good(reply) {
            return None;
        }
        const BUSY: u8 = Status::Busy as u8;
        const TASK_SET_FULL: u8 = Status::TaskSetFull as u8;
        const TASK_ABORTED: u8 = Status::TaskAborted as u8;
        let verdict = match (reply.status, Sense::of(reply)) {
            (_, Some(sense)) => {
                // One whose length is not known yet is going to be asked anyway.
                if self.extent.get().is_some() && sense.may_be_of_another_length() {
                    self.may_have_grown.set(true);
                }
                if sense.may_have_ended_reservations() {
                    self.claimed.shake();
                }
                let config = self.nexus.config();
                (
                    sense.verdict(),
                    sense.report(&config.target_name, config.lun),
                )
            }
            (BUSY | TASK_SET_FULL | TASK_ABORTED, None) => {
                (Verdict::RetryLater, "the target stays busy".to_owned())
            }
            (RESERVATION_CONFLICT, None) => {
                let why = "another initiator has reserved the disk".to_owned();
                (Verdict::Fail(ErrorKind::ReservationConflict), why)
            }
            (status, None) => {
                let why = format!("the target answers with the unknown SCSI status {status:02x}h");
                (Verdict::Fail(ErrorKind::Protocol), why)
            }
        };
        if verdict.0 == Verdict::Restarted && self.unflushed.restarted() {
            tracing::error!(
                target_name = self.nexus.config().target_name,
                "the target has restarted, or failed, with unflushed writes: they may be lost"
            );
        }
        Some(verdict)
    }

    /// Takes the disk's length if it may be longer now, and is. One that is shorter or cannot be
    /// asked leaves this as long as it was; what waits for it goes on in any case.
    async fn look_at_capacity(&self) {
        let Some((block_size_bytes, len)) = self.extent.get() else {
            return;
        };
        if !self.may_have_grown.take() {
            return;
        }
        let target_name = &self.nexus.config().target_name;
        let from = len.bytes();
        let problem = match self.ask_capacity().await {
            Ok(Capacity {
                block_size_bytes: other,
                ..
            }) if other != *block_size_bytes => {
                format!("the disk has blocks of {other} bytes now: open the volume again")
            }
            Ok(capacity) => {
                let to = capacity.blocks * u64::from(*block_size_bytes);
                if to > from {
                    tracing::info!(target_name, from, to, "the disk has grown");
                    len.grow(to);
                }
                match to < from {
                    true => format!(
                        "the disk has become shorter, {to} bytes instead of {from}: make it as long \
                         as it was and check the data"
                    ),
                    false => String::new(),
                }
            }
            // The session is lost, as when the target stops: it is asked when there is another one.
            Err(_) if self.may_have_grown.get() => return,
            Err(error) => {
                let problem =
                    format!("the disk may have grown, and its capacity is not known: {error}");
                if problem != *self.problem.borrow() {
                    tracing::warn!(target_name, "{problem}");
                }
                self.problem.replace(problem);
                return;
            }
        };
        // A target that gives the same answer over and over does not fill the log with it.
        if !problem.is_empty() && problem != *self.problem.borrow() {
            tracing::error!(target_name, "{problem}");
        }
        self.problem.replace(problem);
    }

    /// Asks for the capacity in plain attempts on the session that there is.
    async fn ask_capacity(&self) -> Result<Capacity> {
        let mut why = String::new();
        for _ in 0..CAPACITY_ATTEMPTS_MAX {
            let session = self.nexus.session();
            let command = cdb::read_capacity_16(32);
            let reply = self.nexus.execute(&session, &command, Data::In(32)).await;
            let reply = match reply {
                // Whoever asked finds the session lost, and another one tells us again.
                Err(error) => {
                    self.may_have_grown.set(session.error().is_some());
                    return Err(error);
                }
                Ok(reply) => reply,
            };
            match self.judge(&reply) {
                None => {
                    // This has just been asked for: the attention was about what it tells.
                    self.may_have_grown.set(false);
                    match Capacity::parse_16(&reply.data.to_vec()) {
                        Some(capacity) => return capacity,
                        None => return self.ask_short_capacity().await,
                    }
                }
                Some((Verdict::Fail(_), _)) => return self.ask_short_capacity().await,
                Some((_, again)) => why = again,
            }
        }
        self.may_have_grown.set(false);
        Err(Error::new(ErrorKind::TimedOut, why))
    }

    /// As READ CAPACITY (10) tells it: of a disk that has no other.
    async fn ask_short_capacity(&self) -> Result<Capacity> {
        let session = self.nexus.session();
        let command = cdb::read_capacity_10();
        let reply = self.nexus.execute(&session, &command, Data::In(8)).await?;
        match self.judge(&reply) {
            None => Capacity::parse_10(&reply.data.to_vec()).ok_or_else(untold)?,
            Some((_, why)) => Err(Error::new(ErrorKind::TimedOut, why)),
        }
    }
}

pub(super) fn untold() -> Error {
    Error::new(ErrorKind::Protocol, "the disk tells no capacity")
}

impl Capacity {
    /// Parameter data of READ CAPACITY (16) (SBC-3 5.16.2); `None`: it is too short.
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

    /// Parameter data of READ CAPACITY (10) (SBC-3 5.15.2).
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
                "a disk with blocks of {block} bytes: only 512 and 4096 are used"
            ))
        } else if last >= u64::MAX / 4096 {
            Some(format!(
                "a disk of {last} blocks is longer than any: look at the target"
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
