//! Which writes a restart of the target loses. A target that has *restarted* may have lost writes
//! that it had acknowledged and not yet made durable. Only its unit attention tells, so from then on
//! flushes fail, and writes are refused, until the volume is opened again, unless nothing was
//! unflushed: a target that restarts in good order asks for a logout, before which all is flushed.

use std::cell::Cell;

use crate::{Result, flush_failure::FlushFailure};

/// The writes of a disk and its flushes, counted.
#[derive(Debug)]
pub(super) struct Unflushed {
    /// Volatile writes that have ended so far, well or not, and one for what others may have
    /// written before the disk was opened.
    ended: Cell<u64>,
    /// That count at the last write that ended well: its loss would have to be told.
    promised: Cell<u64>,
    /// How many of them a flush has covered.
    flushed: Cell<u64>,
    /// Acknowledged writes may be lost.
    lost: FlushFailure,
}

impl Unflushed {
    pub(super) fn new() -> Unflushed {
        Unflushed {
            ended: Cell::new(1),
            promised: Cell::new(0),
            flushed: Cell::new(0),
            lost: FlushFailure::default(),
        }
    }

    /// A write has ended that is durable only after a flush, if it has happened at all. Said before
    /// anything else is waited for, so that a restart finds it said.
    pub(super) fn wrote(&self, well: bool) {
        self.ended.set(self.ended.get() + 1);
        if well {
            self.promised.set(self.ended.get());
        }
    }

    /// What a flush that begins now will cover; `None`: nothing is to be flushed.
    pub(super) fn to_flush(&self) -> Option<u64> {
        (self.ended.get() > self.flushed.get()).then_some(self.ended.get())
    }

    /// What a flush that begins now will cover, if a restart would lose any of it.
    pub(super) fn at_stake(&self) -> Option<u64> {
        (self.promised.get() > self.flushed.get()).then_some(self.ended.get())
    }

    /// A flush of so many has ended well.
    pub(super) fn flushed(&self, covers: u64) {
        self.flushed.set(covers.max(self.flushed.get()));
    }

    /// The target has restarted. Gives whether that may have lost what it had acknowledged. A flush
    /// on its way has covered nothing yet.
    pub(super) fn restarted(&self) -> bool {
        let loses = self.at_stake().is_some();
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

    /// Refuses what would build on writes that may be lost.
    pub(super) fn check(&self) -> Result<()> {
        self.lost.check()
    }
}
