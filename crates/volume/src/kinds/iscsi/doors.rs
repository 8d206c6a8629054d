//! The home lane's record of what each other lane's own sessions may be used for right now. [`lanes`](super::lanes)
//! keeps it up to date.

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
}

/// The door of one lane.
pub(super) struct Door {
    pub(super) branch: Arc<Resident<Rc<Branch>>>,
    /// The terms last sent to the lane; `None`: it has confirmed that it uses nothing.
    pub(super) granted: RefCell<Option<Terms>>,
    pub(super) term: Cell<u64>,
    /// Failed commands of this lane that are being handled.
    pub(super) troubles: Cell<u32>,
    /// Commands that the lane has sent by itself.
    commands: Arc<AtomicU64>,
}

/// What a lane may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// The numbers of sessions, each with how many of its doubts are settled.
    pub(super) nexuses: Vec<(u64, u64)>,
    pub(super) is_claimed: bool,
}

impl Door {
    /// A closed door for `branch`, whose own commands are counted in `commands`.
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
    /// Sets the doors, once.
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

    /// Commands that the other lanes have sent by themselves.
    pub(super) fn commands(&self) -> u64 {
        let all = self.all().iter();
        all.map(|door| door.commands.load(Relaxed)).sum()
    }

    /// The other lanes' access to the disk.
    pub(super) fn branches(&self) -> Vec<Arc<Resident<Rc<Branch>>>> {
        let all = self.all().iter();
        all.map(|door| door.branch.clone()).collect()
    }
}
