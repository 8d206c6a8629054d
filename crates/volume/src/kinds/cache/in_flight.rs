//! The I/O between the cache and its child right now, and which of its results may be cached.
//!
//! A *fill* reads blocks from the child; readers of a block that is being filled wait for that fill instead of
//! reading again. A *write* may overtake a fill, in which case the fill returns the old content. Two rules keep stale
//! data out of the cache and keep readers from seeing old data after newer data:
//!
//! - While a write is in flight, its bytes are invalid in the cache: reads of them go to the child.
//! - A write detaches the fills of its blocks when it begins, and no fill is attached to them until it ends. Only an
//!   attached fill may be joined, and a fill's result is cached only for blocks still attached when the child has
//!   answered.
//!
//! If two writes to the same bytes are in flight, the cache cannot know which one the child executes last: both are
//! *contested*, and the bytes they touched stay invalid.

use std::{cell::RefCell, ops::Range, rc::Rc};

use engine::{Payload, range::overlap, sync::Notify};

use super::{block_map::BlockMap, blocks::Blocks};
use crate::Result;

/// A read of blocks from the child.
#[derive(Debug)]
pub(super) struct Fill {
    pub(super) blocks: Range<u64>,
    /// Whether it was started by read-ahead.
    pub(super) read_ahead: bool,
    /// Those of its blocks that a reader has waited for.
    wanted: RefCell<Vec<u64>>,
    result: RefCell<Option<Result<Payload>>>,
    ended: Notify,
}

impl Fill {
    /// Records that a reader waits for `block`; returns true the first time.
    pub(super) fn want(&self, block: u64) -> bool {
        let mut wanted = self.wanted.borrow_mut();
        let first = !wanted.contains(&block);
        if first {
            wanted.push(block);
        }
        first
    }

    /// Whether a reader has waited for `block`.
    pub(super) fn is_wanted(&self, block: u64) -> bool {
        self.wanted.borrow().contains(&block)
    }

    /// Completes the fill, handing the bytes of all its blocks, or the error, to the waiters.
    pub(super) fn end(&self, result: Result<Payload>) {
        *self.result.borrow_mut() = Some(result);
        self.ended.notify();
    }

    /// Waits for the bytes of all its blocks.
    pub(super) async fn result(&self) -> Result<Payload> {
        self.ended.wait_for(|| self.result.borrow().clone()).await
    }
}

/// Identifies a write in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteId(u64);

#[derive(Debug)]
struct WriteInFlight {
    id: WriteId,
    range: Range<u64>,
    contested: bool,
}

/// All fills and writes in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    blocks: Blocks,
    fills: BlockMap<Rc<Fill>>,
    writes: Vec<WriteInFlight>,
    last_id: u64,
}

impl InFlight {
    pub(super) fn new(blocks: Blocks) -> Self {
        InFlight {
            blocks,
            fills: BlockMap::default(),
            writes: Vec::new(),
            last_id: 0,
        }
    }

    /// The fill that a reader of `block` may join.
    pub(super) fn fill_of(&self, block: u64) -> Option<&Rc<Fill>> {
        self.fills.get(&block)
    }

    /// Begins a fill of `blocks`, none of which has an attached fill.
    pub(super) fn begin_fill(&mut self, blocks: Range<u64>, read_ahead: bool) -> Rc<Fill> {
        let fill = Rc::new(Fill {
            blocks: blocks.clone(),
            read_ahead,
            wanted: RefCell::default(),
            result: RefCell::default(),
            ended: Notify::new(),
        });
        for block in blocks.clone() {
            let other = self.fills.insert(block, fill.clone());
            debug_assert!(other.is_none(), "block {block} is filled twice");
        }
        for write in &self.writes {
            let written = self.blocks.touched(&write.range);
            for block in written.start.max(blocks.start)..written.end.min(blocks.end) {
                self.fills.remove(&block);
            }
        }
        fill
    }

    /// Whether a write that touches `block` is in flight.
    pub(super) fn is_written(&self, block: u64) -> bool {
        let mut writes = self.writes.iter();
        writes.any(|write| self.blocks.touched(&write.range).contains(&block))
    }

    /// Detaches `fill` from `block`, so that nobody joins it there any more. Returns whether its result for the block
    /// may be cached.
    pub(super) fn end_fill(&mut self, fill: &Rc<Fill>, block: u64) -> bool {
        match self.fills.get(&block) {
            Some(current) if Rc::ptr_eq(current, fill) => self.fills.remove(&block).is_some(),
            _ => false,
        }
    }

    /// Begins a write of the bytes `range`.
    pub(super) fn begin_write(&mut self, range: Range<u64>) -> WriteId {
        self.detach_fills(&range);
        let mut contested = false;
        for other in &mut self.writes {
            if overlap(&other.range, &range) {
                other.contested = true;
                contested = true;
            }
        }
        self.last_id += 1;
        let id = WriteId(self.last_id);
        self.writes.push(WriteInFlight {
            id,
            range,
            contested,
        });
        id
    }

    /// Whether another write overlaps this write in flight, so that the volume may end up with different bytes even
    /// if this write succeeds.
    pub(super) fn is_contested(&self, id: WriteId) -> bool {
        let mut writes = self.writes.iter();
        writes.any(|write| write.id == id && write.contested)
    }

    /// Ends a write.
    pub(super) fn end_write(&mut self, id: WriteId) {
        self.writes.retain(|write| write.id != id);
    }

    fn detach_fills(&mut self, range: &Range<u64>) {
        let touched = self.blocks.touched(range);
        if touched.end - touched.start > self.fills.len() as u64 {
            self.fills.retain(|block, _| !touched.contains(block));
        } else {
            for block in touched {
                self.fills.remove(&block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight() -> InFlight {
        InFlight::new(Blocks::new(4096, 512))
    }

    #[test]
    fn no_fill_is_attached_to_a_block_from_a_writes_beginning_to_its_end() {
        let mut state = in_flight();
        let before = state.begin_fill(0..4, false);
        let id = state.begin_write(4096..8192);
        assert!(state.fill_of(0).is_some() && state.fill_of(1).is_none());
        assert!(state.is_written(1) && !state.is_written(2));
        let during = state.begin_fill(1..2, false);
        assert!(state.fill_of(1).is_none());
        state.end_write(id);
        assert!(!state.end_fill(&during, 1));
        assert!(state.end_fill(&before, 0) && !state.end_fill(&before, 1));
        let after = state.begin_fill(1..2, false);
        assert!(state.fill_of(1).is_some() && state.end_fill(&after, 1));
    }

    #[test]
    fn overlapping_writes_are_contested_and_neighbours_are_not() {
        let mut state = in_flight();
        let first = state.begin_write(0..1024);
        let second = state.begin_write(512..1536);
        let beside = state.begin_write(1536..4096);
        assert!(state.is_contested(first) && state.is_contested(second));
        assert!(!state.is_contested(beside));
        state.end_write(first);
        assert!(state.is_contested(second), "the other may have come last");
        state.end_write(second);
        let alone = state.begin_write(0..1024);
        assert!(!state.is_contested(alone));
    }
}
