//! The `stats` layer: counts, bytes, errors and latencies of each kind of request.
//!
//! Each lane has counters of its own that only it writes, so that counting costs a few plain loads
//! and stores; a snapshot reads all lanes' from any thread and adds them up.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use engine::{LaneFuture, Payload, time};
use hdrhistogram::Histogram;

use crate::{
    Allocation, AtomicWrites, Claim, Durability, Result, Shape, SharedVolume, Volume,
    histogram::{self, LaneHistogram, add},
};

const KINDS: usize = 4;

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards and writes of zeroes.
    Discard,
}

impl RequestKind {
    /// Every kind.
    pub const ALL: [RequestKind; KINDS] = [
        RequestKind::Read,
        RequestKind::Write,
        RequestKind::Flush,
        RequestKind::Discard,
    ];
}

/// The counters of a `stats` layer on all lanes; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct StatsHandle(Arc<Mutex<Vec<Arc<LaneCounters>>>>);

impl StatsHandle {
    /// Nothing counted yet.
    pub fn new() -> Self {
        StatsHandle::default()
    }

    /// What was counted since the beginning, on all lanes.
    pub fn snapshot(&self) -> Snapshot {
        let lanes = self.lock();
        Snapshot(RequestKind::ALL.map(|kind| {
            let mut sum = KindSnapshot {
                requests: 0,
                errors: 0,
                bytes: 0,
                latency_ns: histogram::empty(),
            };
            for counters in lanes.iter().map(|lane| &lane.0[kind as usize]) {
                sum.requests += counters.requests.load(Ordering::Relaxed);
                sum.errors += counters.errors.load(Ordering::Relaxed);
                sum.bytes += counters.bytes.load(Ordering::Relaxed);
                counters.latency.add_to(&mut sum.latency_ns);
            }
            sum
        }))
    }

    fn on_lane(&self) -> Arc<LaneCounters> {
        let counters = Arc::new(LaneCounters::default());
        self.lock().push(counters.clone());
        counters
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<LaneCounters>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts of every kind of request.
#[derive(Clone, Debug)]
pub struct Snapshot([KindSnapshot; KINDS]);

impl Snapshot {
    /// Those of one kind.
    pub fn of(&self, kind: RequestKind) -> &KindSnapshot {
        &self.0[kind as usize]
    }
}

/// Counts of one kind of request.
#[derive(Clone, Debug)]
pub struct KindSnapshot {
    /// Requests that have ended.
    pub requests: u64,
    /// Those of them that ended with an error.
    pub errors: u64,
    /// Bytes that were read, written or discarded without an error.
    pub bytes: u64,
    /// How long they took, in nanoseconds.
    pub latency_ns: Histogram<u64>,
}

#[derive(Debug, Default)]
struct LaneCounters([KindCounters; KINDS]);

#[derive(Default)]
struct KindCounters {
    requests: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    latency: LaneHistogram<5>,
}

impl fmt::Debug for KindCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KindCounters({:?})", self.requests)
    }
}

impl KindCounters {
    fn record(&self, ok: bool, bytes: u64, took_ns: u64) {
        add(&self.requests, 1);
        if ok {
            add(&self.bytes, bytes);
        } else {
            add(&self.errors, 1);
        }
        self.latency.record(took_ns);
    }
}

/// A volume whose requests are counted.
pub struct Stats {
    inner: SharedVolume,
    counters: Arc<LaneCounters>,
}

impl Stats {
    /// `inner`, counted in a part of `handle` for the current lane.
    pub fn new(inner: SharedVolume, handle: &StatsHandle) -> Self {
        Stats {
            inner,
            counters: handle.on_lane(),
        }
    }

    async fn counted<T>(
        &self,
        kind: RequestKind,
        bytes: u64,
        request: LaneFuture<'_, Result<T>>,
    ) -> Result<T> {
        let began = time::now();
        let result = request.await;
        let took = time::now().since(began).as_nanos() as u64;
        self.counters.0[kind as usize].record(result.is_ok(), bytes, took);
        result
    }
}

impl Volume for Stats {
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        let request = self.inner.read(at, len);
        LaneFuture::new(self.counted(RequestKind::Read, len as u64, request))
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        let len = data.len() as u64;
        let request = self.inner.write(at, data, durability);
        LaneFuture::new(self.counted(RequestKind::Write, len, request))
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(self.counted(RequestKind::Flush, 0, self.inner.flush()))
    }

    fn claim(&self, claim: &Claim) -> LaneFuture<'_, Result<()>> {
        self.inner.claim(claim)
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        self.inner.close()
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        let request = self.inner.discard(at, len);
        LaneFuture::new(self.counted(RequestKind::Discard, len, request))
    }

    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        self.inner.allocation(at, len)
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        self.inner.atomic_writes()
    }

    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        let len = data.len() as u64;
        let request = self.inner.write_atomic(at, data, durability);
        LaneFuture::new(self.counted(RequestKind::Write, len, request))
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        let request = self.inner.write_zeroes(at, len, may_discard, durability);
        LaneFuture::new(self.counted(RequestKind::Discard, len, request))
    }
}

impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stats({:?})", self.counters)
    }
}

#[cfg(test)]
mod tests {
    use std::{rc::Rc, time::Duration};

    use engine::{Lane, LaneConfig};

    use super::*;
    use crate::{
        ErrorKind, contract,
        layer::fault::{Action, Fault, FaultHandle, Rule},
        leaf::ram::Region,
    };

    #[test]
    fn keeps_the_contract() {
        contract::run(|_| {
            LaneFuture::new(async {
                let ram = Region::new(1 << 20, 512)?.on_lane();
                Ok(Rc::new(Stats::new(Rc::new(ram), &StatsHandle::new())) as _)
            })
        });
    }

    #[test]
    fn requests_of_all_lanes_are_counted_and_timed() {
        let region = Region::new(1 << 20, 512).expect("memory");
        let handle = StatsHandle::new();
        let faults = FaultHandle::new();
        let in_thread = |with_faults: bool| {
            let lane = Lane::new(&LaneConfig::default()).expect("a ring");
            lane.block_on(async {
                let fault = Fault::new(Rc::new(region.on_lane()), faults.clone());
                let stats = Stats::new(Rc::new(fault), &handle);
                for _ in 0..10 {
                    let _ = stats.read(0, 4096).await;
                }
                if with_faults {
                    faults.add(Rule::always(Action::Delay(Duration::from_millis(3))));
                    stats.flush().await.expect("late");
                    faults.clear();
                    faults.add(Rule::always(Action::Fail(ErrorKind::Medium)));
                    stats.discard(0, 512).await.expect_err("told");
                    faults.clear();
                }
            });
        };
        let began = std::time::Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| in_thread(false)).join().expect("no panic");
            scope.spawn(|| in_thread(true)).join().expect("no panic");
        });
        let snapshot = handle.snapshot();
        let reads = snapshot.of(RequestKind::Read);
        assert_eq!(
            (reads.requests, reads.errors, reads.bytes),
            (20, 0, 20 * 4096)
        );
        assert_eq!(reads.latency_ns.len(), 20);
        let discards = snapshot.of(RequestKind::Discard);
        assert_eq!(
            (discards.requests, discards.errors, discards.bytes),
            (1, 1, 0)
        );
        let flush_ns = snapshot.of(RequestKind::Flush).latency_ns.max();
        let all_ns = began.elapsed().as_nanos() as u64;
        assert!((2_900_000..all_ns).contains(&flush_ns), "{flush_ns} ns");
        assert_eq!(snapshot.of(RequestKind::Write).requests, 0);
    }
}
