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

/// What each lane but the home lane may use.
#[derive(Default)]
pub(super) struct LaneGrants {
    all: OnceCell<Vec<LaneGrant>>,
}

/// What one lane may use.
pub(super) struct LaneGrant {
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

impl LaneGrant {
    /// None yet for `branch`, whose own commands are counted in `commands`.
    pub(super) fn new(branch: Arc<Resident<Rc<Branch>>>, commands: Arc<AtomicU64>) -> LaneGrant {
        LaneGrant {
            branch,
            granted: RefCell::default(),
            term: Cell::new(0),
            troubles: Cell::new(0),
            commands,
        }
    }
}

impl LaneGrants {
    /// Sets the grants, once.
    pub(super) fn set(&self, grants: Vec<LaneGrant>) {
        let _ = self.all.set(grants);
    }

    pub(super) fn all(&self) -> &[LaneGrant] {
        self.all.get().map_or(&[], Vec::as_slice)
    }

    /// Whether every lane has confirmed that it uses nothing.
    pub(super) fn are_revoked(&self) -> bool {
        let all = self.all().iter();
        all.map(|grant| grant.granted.borrow())
            .all(|granted| granted.is_none())
    }

    /// Commands that the other lanes have sent by themselves.
    pub(super) fn commands(&self) -> u64 {
        let all = self.all().iter();
        all.map(|grant| grant.commands.load(Relaxed)).sum()
    }

    /// The other lanes' access to the disk.
    pub(super) fn branches(&self) -> Vec<Arc<Resident<Rc<Branch>>>> {
        let all = self.all().iter();
        all.map(|grant| grant.branch.clone()).collect()
    }
}
