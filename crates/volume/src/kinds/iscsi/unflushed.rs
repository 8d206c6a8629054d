//! Tracks which writes a restart of the target may lose. A target that has *restarted* may have lost writes that it
//! had acknowledged but not made durable. Only its unit attention tells us, so from then on flushes fail and writes
//! are refused until the volume is reopened, unless nothing was unflushed. (A target that restarts in an orderly way
//! asks for a logout first, and we flush before it.)
//!
//! Each lane counts its completed writes in counters that only that lane writes. The home lane snapshots them before
//! it sends a flush, and checks them when the target has restarted.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    Result,
    flush_failure::FlushFailure,
    planted::{Bug, is_planted},
};

/// Write and flush counters of a disk.
#[derive(Debug)]
pub(super) struct Unflushed {
    /// Per lane, the home lane first.
    lanes: RefCell<Vec<Lane>>,
    /// Set when acknowledged writes may be lost.
    lost: Arc<FlushFailure>,
}

#[derive(Debug)]
struct Lane {
    written: Arc<Written>,
    /// How many of its writes a flush has covered.
    flushed: u64,
}

/// The write counters of one lane, written by that lane only.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Written {
    /// Completed volatile writes, successful or not.
    ended: AtomicU64,
    /// `ended` as of the last successful write, whose loss would have to be reported.
    promised: AtomicU64,
}

/// Per lane, how many writes a flush covers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Covers(Vec<u64>);

impl Written {
    /// Records the end of a write that only a flush makes durable. Call it before awaiting anything else, so that a
    /// restart sees it counted.
    pub(super) fn wrote(&self, well: bool) {
        let ended = self.ended.load(Ordering::Relaxed) + 1;
        if well {
            self.promised.store(ended, Ordering::Release);
        }
        self.ended.store(ended, Ordering::Release);
    }
}

impl Unflushed {
    pub(super) fn new() -> Unflushed {
        let unflushed = Unflushed {
            lanes: RefCell::default(),
            lost: Arc::default(),
        };
        // Others may have written before the disk was opened.
        unflushed.lane().wrote(false);
        unflushed
    }

    /// Adds the counters of one more lane.
    pub(super) fn lane(&self) -> Arc<Written> {
        let written = Arc::new(Written::default());
        self.lanes.borrow_mut().push(Lane {
            written: written.clone(),
            flushed: 0,
        });
        written
    }

    /// As [`Written::wrote`], on the home lane.
    pub(super) fn wrote(&self, well: bool) {
        self.lanes.borrow()[0].written.wrote(well);
    }

    /// What a flush that begins now would cover; `None`: nothing needs flushing.
    pub(super) fn to_flush(&self) -> Option<Covers> {
        let lanes = self.lanes.borrow();
        let ended = |lane: &Lane| lane.written.ended.load(Ordering::Acquire);
        let covers: Vec<u64> = lanes.iter().map(ended).collect();
        let looked_at = match is_planted(Bug::FlushOfOnePath) {
            true => 1,
            false => lanes.len(),
        };
        let mut pairs = lanes[..looked_at].iter().zip(&covers);
        let has_more = pairs.any(|(lane, &covers)| covers > lane.flushed);
        has_more.then_some(Covers(covers))
    }

    /// What a flush that begins now would cover, if a restart could lose any of it.
    pub(super) fn at_stake(&self) -> Option<Covers> {
        let has_any = {
            let lanes = self.lanes.borrow();
            let promised = |lane: &Lane| lane.written.promised.load(Ordering::Acquire);
            lanes.iter().any(|lane| promised(lane) > lane.flushed)
        };
        has_any.then(|| self.to_flush()).flatten()
    }

    /// A flush with this coverage has succeeded.
    pub(super) fn flushed(&self, Covers(covers): Covers) {
        for (lane, covers) in self.lanes.borrow_mut().iter_mut().zip(covers) {
            lane.flushed = lane.flushed.max(covers);
        }
    }

    /// What successful flushes have covered so far.
    pub(super) fn covered(&self) -> Covers {
        Covers(
            self.lanes
                .borrow()
                .iter()
                .map(|lane| lane.flushed)
                .collect(),
        )
    }

    /// The target restarted when flushes had covered `covered`. Returns whether acknowledged writes may be lost. A
    /// flush in flight has covered nothing yet.
    pub(super) fn restarted(&self, Covers(covered): &Covers) -> bool {
        self.loses(0, covered)
    }

    /// As [`Self::restarted`] for all lanes but the home lane, which has moved on since.
    pub(super) fn restarted_elsewhere(&self, Covers(covered): &Covers) -> bool {
        self.loses(1, covered)
    }

    fn loses(&self, first: usize, covered: &[u64]) -> bool {
        let lanes = self.lanes.borrow();
        let promised = |lane: &Lane| lane.written.promised.load(Ordering::Acquire);
        let mut pairs = lanes.iter().zip(covered).skip(first);
        let loses = pairs.any(|(lane, &covered)| promised(lane) > covered);
        if loses {
            self.lose();
        }
        loses
    }

    /// A flush has failed: it is unknown what is durable.
    pub(super) fn lose(&self) {
        self.lost.set(
            "the target failed or restarted before writes were durable; they may be lost: check \
             the data, then open the volume again (restart sanstone)",
        );
    }

    /// The disk has a volatile cache, and this volume, which was opened without one, does not flush it.
    pub(super) fn find_cache(&self) {
        self.lost.set(
            "the disk had no volatile write cache when the volume was opened, and has one now, so what was \
             written since may not be durable: open the volume again (start sanstone again), or turn the \
             cache off at the target first",
        );
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
        assert!(home.restarted(&home.covered()), "it ended too late");
        let covers = home.to_flush().expect("the other lane has written");
        home.flushed(covers);
        assert_eq!(home.to_flush(), None);
        assert!(!home.restarted(&home.covered()), "all was durable");
    }

    #[test]
    fn a_restart_loses_what_was_promised_and_a_later_flush_cannot_hide_it() {
        let home = Unflushed::new();
        let other = home.lane();
        let before = home.covered();
        other.wrote(false);
        assert!(!home.restarted(&before), "it failed");
        other.wrote(true);
        home.flushed(home.to_flush().expect("more"));
        assert!(home.restarted(&before));
        home.check().expect_err("writes may be lost");
    }
}
