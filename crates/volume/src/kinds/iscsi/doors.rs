//! What the home lane knows of the other lanes that use sessions of their own: what each may use right now.
//! [`lanes`](super::lanes) sees to it.

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::branch::Branch;
use crate::part::Resident;

/// The doors of all lanes but the home lane.
#[derive(Default)]
pub(super) struct Doors {
    all: OnceCell<Vec<Door>>,
    /// Restarts of the target for which what other lanes have written is not known yet.
    pub(super) judging: Cell<u32>,
}

/// One lane's.
pub(super) struct Door {
    pub(super) branch: Arc<Resident<Rc<Branch>>>,
    /// What the lane was told last; `None`: it has said that it uses nothing.
    pub(super) granted: RefCell<Option<Terms>>,
    pub(super) term: Cell<u64>,
    /// Commands of this lane that are seen to.
    pub(super) troubles: Cell<u32>,
    /// Commands that the lane has sent by itself.
    commands: Arc<AtomicU64>,
}

/// What a lane may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) nexuses: Vec<u64>,
    pub(super) is_claimed: bool,
}

impl Door {
    /// The door of `branch`, closed, which sends so many commands by itself.
    pub(super) fn new(branch: Arc<Resident<Rc<Branch>>>, commands: Arc<AtomicU64>) -> Door {
        Door {
            branch,
            granted: RefCell::default(),
            term: Cell::new(0),
            troubles: Cell::new(0),
            commands,
        }
    }
}

impl Doors {
    /// These are the doors.
    pub(super) fn set(&self, doors: Vec<Door>) {
        let _ = self.all.set(doors);
    }

    pub(super) fn all(&self) -> &[Door] {
        self.all.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn are_closed(&self) -> bool {
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
