//! Which writes no flush has covered yet: a clock that counts the flushes begun.
//!
//! A write that has ended records the current epoch, and a flush that begins closes it. The flush covers that epoch
//! and all before: a write that recorded one of them had ended when the flush began. Any lane may write. A write costs
//! two loads of memory that is rarely changed; only the first one after a flush stores.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The writes to one medium that no flush has covered.
#[derive(Debug)]
pub(crate) struct FlushEpochs {
    now: AtomicU64,
    written: AtomicU64,
    covered: AtomicU64,
}

/// The time between the beginnings of two flushes; later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch(pub(crate) u64);

/// As if written to: a process that was killed, or another machine, may have left writes in a cache, and a flush has to
/// cover them for whoever reads them there.
impl Default for FlushEpochs {
    fn default() -> Self {
        FlushEpochs {
            now: AtomicU64::new(1),
            written: AtomicU64::new(1),
            covered: AtomicU64::new(0),
        }
    }
}

impl FlushEpochs {
    /// Records the end of a write that only a flush makes durable, successful or not. Returns the epoch that a flush
    /// has to cover.
    pub(crate) fn wrote(&self) -> Epoch {
        let now = self.now.load(SeqCst);
        if self.written.load(SeqCst) < now {
            self.written.fetch_max(now, SeqCst);
        }
        Epoch(now)
    }

    /// The epoch of the last write.
    pub(crate) fn written(&self) -> Epoch {
        Epoch(self.written.load(SeqCst))
    }

    /// What successful flushes have covered. One that is still running has covered nothing yet.
    pub(crate) fn covered(&self) -> Epoch {
        Epoch(self.covered.load(SeqCst))
    }

    /// Begins a flush; returns what it covers if it succeeds. `None`: it has nothing to do.
    pub(crate) fn begin(&self) -> Option<Epoch> {
        let is_dirty = self.written() > self.covered();
        is_dirty.then(|| Epoch(self.now.fetch_add(1, SeqCst)))
    }

    /// A flush that covers `epoch` has succeeded.
    pub(crate) fn flushed(&self, epoch: Epoch) {
        self.covered.fetch_max(epoch.0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_covered_by_a_flush_begun_after_it() {
        let epochs = FlushEpochs::default();
        let inherited = epochs.begin().expect("others may have written");
        epochs.flushed(inherited);
        assert_eq!(epochs.begin(), None, "nothing is written");
        let written = epochs.wrote();
        assert_eq!(epochs.wrote(), written);
        assert!(written > epochs.covered());
        let flush = epochs.begin().expect("there is a write");
        epochs.flushed(flush);
        assert!(written <= epochs.covered());
        assert_eq!(epochs.begin(), None);
    }

    #[test]
    fn a_flush_covers_nothing_before_its_end_and_nothing_written_since_it_began() {
        let epochs = FlushEpochs::default();
        let first = epochs.begin().expect("others may have written");
        let second = epochs.begin().expect("the first has not ended");
        epochs.wrote();
        epochs.flushed(first);
        epochs.flushed(second);
        let third = epochs.begin().expect("the write came after both had begun");
        epochs.flushed(third);
        epochs.flushed(first);
        assert_eq!(epochs.begin(), None, "a late end takes nothing back");
    }
}
