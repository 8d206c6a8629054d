//! The disk as seen from a lane other than its home lane. Plain reads and writes go over the lane's own sessions, for
//! as long as the home lane permits ([`lanes`](super::lanes)); everything else is sent to the home lane as a message.
//!
//! Only the home lane handles anything but plain success: the target reports a unit attention only once, and the loss
//! of a session concerns every lane. After such an event the lane stops using its sessions, and the home lane
//! finishes the command.

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
    cdb::CdbBytes,
    config::Policy,
    facts::DiskFacts,
    link::{SentData, SentReply},
    own::{Own, OwnedSession, SessionEnd},
    session::{Data, Reply},
    transfer::{self, Way, whole},
    unflushed::Written,
};
use crate::{
    AtomicWrites, Claim, Durability, Error, ErrorKind, Result, Shape, Volume, fallback,
    flush_failure::FlushFailure,
    part::Resident,
    pass_on::pass_home,
    planted::{Bug, is_planted},
};

/// The disk on its home lane.
pub(super) trait AtHome: Volume {
    /// Finishes a command that the branch with this index could not complete by itself.
    fn go_on(
        self: Rc<Self>,
        index: usize,
        trouble: Option<Trouble>,
        command: BranchCommand,
    ) -> LaneFuture<'static, Result<Reply>>;

    /// Asks the disk whether it is still write-protected.
    fn look_at_protection(self: Rc<Self>) -> LaneFuture<'static, Result<()>>;
}

/// A command on its way to the home lane.
pub(super) struct BranchCommand {
    pub(super) cdb: CdbBytes,
    pub(super) data: SentData,
    /// Counts as a write that the next flush has to cover.
    pub(super) is_volatile: bool,
}

/// Why a command did not complete on a lane's own session. The lane stops using its sessions.
pub(super) struct Trouble {
    /// The term that ended with it.
    pub(super) term: Option<u64>,
    /// The session's number.
    pub(super) number: u64,
    pub(super) sent: Result<SentReply>,
    /// How the session ended, if it did.
    pub(super) end: Option<SessionEnd>,
}

/// What a branch shares with the home lane.
pub(super) struct Common {
    pub(super) disk: Arc<Resident<Weak<dyn AtHome>>>,
    /// The index of this branch.
    pub(super) index: usize,
    pub(super) facts: Arc<DiskFacts>,
    pub(super) policy: Policy,
    pub(super) written: Arc<Written>,
    pub(super) failure: Arc<FlushFailure>,
    /// Commands sent over the lane's own sessions.
    pub(super) commands: Arc<AtomicU64>,
}

/// A session that the home lane permits.
#[derive(Clone)]
struct Granted {
    /// Its unique number.
    number: u64,
    own: Rc<Own>,
    /// The home lane has made sure of the disk after so many of the session's doubts.
    doubts: u64,
}

/// A lane's own access to the disk.
pub(super) struct Branch {
    common: Common,
    /// The sessions that the home lane permits.
    granted: RefCell<Vec<Granted>>,
    /// The number of the current grant.
    term: Cell<u64>,
    /// How many times the home lane has revoked a grant.
    revocations: Cell<u64>,
    /// Where the search starts, to rotate among equal sessions.
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

    /// Permits the use of these sessions and no others, each as long as it has no more doubts than given with it.
    pub(super) fn grant(
        &self,
        term: u64,
        sessions: &[(Arc<Resident<Rc<OwnedSession>>>, u64)],
        claim: Option<Claim>,
    ) {
        let granted = sessions.iter().filter_map(|(kept, doubts)| {
            Some(Granted {
                number: kept.number(),
                own: kept.here().ok()?.0.clone(),
                doubts: *doubts,
            })
        });
        self.granted.replace(granted.collect());
        self.claim.replace(claim);
        self.term.set(term);
    }

    /// Withdraws the permission. A write that the target completes but that has not been reported to its caller by
    /// then is resent by the home lane, because the target may have lost it.
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

    fn pick(&self) -> Option<Granted> {
        let granted = self.granted.borrow();
        let takes_requests = |it: &Granted| it.own.takes_requests(it.doubts);
        if let [only] = &granted[..] {
            return takes_requests(only).then(|| only.clone());
        }
        let (count, first) = (granted.len(), self.turn.get());
        let live = (0..count).map(|n| (first + n) % count);
        let live = live.filter(|&n| takes_requests(&granted[n]));
        let policy = self.common.policy;
        let chosen = live.min_by_key(|&n| granted[n].own.in_flight.load(policy))?;
        self.turn.set(chosen + 1);
        Some(granted[chosen].clone())
    }

    /// Sends a command over a session of this lane. If it `is_volatile`, it is counted as a write on the lane where
    /// it completes.
    async fn send(&self, cdb: &CdbBytes, data: Data, is_volatile: bool) -> Result<Reply> {
        self.check_claim()?;
        let picked = self.pick();
        let Some(Granted {
            number,
            own,
            doubts,
        }) = picked
        else {
            // The home lane may know another way. Boxed, to keep the future of a successful command small.
            return LaneFuture::new(self.hand_over(None, cdb, data, is_volatile)).await;
        };
        let revocations = self.revocations.get();
        let sent = own.execute(cdb, data.clone()).await;
        let sent = sent.map(|reply| reply.knowing(doubts));
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

    /// Records a command's failure; nothing more is sent until the home lane has handled it.
    fn trouble(&self, number: u64, own: &Own, sent: Result<Reply>) -> Trouble {
        let granted = std::mem::take(&mut *self.granted.borrow_mut());
        Trouble {
            term: (!granted.is_empty()).then(|| self.term.get()),
            number,
            sent: sent.map(SentReply::from),
            end: SessionEnd::of(&own.session),
        }
    }

    /// Has the home lane finish a command.
    async fn hand_over(
        &self,
        trouble: Option<Trouble>,
        cdb: &CdbBytes,
        data: Data,
        is_volatile: bool,
    ) -> Result<Reply> {
        let index = self.common.index;
        let command = BranchCommand {
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

    /// Runs a request on the disk's home lane.
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
    fn facts(&self) -> &DiskFacts {
        &self.common.facts
    }

    async fn look_at_protection(&self) -> Result<()> {
        self.at_home(|disk| disk.look_at_protection()).await
    }

    fn check_unflushed(&self) -> Result<()> {
        self.common.failure.check()
    }

    async fn run(&self, cdb: &CdbBytes, data: Data) -> Result<Reply> {
        self.send(cdb, data, false).await
    }

    async fn run_write(&self, cdb: &CdbBytes, data: Payload, is_volatile: bool) -> Result<()> {
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
        if self.common.facts.flushes_for(durability) {
            return LaneFuture::new(async move {
                transfer::write(self, at, data, Durability::Cached).await?;
                self.flush().await
            });
        }
        transfer::write(self, at, data, durability)
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        None
    }

    fn write_atomic(&self, _: u64, _: Payload, _: Durability) -> LaneFuture<'_, Result<()>> {
        fallback::write_atomic()
    }

    pass_home! {
        self;
        write_zeroes, compare_and_write, flush, discard, allocation, member, close
    }
}
