//! Tracks which writes a restart of the target may lose. A target that has *restarted* may have lost writes that it
//! had acknowledged but not made durable. Only its unit attention tells us, so from then on flushes fail and writes
//! are refused until the volume is reopened, unless nothing was unflushed. (A target that restarts in an orderly way
//! asks for a logout first, and we flush before it.)
//!
//! All lanes record their writes in the same epochs. Each also notes the last epoch in which a write of its own
//! succeeded; when the target has restarted, the home lane compares that with what flushes had covered.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    ErrorKind, Result,
    flush_epochs::{Epoch, FlushEpochs},
    flush_failure::FlushFailure,
    planted::{Bug, is_planted},
};

const HAS_CACHE: &str = "the disk had no volatile write cache when the volume was opened, and has one now, so what was \
                         written since may not be durable: open the volume again (start sanstone again), or turn the \
                         cache off at the target first";

/// The unflushed writes of a disk.
#[derive(Debug)]
pub(super) struct Unflushed {
    epochs: Arc<FlushEpochs>,
    /// Per lane, the home lane first.
    lanes: RefCell<Vec<Arc<Written>>>,
    /// Set when acknowledged writes may be lost.
    lost: Arc<FlushFailure>,
}

/// The writes of one lane, recorded by that lane only.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Written {
    epochs: Arc<FlushEpochs>,
    /// The epoch of the last successful write, whose loss would have to be reported; zero if there is none.
    promised: AtomicU64,
}

impl Written {
    /// Records the end of a write that only a flush makes durable. Call it before awaiting anything else, so that a
    /// restart sees it.
    pub(super) fn wrote(&self, well: bool) {
        let epoch = self.epochs.wrote();
        if well {
            self.promised.store(epoch.0, Ordering::Release);
        }
    }

    fn promised(&self) -> Epoch {
        Epoch(self.promised.load(Ordering::Acquire))
    }
}

impl Unflushed {
    pub(super) fn new() -> Unflushed {
        let unflushed = Unflushed {
            epochs: Arc::default(),
            lanes: RefCell::default(),
            lost: Arc::default(),
        };
        unflushed.lane();
        unflushed
    }

    /// Adds one more lane.
    pub(super) fn lane(&self) -> Arc<Written> {
        let written = Arc::new(Written {
            epochs: self.epochs.clone(),
            promised: AtomicU64::new(0),
        });
        self.lanes.borrow_mut().push(written.clone());
        written
    }

    /// As [`Written::wrote`], on the home lane.
    pub(super) fn wrote(&self, well: bool) {
        self.lanes.borrow()[0].wrote(well);
    }

    /// Begins a flush: returns what it will cover; `None`: nothing needs flushing.
    pub(super) fn to_flush(&self) -> Option<Epoch> {
        let home_wrote = self.lanes.borrow()[0].promised() > self.covered();
        if is_planted(Bug::FlushOfOnePath) && !home_wrote {
            return None;
        }
        self.epochs.begin()
    }

    /// As [`Self::to_flush`], if a restart could lose anything.
    pub(super) fn at_stake(&self) -> Option<Epoch> {
        let has_any = self.has_promised(0, self.covered());
        has_any.then(|| self.to_flush()).flatten()
    }

    /// A flush that covers `epoch` has succeeded.
    pub(super) fn flushed(&self, epoch: Epoch) {
        self.epochs.flushed(epoch);
    }

    /// What successful flushes have covered so far.
    pub(super) fn covered(&self) -> Epoch {
        self.epochs.covered()
    }

    /// The target restarted when flushes had covered `covered`. Returns whether acknowledged writes may be lost. A
    /// flush in flight has covered nothing yet.
    pub(super) fn restarted(&self, covered: Epoch) -> bool {
        self.loses(0, covered)
    }

    /// As [`Self::restarted`] for all lanes but the home lane, which has moved on since.
    pub(super) fn restarted_elsewhere(&self, covered: Epoch) -> bool {
        self.loses(1, covered)
    }

    fn loses(&self, first: usize, covered: Epoch) -> bool {
        let loses = self.has_promised(first, covered);
        if loses {
            self.lose();
        }
        loses
    }

    /// Whether any lane from `first` on has had a write succeed beyond `covered`.
    fn has_promised(&self, first: usize, covered: Epoch) -> bool {
        let lanes = self.lanes.borrow();
        lanes[first..].iter().any(|lane| lane.promised() > covered)
    }

    /// A flush has failed. If the disk has tried it, it is unknown what is durable, and another flush would not tell.
    /// Otherwise (another initiator has reserved the disk, no path can be used, the target has refused the command) nothing
    /// has happened to what was written: it stays to be covered by the next flush.
    pub(super) fn flush_failed(&self, kind: ErrorKind) {
        let was_tried = matches!(kind, ErrorKind::Medium | ErrorKind::NoSpace);
        if was_tried || is_planted(Bug::RefusedFlushLoses) {
            self.lose();
        }
    }

    fn lose(&self) {
        self.lost.set(
            "the target failed or restarted before writes were durable; they may be lost: check \
             the data, then open the volume again (restart sanstone)",
        );
    }

    /// The disk has a volatile cache, and this volume, which was opened without one, does not flush it.
    pub(super) fn find_cache(&self) {
        self.lost.set(HAS_CACHE);
    }

    /// It has none any more, and what was written while it had one is looked at by its owner.
    pub(super) fn lose_cache(&self) {
        self.lost.take_back(HAS_CACHE);
    }

    /// The failure flag that refuses writes, for other lanes.
    pub(super) fn failure(&self) -> Arc<FlushFailure> {
        self.lost.clone()
    }

    /// Refuses requests that would build on writes that may be lost.
    pub(super) fn check(&self) -> Result<()> {
        self.lost.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_the_writes_of_every_lane_that_ended_before_it() {
        let home = Unflushed::new();
        let other = home.lane();
        let inherited = home.to_flush().expect("others may have written");
        other.wrote(true);
        home.flushed(inherited);
        assert!(home.restarted(home.covered()), "it ended too late");
        let covers = home.to_flush().expect("the other lane has written");
        home.flushed(covers);
        assert_eq!(home.to_flush(), None);
        assert!(!home.restarted(home.covered()), "all was durable");
    }

    #[test]
    fn a_restart_loses_what_was_promised_and_a_later_flush_cannot_hide_it() {
        let home = Unflushed::new();
        let other = home.lane();
        let before = home.covered();
        other.wrote(false);
        assert!(!home.restarted(before), "it failed");
        other.wrote(true);
        home.flushed(home.to_flush().expect("more"));
        assert!(home.restarted(before));
        home.check().expect_err("writes may be lost");
    }
}
