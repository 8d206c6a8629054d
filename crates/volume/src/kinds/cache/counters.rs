//! What a cache has done and holds, for whoever looks from another thread. Only the lane of the cache writes:
//! counting costs a plain load and store.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// What caches have done since the beginning, and what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Reads answered from memory at once.
    pub hits: u64,
    /// Reads that waited for blocks which were already on their way.
    pub late_hits: u64,
    /// Reads that had to ask the child.
    pub misses: u64,
    /// What was asked for ahead of a reader.
    pub read_ahead_bytes: u64,
    /// Of that, the blocks that a reader then read.
    pub read_ahead_used_bytes: u64,
    /// Of that, the blocks that nobody will read: evicted or overwritten before, or their read failed.
    pub read_ahead_wasted_bytes: u64,
    /// Memory in use for cached blocks.
    pub held_bytes: u64,
    /// Memory set aside for reads in flight.
    pub reserved_bytes: u64,
}

/// The counters of the cache at one place of a configuration, however often it is opened; clones are the
/// same.
#[derive(Clone, Debug, Default)]
pub struct CacheHandle(Arc<Mutex<Caches>>);

#[derive(Debug, Default)]
struct Caches {
    /// What those have done that are closed.
    past: CacheStats,
    open: Vec<Arc<Counters>>,
}

impl CacheHandle {
    /// What was done since the beginning, and what is held now.
    pub fn stats(&self) -> CacheStats {
        let caches = self.lock();
        let now = caches.open.iter().map(|counters| counters.stats());
        now.fold(caches.past, CacheStats::plus)
    }

    /// Counts a cache that is opened, until the counters are dropped.
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

/// The counters of an open cache. When they go, what was counted stays, and nothing is held any more.
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

/// A number that one lane writes and any thread reads.
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
