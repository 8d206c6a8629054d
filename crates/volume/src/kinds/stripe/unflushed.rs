//! Tracks, for all lanes together, which children have writes that no flush has covered, and whether a flush has
//! failed.
//!
//! Time is counted in flushes begun. When a child completes a write, the write records the current count for that
//! child. A flush closes the current count, and skips children whose last write was covered by an earlier flush. A
//! write in flight while a flush begins records either the old count (then its child completed it before that child's
//! flush began) or the new one (then the next flush covers it). A write costs two loads; only the first one after a
//! flush stores.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::{Error, Result, flush_failure::FlushFailure};

#[derive(Debug)]
pub(super) struct Unflushed {
    /// Flushes begun, plus one, so that zero means never.
    now: AtomicU64,
    children: Box<[Child]>,
    failed: FlushFailure,
}

#[derive(Debug)]
struct Child {
    /// Initially set as if written: others may have written before the stripe was opened.
    written_at: AtomicU64,
    flushed_to: AtomicU64,
}

impl Default for Child {
    fn default() -> Self {
        Child {
            written_at: AtomicU64::new(1),
            flushed_to: AtomicU64::new(0),
        }
    }
}

/// The count that a flush covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Covers(u64);

impl Unflushed {
    pub(super) fn new(children: usize) -> Self {
        Unflushed {
            now: AtomicU64::new(1),
            children: (0..children).map(|_| Child::default()).collect(),
            failed: FlushFailure::default(),
        }
    }

    /// An error if a flush has failed since the stripe was opened.
    pub(super) fn check(&self) -> Result<()> {
        self.failed.check()
    }

    /// Records the end of a write to `child`, successful or not.
    pub(super) fn wrote(&self, child: usize) {
        let now = self.now.load(SeqCst);
        let written_at = &self.children[child].written_at;
        if written_at.load(SeqCst) < now {
            written_at.fetch_max(now, SeqCst);
        }
    }

    /// Begins a flush; call it before flushing any child.
    pub(super) fn begin(&self) -> Covers {
        Covers(self.now.fetch_add(1, SeqCst))
    }

    /// Whether `child` has a write that no flush has covered. A write that a running flush is about to cover counts
    /// too, because that flush has not succeeded yet.
    pub(super) fn needs_flush(&self, child: usize) -> bool {
        let child = &self.children[child];
        child.written_at.load(SeqCst) > child.flushed_to.load(SeqCst)
    }

    /// `child` has completed a flush.
    pub(super) fn flushed(&self, child: usize, covers: Covers) {
        self.children[child].flushed_to.fetch_max(covers.0, SeqCst);
    }

    /// Records a child's failed flush. It is unknown which writes are lost, so all later writes and flushes are
    /// refused.
    pub(super) fn failed(&self, error: &Error) {
        self.failed.set(format!(
            "a flush failed, and data written before it may be lost: {error}; repair the child, \
             check the data, then open the volume again"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_needs_a_flush_from_its_write_to_the_end_of_a_flush_begun_after_it() {
        let state = Unflushed::new(2);
        assert!(state.needs_flush(0) && state.needs_flush(1), "inherited");
        let inherited = state.begin();
        state.flushed(0, inherited);
        state.flushed(1, inherited);
        assert!(!state.needs_flush(0));
        state.wrote(0);
        let first = state.begin();
        assert!(state.needs_flush(0) && !state.needs_flush(1));
        let second = state.begin();
        assert!(state.needs_flush(0), "the first flush has not ended yet");
        state.wrote(0);
        state.flushed(0, first);
        state.flushed(0, second);
        assert!(state.needs_flush(0), "the write came after both had begun");
        let third = state.begin();
        state.flushed(0, third);
        assert!(!state.needs_flush(0));
        state.flushed(0, first);
        assert!(!state.needs_flush(0), "a late end takes nothing back");
    }
}
