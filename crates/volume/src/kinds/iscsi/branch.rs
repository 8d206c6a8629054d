//! The disk as a lane that is not its home uses it: plain reads and writes go over sessions of the lane's
//! own, for as long as the home lane lets them ([`lanes`](super::lanes)); all else goes to the home lane
//! by a message.
//!
//! Whatever is no plain success is the home lane's to judge: the target tells a unit attention once, and
//! what a lost session means concerns every lane. The lane then uses its sessions no more, and the home
//! lane goes on with the command.

use std::{
    cell::{Cell, RefCell},
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use engine::{LaneFuture, Payload};

use super::{
    cdb::Cdb,
    config::Policy,
    facts::Facts,
    link::{SentData, SentReply},
    own::{End, Kept, Own},
    session::{Data, Reply},
    transfer::{self, Way, whole},
    unflushed::Written,
};
use crate::{
    Allocation, AtomicWrites, Claim, Durability, Error, ErrorKind, Result, Shape, Volume, fallback,
    flush_failure::FlushFailure,
    part::Resident,
    planted::{Bug, is_planted},
};

/// The disk on its home lane.
pub(super) trait AtHome: Volume {
    /// Goes on with a command that the branch with this index could not end by itself.
    fn go_on(
        self: Rc<Self>,
        index: usize,
        trouble: Option<Trouble>,
        command: Command,
    ) -> LaneFuture<'static, Result<Reply>>;
}

/// A command on its way to the home lane.
pub(super) struct Command {
    pub(super) cdb: Cdb,
    pub(super) data: SentData,
    /// Counts as a write for the next flush.
    pub(super) is_volatile: bool,
}

/// Why a command has not ended on a lane's own session, which the lane uses no more from then on.
pub(super) struct Trouble {
    /// The term that has ended with it.
    pub(super) term: Option<u64>,
    /// The session.
    pub(super) number: u64,
    pub(super) sent: Result<SentReply>,
    /// How the session has ended, if it has.
    pub(super) end: Option<End>,
}

/// What a branch has in common with the home lane.
pub(super) struct Common {
    pub(super) disk: Arc<Resident<Weak<dyn AtHome>>>,
    /// Which of the disk's branches it is.
    pub(super) index: usize,
    pub(super) facts: Arc<Facts>,
    pub(super) policy: Policy,
    pub(super) written: Arc<Written>,
    pub(super) failure: Arc<FlushFailure>,
    /// Commands that went over the lane's own sessions.
    pub(super) commands: Arc<AtomicU64>,
}

/// A lane's own way to the disk.
pub(super) struct Branch {
    common: Common,
    /// What the home lane lets be used, each with what tells it from all others.
    granted: RefCell<Vec<(u64, Rc<Own>)>>,
    /// Which time it has been let.
    term: Cell<u64>,
    /// How often the home lane has taken it back.
    revocations: Cell<u64>,
    /// Where the choice begins among equals.
    turn: Cell<usize>,
    claim: RefCell<Option<Claim>>,
}

impl Branch {
    pub(super) fn new(common: Common) -> Branch {
        Branch {
            common,
            granted: RefCell::default(),
            term: Cell::new(0),
            revocations: Cell::new(0),
            turn: Cell::new(0),
            claim: RefCell::default(),
        }
    }

    /// Lets these sessions be used, and no others.
    pub(super) fn grant(
        &self,
        term: u64,
        sessions: &[Arc<Resident<Rc<Kept>>>],
        claim: Option<Claim>,
    ) {
        let granted = sessions.iter().filter_map(|kept| {
            let own = kept.here().ok()?.0.clone();
            Some((kept.number(), own))
        });
        self.granted.replace(granted.collect());
        self.claim.replace(claim);
        self.term.set(term);
    }

    /// Lets none be used any more. What has ended well at the target and was not answered so far is for
    /// the home lane to send again: the target may have lost it since.
    pub(super) fn revoke(&self) {
        self.granted.borrow_mut().clear();
        self.revocations.set(self.revocations.get() + 1);
    }

    fn check_claim(&self) -> Result<()> {
        match &*self.claim.borrow() {
            Some(claim) if !is_planted(Bug::ClaimUncheckedByLanes) => claim.check(),
            _ => Ok(()),
        }
    }

    fn pick(&self) -> Option<(u64, Rc<Own>)> {
        let granted = self.granted.borrow();
        if let [only] = &granted[..] {
            return only.1.takes_requests().then(|| only.clone());
        }
        let (count, first) = (granted.len(), self.turn.get());
        let live = (0..count).map(|n| (first + n) % count);
        let live = live.filter(|&n| granted[n].1.takes_requests());
        let policy = self.common.policy;
        let chosen = live.min_by_key(|&n| granted[n].1.in_flight.load(policy))?;
        self.turn.set(chosen + 1);
        Some(granted[chosen].clone())
    }

    /// Sends a command over a session of this lane; what comes of it is counted as a write that
    /// `is_volatile` where it ends.
    async fn send(&self, cdb: &Cdb, data: Data, is_volatile: bool) -> Result<Reply> {
        self.check_claim()?;
        let Some((number, own)) = self.pick() else {
            // In a frame of its own, to keep that of a command that succeeds small.
            return LaneFuture::new(self.hand_over(None, cdb, data, is_volatile)).await;
        };
        let revocations = self.revocations.get();
        let sent = own.execute(cdb, data.clone()).await;
        let stands = !cdb.changes_medium() || self.revocations.get() == revocations;
        match sent {
            Ok(reply) if reply.is_good() && stands => {
                let commands = self.common.commands.load(Relaxed);
                self.common.commands.store(commands + 1, Relaxed);
                if is_volatile {
                    self.common.written.wrote(true);
                }
                Ok(reply)
            }
            sent => {
                let trouble = self.trouble(number, &own, sent);
                drop(own);
                LaneFuture::new(self.hand_over(Some(trouble), cdb, data, is_volatile)).await
            }
        }
    }

    /// A command did not succeed: nothing more is sent until the home lane has seen to it.
    fn trouble(&self, number: u64, own: &Own, sent: Result<Reply>) -> Trouble {
        let granted = std::mem::take(&mut *self.granted.borrow_mut());
        Trouble {
            term: (!granted.is_empty()).then(|| self.term.get()),
            number,
            sent: sent.map(SentReply::from),
            end: End::of(&own.session),
        }
    }

    /// Has the home lane go on with a command.
    async fn hand_over(
        &self,
        trouble: Option<Trouble>,
        cdb: &Cdb,
        data: Data,
        is_volatile: bool,
    ) -> Result<Reply> {
        let index = self.common.index;
        let command = Command {
            cdb: *cdb,
            data: data.into(),
            is_volatile,
        };
        let done = self.at_home(move |disk| async move {
            let done = disk.go_on(index, trouble, command).await;
            done.map(SentReply::from)
        });
        done.await.map(Reply::from)
    }

    /// Asks something of the disk on its home lane.
    fn at_home<R, F>(
        &self,
        request: impl FnOnce(Rc<dyn AtHome>) -> F + Send + 'static,
    ) -> LaneFuture<'static, Result<R>>
    where
        R: Send + 'static,
        F: Future<Output = Result<R>> + 'static,
    {
        let asked = self.common.disk.call(|disk: Weak<dyn AtHome>| async move {
            let closed = || Error::new(ErrorKind::Unreachable, "the volume has been closed");
            request(disk.upgrade().ok_or_else(closed)?).await
        });
        LaneFuture::new(asked)
    }
}

impl Way for Branch {
    fn facts(&self) -> &Facts {
        &self.common.facts
    }

    fn check_unflushed(&self) -> Result<()> {
        self.common.failure.check()
    }

    async fn run(&self, cdb: &Cdb, data: Data) -> Result<Reply> {
        self.send(cdb, data, false).await
    }

    async fn run_write(&self, cdb: &Cdb, data: Payload, is_volatile: bool) -> Result<()> {
        let len = data.len();
        whole(self.send(cdb, Data::Out(data), is_volatile).await, len)
    }
}

impl Volume for Branch {
    fn shape(&self) -> &Shape {
        &self.common.facts.shape
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        transfer::read(self, at, len)
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        transfer::write(self, at, data, durability)
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        self.at_home(|disk| async move { disk.flush().await })
    }

    fn claim(&self, claim: &Claim) -> LaneFuture<'_, Result<()>> {
        let claim = claim.clone();
        self.at_home(move |disk| async move { disk.claim(&claim).await })
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        self.at_home(|disk| async move { disk.close().await })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        self.at_home(move |disk| async move { disk.discard(at, len).await })
    }

    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        fallback::allocation(self, at, len)
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        None
    }

    fn write_atomic(&self, _: u64, _: Payload, _: Durability) -> LaneFuture<'_, Result<()>> {
        fallback::write_atomic()
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        self.at_home(move |disk| async move {
            disk.write_zeroes(at, len, may_discard, durability).await
        })
    }
}
