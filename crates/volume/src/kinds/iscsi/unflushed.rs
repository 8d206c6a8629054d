//! Which writes a restart of the target loses. A target that has *restarted* may have lost writes
//! that it had acknowledged and not yet made durable. Only its unit attention tells, so from then on
//! flushes fail, and writes are refused, until the volume is opened again, unless nothing was
//! unflushed: a target that restarts in good order asks for a logout, before which all is flushed.
//!
//! Each lane counts the writes that have ended on it, in counters that only it writes. The home lane
//! adds them to what a flush covers before the flush is sent, and looks at them when the target has
//! restarted.

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

/// The writes of a disk and its flushes, counted.
#[derive(Debug)]
pub(super) struct Unflushed {
    /// By lane, the home lane first.
    lanes: RefCell<Vec<Lane>>,
    /// Acknowledged writes may be lost.
    lost: Arc<FlushFailure>,
}

#[derive(Debug)]
struct Lane {
    written: Arc<Written>,
    /// How many of its writes a flush has covered.
    flushed: u64,
}

/// The writes of one lane, which alone writes this.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Written {
    /// Volatile writes that have ended so far, well or not.
    ended: AtomicU64,
    /// That count at the last write that ended well: its loss would have to be told.
    promised: AtomicU64,
}

/// Of each lane, how many writes a flush covers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Covers(Vec<u64>);

impl Written {
    /// A write has ended that is durable only after a flush, if it has happened at all. Said before
    /// anything else is waited for, so that a restart finds it said.
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

    /// The counters of one more lane.
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

    /// What a flush that begins now will cover; `None`: nothing is to be flushed.
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

    /// What a flush that begins now will cover, if a restart would lose any of it.
    pub(super) fn at_stake(&self) -> Option<Covers> {
        let has_any = {
            let lanes = self.lanes.borrow();
            let promised = |lane: &Lane| lane.written.promised.load(Ordering::Acquire);
            lanes.iter().any(|lane| promised(lane) > lane.flushed)
        };
        has_any.then(|| self.to_flush()).flatten()
    }

    /// A flush that covers so many has ended well.
    pub(super) fn flushed(&self, Covers(covers): Covers) {
        for (lane, covers) in self.lanes.borrow_mut().iter_mut().zip(covers) {
            lane.flushed = lane.flushed.max(covers);
        }
    }

    /// What flushes have covered so far.
    pub(super) fn covered(&self) -> Covers {
        Covers(
            self.lanes
                .borrow()
                .iter()
                .map(|lane| lane.flushed)
                .collect(),
        )
    }

    /// The target has restarted when flushes had covered so many. Gives whether that may have lost what
    /// it had acknowledged. A flush on its way has covered nothing yet.
    pub(super) fn restarted(&self, Covers(covered): &Covers) -> bool {
        self.loses(0, covered)
    }

    /// The same of all lanes but the home lane, which has gone on since.
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

    /// A flush has failed: nobody knows what is durable.
    pub(super) fn lose(&self) {
        self.lost.set(
            "the target failed or restarted before writes were durable; they may be lost: check the data, \
             then open the volume again (start sanstone again)",
        );
    }

    /// What refuses writes, for other lanes.
    pub(super) fn failure(&self) -> Arc<FlushFailure> {
        self.lost.clone()
    }

    /// Refuses what would build on writes that may be lost.
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
