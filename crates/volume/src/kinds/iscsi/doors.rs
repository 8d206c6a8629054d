//! Which lanes use sessions of their own right now. The home lane decides it: while all is well each
//! lane's door is open, and that lane's reads and writes go over its sessions without a word to the home
//! lane. When a session is lost with writes in flight, a reset is to be sent, or the claim has to be
//! established again, the doors are closed, each by a message that is answered, and every command comes
//! to the home lane until all is well again.
//!
//! That a door is closed a little late does no harm: a write whose session was lost is answered, also
//! with an error, only when it can do no harm any more or every door is closed. Until then it may happen
//! at any time, as every write that is not answered.

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use engine::{LaneHandle, Payload, spawn};

use super::{
    IscsiDisk,
    branch::{Branch, Common},
    cdb::Cdb,
    link::{End, SentReply},
    patience::Patience,
    session::{Data, Reply},
    transfer::whole,
    unflushed::Covers,
    unit::Unit,
};
use crate::{Error, ErrorKind, Result, part::Resident};

/// The doors of all lanes but the home lane.
#[derive(Default)]
pub(super) struct Doors {
    all: OnceCell<Vec<Door>>,
    /// Restarts of the target for which what other lanes have written is not known yet.
    judging: Cell<u32>,
}

/// One lane's.
struct Door {
    branch: Arc<Resident<Rc<Branch>>>,
    /// What the lane was told last; `None`: it has said that it uses nothing.
    granted: RefCell<Option<Terms>>,
    term: Cell<u64>,
    /// Commands of this lane that are seen to.
    troubles: Cell<u32>,
    /// Commands that the lane has sent by itself.
    commands: Arc<AtomicU64>,
}

/// What a lane may use.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Terms {
    nexuses: Vec<u64>,
    is_claimed: bool,
}

/// A command that has not succeeded on a lane's own session, where the door has closed by itself.
pub(super) struct Trouble {
    /// The term that has ended with it.
    pub(super) term: Option<u64>,
    /// The session.
    pub(super) number: u64,
    pub(super) sent: Result<SentReply>,
    /// How the session has ended, if it has.
    pub(super) end: Option<End>,
}

impl Doors {
    fn all(&self) -> &[Door] {
        self.all.get().map_or(&[], Vec::as_slice)
    }

    fn are_closed(&self) -> bool {
        let all = self.all().iter();
        all.map(|door| door.granted.borrow())
            .all(|door| door.is_none())
    }

    /// Commands that other lanes have sent by themselves.
    pub(super) fn commands(&self) -> u64 {
        let all = self.all().iter();
        all.map(|door| door.commands.load(Relaxed)).sum()
    }

    /// The other lanes' ways to the disk.
    pub(super) fn branches(&self) -> Vec<Arc<Resident<Rc<Branch>>>> {
        let all = self.all().iter();
        all.map(|door| door.branch.clone()).collect()
    }
}

/// Ends when the command has been seen to.
struct SeenTo<'a>(&'a Unit, usize);

impl Drop for SeenTo<'_> {
    fn drop(&mut self) {
        let SeenTo(unit, index) = self;
        let troubles = &unit.doors.all()[*index].troubles;
        troubles.set(troubles.get() - 1);
        unit.paths.notify();
    }
}

/// Gives each of `lanes` but the first, which is the current one, a way of its own to `disk`, as far as
/// there are sessions for them.
pub(super) async fn branch_out(disk: &Rc<IscsiDisk>, lanes: &[LaneHandle]) -> Result<()> {
    let unit = &disk.unit;
    let others = unit.paths.all().len().min(lanes.len());
    let Some(home) = lanes.first().filter(|_| others > 1) else {
        return Ok(());
    };
    let this = Resident::keep(home.clone(), Rc::downgrade(disk));
    let mut doors = Vec::new();
    for (index, lane) in lanes[1..others].iter().enumerate() {
        let commands = Arc::new(AtomicU64::new(0));
        let common = Common {
            disk: this.clone(),
            index,
            facts: disk.facts.clone(),
            policy: unit.config().multipath.policy,
            written: unit.unflushed.lane(),
            failure: unit.unflushed.failure(),
            commands: commands.clone(),
        };
        let make = || engine::LaneFuture::new(async { Ok((Rc::new(Branch::new(common)), ())) });
        let (branch, ()) = Resident::settle(lane, make).await?;
        doors.push(Door {
            branch,
            granted: RefCell::default(),
            term: Cell::new(0),
            troubles: Cell::new(0),
            commands,
        });
    }
    let _ = unit.doors.all.set(doors);
    for index in 0..unit.doors.all().len() {
        spawn(keep(unit.me.clone(), index));
    }
    Ok(())
}

/// Opens and closes one lane's door, for as long as there is the disk.
async fn keep(unit: Weak<Unit>, index: usize) {
    loop {
        let Some(this) = unit.upgrade() else { return };
        let changed = this.paths.changed();
        let notified = changed.notified();
        let wanted = this.wanted(index);
        let door = &this.doors.all()[index];
        if *door.granted.borrow() == wanted {
            drop(this);
            notified.await;
            continue;
        }
        let told = match &wanted {
            Some(terms) => {
                let nexuses = this.paths.there().into_iter();
                let nexuses = nexuses.filter(|there| terms.nexuses.contains(&there.number()));
                let nexuses: Vec<_> = nexuses.map(|there| there.kept().clone()).collect();
                let term = door.term.get() + 1;
                let claim = this.claimed.claim();
                door.term.set(term);
                door.granted.replace(wanted.clone());
                engine::LaneFuture::new(door.branch.call(move |branch: Rc<Branch>| async move {
                    branch.grant(term, &nexuses, claim);
                    Ok(())
                }))
            }
            None => engine::LaneFuture::new(door.branch.call(revoke)),
        };
        drop(this);
        let told = told.await;
        let Some(this) = unit.upgrade() else { return };
        if wanted.is_none() || told.is_err() {
            this.doors.all()[index].granted.replace(None);
            this.paths.notify();
        }
        if told.is_err() {
            // The lane has ended.
            return;
        }
    }
}

async fn revoke(branch: Rc<Branch>) -> Result<()> {
    branch.revoke();
    Ok(())
}

impl Unit {
    /// What a lane may use now.
    fn wanted(&self, index: usize) -> Option<Terms> {
        let door = &self.doors.all()[index];
        let is_well = self.paths.is_well()
            && !self.claimed.is_unsettled()
            && self.doors.judging.get() == 0
            && door.troubles.get() == 0;
        if !is_well {
            return None;
        }
        let lane = door.branch.lane();
        let own = self.paths.best_there().into_iter();
        let own = own.filter(|there| there.lane() == lane);
        let nexuses: Vec<u64> = own.map(|there| there.number()).collect();
        let is_claimed = self.claimed.claim().is_some();
        (!nexuses.is_empty()).then_some(Terms {
            nexuses,
            is_claimed,
        })
    }

    /// Waits until no other lane sends anything by itself, or there is no reason for it any more.
    pub(super) async fn closed_doors(&self, is_needed: impl Fn() -> bool) {
        let are_closed = || (self.doors.are_closed() || !is_needed()).then_some(());
        self.paths.changed().wait_for(are_closed).await;
    }

    /// Goes on with a command that another lane could not end by itself.
    pub(super) async fn go_on(
        &self,
        index: usize,
        trouble: Option<Trouble>,
        cdb: &Cdb,
        data: Data,
        is_volatile: bool,
    ) -> Result<Reply> {
        let len = match &data {
            Data::Out(payload) => Some(payload.len()),
            _ => None,
        };
        let mut patience = self.patience();
        let done = match trouble {
            None => Ok(()),
            Some(trouble) => self.see_to(index, trouble, cdb, &mut patience).await,
        };
        let done = match done {
            Ok(()) => self.run(cdb, data, &mut patience).await,
            Err(error) => Err(error),
        };
        if is_volatile {
            let well = done
                .as_ref()
                .is_ok_and(|reply| Some(reply.transferred) == len);
            self.unflushed.wrote(well);
        }
        done
    }

    /// Waits until a command that did not succeed on another lane may be sent again.
    async fn see_to(
        &self,
        index: usize,
        trouble: Trouble,
        cdb: &Cdb,
        patience: &mut Patience,
    ) -> Result<()> {
        let door = &self.doors.all()[index];
        if trouble.term == Some(door.term.get()) {
            door.granted.replace(None);
        }
        door.troubles.set(door.troubles.get() + 1);
        let _seen_to = SeenTo(self, index);
        self.paths.notify();
        let sent = trouble.sent.map(Reply::from);
        let Some(nexus) = self.paths.find_there(trouble.number) else {
            return match cdb.changes_medium() && self.paths.has_unfenced() {
                true => Err(Unit::unfenced()),
                false => Ok(()),
            };
        };
        if let (Some(end), Some(there)) = (trouble.end, nexus.link().there()) {
            there.ended(end);
        }
        match sent {
            Ok(reply) if Unit::is_good(&reply) => Ok(()),
            sent => self.failed(&nexus, sent, cdb, patience).await,
        }
    }

    /// The target has restarted: other lanes use their sessions no more until what they had written
    /// before is known.
    pub(super) fn judge_lanes(&self, covered: Covers) {
        let doors = self.doors.all();
        if doors.is_empty() {
            return;
        }
        self.doors.judging.set(self.doors.judging.get() + 1);
        self.paths.notify();
        let told: Vec<_> = doors.iter().map(|door| door.branch.call(revoke)).collect();
        let unit = self.me.clone();
        spawn(async move {
            for told in told {
                // A lane that has ended writes nothing.
                let _ = told.await;
            }
            if let Some(unit) = unit.upgrade() {
                unit.tell_losses(unit.unflushed.restarted_elsewhere(&covered));
                unit.doors.judging.set(unit.doors.judging.get() - 1);
                unit.paths.notify();
            }
        });
    }

    /// Waits until it is known what restarts of the target have lost.
    pub(super) async fn judged(&self) {
        let is_judged = || (self.doors.judging.get() == 0).then_some(());
        self.paths.changed().wait_for(is_judged).await;
    }

    /// A write on the home lane; one that `is_volatile` is counted for the next flush.
    pub(super) async fn write(&self, cdb: &Cdb, data: Payload, is_volatile: bool) -> Result<()> {
        let len = data.len();
        let written = self.run(cdb, Data::Out(data), &mut self.patience()).await;
        let written = whole(written, len);
        if is_volatile {
            self.unflushed.wrote(written.is_ok());
        }
        written
    }

    /// A write was lost with its session and may still happen.
    pub(super) fn unfenced() -> Error {
        let message = "the session was lost with the write in flight, which the \
                       target could not be made to forget: it is not sent again";
        Error::new(ErrorKind::Unreachable, message)
    }
}
