//! How often tasks may call the engine in one turn of a simulated lane. A task that never waits would otherwise loop for
//! ever, because simulated time passes only between turns.

use std::cell::{Cell, RefCell};

/// Reports the run that it belongs to, by a panic.
type CallReport = Box<dyn Fn()>;

/// The calls that are left.
pub(crate) struct Calls {
    left: Cell<u64>,
    report: RefCell<Option<CallReport>>,
}

impl Calls {
    /// No limit: a lane in the real world.
    pub(super) fn unlimited() -> Calls {
        Calls {
            left: Cell::new(u64::MAX),
            report: RefCell::default(),
        }
    }

    /// Calls `report` when there were more than [allowed](Calls::allow).
    pub(crate) fn limit(&self, report: CallReport) {
        self.report.replace(Some(report));
    }

    /// Allows this many from now on.
    pub(crate) fn allow(&self, calls: u64) {
        self.left.set(calls);
    }

    /// Counts a call.
    #[inline]
    pub(super) fn count(&self) {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => self.exceeded(),
        }
    }

    #[cold]
    fn exceeded(&self) {
        // What the panic drops may call as well.
        self.left.set(u64::MAX);
        if let Some(report) = &*self.report.borrow() {
            report();
        }
    }
}
