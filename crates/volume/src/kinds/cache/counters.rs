//! A cache's counters, readable from any thread. Only the cache's lane writes them, so counting costs a plain load
//! and store.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// What caches have done since the beginning, and what they hold now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Reads answered from memory immediately.
    pub hits: u64,
    /// Reads that waited for blocks already being read.
    pub late_hits: u64,
    /// Reads that had to read from the child.
    pub misses: u64,
    /// Bytes read ahead.
    pub read_ahead_bytes: u64,
    /// Of those, bytes in blocks that a reader then used.
    pub read_ahead_used_bytes: u64,
    /// Of those, bytes in blocks that nobody will use: evicted, overwritten, or the read failed.
    pub read_ahead_wasted_bytes: u64,
    /// Memory holding cached blocks, in bytes.
    pub held_bytes: u64,
    /// Memory reserved for reads in flight, in bytes.
    pub reserved_bytes: u64,
}

/// The counters of the cache at one place of a configuration, across reopenings; clones share them.
#[derive(Clone, Debug, Default)]
pub struct CacheHandle(Arc<Mutex<Caches>>);

#[derive(Debug, Default)]
struct Caches {
    /// The totals of closed caches.
    past: CacheStats,
    open: Vec<Arc<Counters>>,
}

impl CacheHandle {
    /// Totals since the beginning, and what is held now.
    pub fn stats(&self) -> CacheStats {
        let caches = self.lock();
        let now = caches.open.iter().map(|counters| counters.stats());
        now.fold(caches.past, CacheStats::plus)
    }

    /// Registers the counters of a newly opened cache, until they are dropped.
    pub(super) fn open(&self) -> OpenCounters {
        let counters = Arc::new(Counters::default());
        self.lock().open.push(counters.clone());
        OpenCounters {
            handle: self.clone(),
            counters,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Caches> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters of an open cache. On drop their totals are kept, and nothing counts as held.
pub(super) struct OpenCounters {
    handle: CacheHandle,
    counters: Arc<Counters>,
}

impl OpenCounters {
    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for OpenCounters {
    fn drop(&mut self) {
        let mut caches = self.handle.lock();
        let last = CacheStats {
            held_bytes: 0,
            reserved_bytes: 0,
            ..self.counters.stats()
        };
        caches.past = caches.past.plus(last);
        let is_this = |other: &Arc<Counters>| Arc::ptr_eq(other, &self.counters);
        caches.open.retain(|other| !is_this(other));
    }
}

/// As [`CacheStats`], written by one lane.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) hits: Counter,
    pub(super) late_hits: Counter,
    pub(super) misses: Counter,
    pub(super) read_ahead_bytes: Counter,
    pub(super) read_ahead_used_bytes: Counter,
    pub(super) read_ahead_wasted_bytes: Counter,
    pub(super) held_bytes: Counter,
    pub(super) reserved_bytes: Counter,
}

impl Counters {
    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.get(),
            late_hits: self.late_hits.get(),
            misses: self.misses.get(),
            read_ahead_bytes: self.read_ahead_bytes.get(),
            read_ahead_used_bytes: self.read_ahead_used_bytes.get(),
            read_ahead_wasted_bytes: self.read_ahead_wasted_bytes.get(),
            held_bytes: self.held_bytes.get(),
            reserved_bytes: self.reserved_bytes.get(),
        }
    }
}

/// A number written by one lane and readable from any thread.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        crate::histogram::add(&self.0, count);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl CacheStats {
    fn plus(self, other: CacheStats) -> CacheStats {
        CacheStats {
            hits: self.hits + other.hits,
            late_hits: self.late_hits + other.late_hits,
            misses: self.misses + other.misses,
            read_ahead_bytes: self.read_ahead_bytes + other.read_ahead_bytes,
            read_ahead_used_bytes: self.read_ahead_used_bytes + other.read_ahead_used_bytes,
            read_ahead_wasted_bytes: self.read_ahead_wasted_bytes + other.read_ahead_wasted_bytes,
            held_bytes: self.held_bytes + other.held_bytes,
            reserved_bytes: self.reserved_bytes + other.reserved_bytes,
        }
    }
}
