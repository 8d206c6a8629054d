//! The pools that memory for payload comes from, how much of each is held, and who is short of it.

use std::{
    iter::Sum,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

/// Memory that nexuses can keep from one another. Reserves belong to no pool: nobody but their nexus can use them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pool {
    /// The lane's memory for unsolicited data.
    Unsolicited,
    /// The lane's memory for solicited data.
    Transfers,
    /// The memory that all lanes have in common.
    Common,
}

impl Pool {
    pub(super) const ALL: [Pool; 3] = [Pool::Unsolicited, Pool::Transfers, Pool::Common];
}

/// How much memory of each pool is held, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Held([usize; Pool::ALL.len()]);

impl Held {
    pub(super) fn add(&mut self, pool: Pool, bytes: usize) {
        self.0[pool as usize] += bytes;
    }

    /// How much of it comes from `pools`, in bytes.
    pub(super) fn of(&self, pools: &[Pool]) -> usize {
        pools.iter().map(|pool| self.0[*pool as usize]).sum()
    }
}

impl Sum for Held {
    fn sum<I: Iterator<Item = Held>>(all: I) -> Held {
        all.fold(Held::default(), |mut sum, held| {
            for pool in Pool::ALL {
                sum.add(pool, held.0[pool as usize]);
            }
            sum
        })
    }
}

/// The requests that found too little memory in a pool: those of one nexus, or those of everybody who uses the pool.
#[derive(Default, Debug)]
pub(super) struct Shortages {
    requests: AtomicU64,
    /// How many of them are waiting for memory.
    waiting: AtomicUsize,
}

impl Shortages {
    /// Counts a request that does not wait: it takes memory elsewhere, or is refused.
    pub(super) fn note(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Counts a request as waiting for as long as this exists: among those of everybody, and among those of its nexus.
pub(super) struct WaitingRequest<'a>([&'a Shortages; 2]);

impl<'a> WaitingRequest<'a> {
    pub(super) fn begin(all: &'a Shortages, own: &'a Shortages) -> WaitingRequest<'a> {
        let counted = [all, own];
        for shortages in counted {
            shortages.note();
            shortages.waiting.fetch_add(1, Ordering::Relaxed);
        }
        WaitingRequest(counted)
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        for shortages in self.0 {
            shortages.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
