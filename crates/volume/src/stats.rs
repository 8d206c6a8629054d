//! Counts, bytes, errors and latencies of each kind of request. Every node of the graph is always counted, under its
//! path; a `stats` node only adds one more place to count.
//!
//! Each thread has counters that only it writes, so that counting costs a few plain loads and stores; a snapshot sums
//! up all threads. A histogram is allocated when the first request of its kind completes. Times are taken from the
//! lane's turns, which needs no clock read: from the turn in which a request arrived to the turn in which its answer
//! arrived, and zero within the same turn.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    thread::{self, ThreadId},
};

use engine::{Instant, LaneFuture, Payload, time};
use hdrhistogram::Histogram;

use crate::{
    CompareOutcome, Durability, Error, Result, SharedVolume, Volume,
    failing::{Failing, RequestFailure},
    histogram::{self, LaneHistogram, add},
    layers,
    pending::{self, Pending, Slot},
};

pub use crate::request_kind::RequestKind;

const KINDS: usize = RequestKind::ALL.len();

/// The counters of a node on all lanes; clones share them.
#[derive(Clone, Debug, Default)]
pub struct StatsHandle {
    threads: Arc<Mutex<Threads>>,
    failing: Arc<Failing>,
}

/// One entry per thread, however often it opens the volume.
type Threads = Vec<(ThreadId, Arc<LaneCounters>)>;

impl StatsHandle {
    /// All zero.
    pub fn new() -> Self {
        StatsHandle::default()
    }

    /// The totals since the beginning, over all lanes.
    pub fn snapshot(&self) -> Snapshot {
        let lanes = self.lock();
        Snapshot(RequestKind::ALL.map(|kind| {
            let mut sum = KindSnapshot {
                requests: 0,
                errors: 0,
                unanswered: 0,
                pending: 0,
                oldest: None,
                bytes: 0,
                latency_ns: histogram::empty(),
                sum_ns: 0,
            };
            for counters in lanes.iter().map(|(_, lane)| &lane.0[kind as usize]) {
                sum.errors += counters.errors.load(Ordering::Relaxed);
                sum.unanswered += counters.unanswered.load(Ordering::Relaxed);
                sum.bytes += counters.bytes.load(Ordering::Relaxed);
                let (pending, oldest) = counters.pending.all();
                sum.pending += pending;
                sum.oldest = pending::earlier(sum.oldest, oldest);
                if let Some(latency) = counters.latency.get() {
                    latency.add_to(&mut sum.latency_ns);
                    sum.sum_ns += latency.sum_ns();
                }
            }
            sum.requests = sum.latency_ns.len();
            sum
        }))
    }

    fn on_lane(&self) -> Arc<LaneCounters> {
        let here = thread::current().id();
        let mut threads = self.lock();
        if let Some((_, counters)) = threads.iter().find(|(thread, _)| *thread == here) {
            return counters.clone();
        }
        let counters = Arc::new(LaneCounters(
            RequestKind::ALL.map(|kind| KindCounters::new(kind, self.failing.clone())),
        ));
        threads.push((here, counters.clone()));
        counters
    }

    fn lock(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How its requests fail, from one that has until one that has not.
    pub fn failure(&self) -> Option<RequestFailure> {
        self.failing.gravest()
    }
}

/// The counters of nodes by path; displayed as one line for each kind of request that occurred.
#[derive(Clone, Debug)]
pub struct NodeReport(pub BTreeMap<String, Snapshot>);

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, snapshot) in &self.0 {
            let kinds = RequestKind::ALL.map(|kind| (kind, snapshot.of(kind)));
            let mut kinds = kinds
                .iter()
                .filter(|(_, counts)| counts.requests + counts.unanswered > 0)
                .peekable();
            if kinds.peek().is_none() {
                continue;
            }
            writeln!(f, "node {path}")?;
            for (kind, counts) in kinds {
                writeln!(f, "  {:<8} {counts}", kind.name())?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for KindSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / 1000.0;
        write!(
            f,
            "{:>12} requests, {} MiB, {} errors, {} unanswered, µs: {:.1} median, {:.1} 99 %, {:.1} longest",
            self.requests,
            self.bytes >> 20,
            self.errors,
            self.unanswered,
            us(self.latency_ns.value_at_quantile(0.5)),
            us(self.latency_ns.value_at_quantile(0.99)),
            us(self.latency_ns.max()),
        )
    }
}

/// The counters of all kinds of request.
#[derive(Clone, Debug)]
pub struct Snapshot([KindSnapshot; KINDS]);

impl Snapshot {
    /// How many requests of all kinds have not been answered yet, and the beginning of the second in which the oldest of
    /// these came.
    pub fn in_progress(&self) -> (u64, Option<Instant>) {
        let kinds = self.0.iter();
        kinds.fold((0, None), |(pending, oldest), counts| {
            let oldest = pending::earlier(oldest, counts.oldest);
            (pending + counts.pending, oldest)
        })
    }

    /// The counters of one kind.
    pub fn of(&self, kind: RequestKind) -> &KindSnapshot {
        &self.0[kind as usize]
    }
}

/// The counters of one kind of request.
#[derive(Clone, Debug)]
pub struct KindSnapshot {
    /// Requests that have completed.
    pub requests: u64,
    /// Those that completed with an error.
    pub errors: u64,
    /// Those whose caller gave up waiting; their outcome is unknown.
    pub unanswered: u64,
    /// Those that have not been answered yet.
    pub pending: u64,
    /// The beginning of the second in which the oldest of these came.
    pub oldest: Option<Instant>,
    /// Bytes read, written or discarded without an error.
    pub bytes: u64,
    /// Their latencies in nanoseconds, at the resolution of the lane's turns.
    pub latency_ns: Histogram<u64>,
    /// The exact sum of these latencies.
    pub sum_ns: u64,
}

#[derive(Debug)]
struct LaneCounters([KindCounters; KINDS]);

struct KindCounters {
    kind: RequestKind,
    failing: Arc<Failing>,
    errors: AtomicU64,
    unanswered: AtomicU64,
    bytes: AtomicU64,
    pending: Pending,
    latency: OnceLock<LaneHistogram<3>>,
}

impl fmt::Debug for KindCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KindCounters({:?})", self.latency)
    }
}

impl KindCounters {
    fn new(kind: RequestKind, failing: Arc<Failing>) -> KindCounters {
        KindCounters {
            kind,
            failing,
            errors: AtomicU64::default(),
            unanswered: AtomicU64::default(),
            bytes: AtomicU64::default(),
            pending: Pending::default(),
            latency: OnceLock::new(),
        }
    }

    /// A request to `volume` was answered.
    fn record(&self, volume: &SharedVolume, error: Option<&Error>, bytes: u64, took_ns: u64) {
        match error {
            None => {
                add(&self.bytes, bytes);
                self.failing.succeeded(self.kind);
            }
            Some(error) => {
                add(&self.errors, 1);
                let is_read_only = volume.shape().read_only.is_on();
                self.failing.failed(self.kind, error, is_read_only);
            }
        }
        let latency = self.latency.get_or_init(LaneHistogram::default);
        latency.record(took_ns);
    }
}

/// A volume whose requests are counted.
pub struct Stats {
    inner: SharedVolume,
    counters: Arc<LaneCounters>,
    sight: Sight,
    /// Its path in a tree.
    path: Option<Arc<str>>,
}

/// What a [watch](crate::layers) on a request sees of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sight {
    /// Whatever the node asks of others, or reports itself.
    Through,
    /// A medium at work.
    Medium,
    /// Our initiator, which reports what its commands take.
    Initiator,
}

impl Stats {
    /// `inner`, counted for the current lane in `handle`.
    pub fn new(inner: SharedVolume, handle: &StatsHandle) -> Self {
        Stats {
            inner,
            counters: handle.on_lane(),
            sight: Sight::Through,
            path: None,
        }
    }

    /// The same, where `inner` is a medium: a [watch](crate::layers) sees how long it works.
    pub fn of_medium(inner: SharedVolume, handle: &StatsHandle) -> Self {
        Stats::new(inner, handle).seen_as(Sight::Medium)
    }

    /// The same, seen by a watch as `sight`.
    pub(crate) fn seen_as(self, sight: Sight) -> Self {
        Stats { sight, ..self }
    }

    /// The same, for a node that a [trace](crate::layers) knows as `path`.
    pub fn found_at(self, path: Option<Arc<str>>) -> Self {
        Stats { path, ..self }
    }

    fn counted<'a, T: 'a>(
        &'a self,
        kind: RequestKind,
        bytes: u64,
        request: LaneFuture<'a, Result<T>>,
    ) -> LaneFuture<'a, Result<T>> {
        let counters = &self.counters.0[kind as usize];
        let what = || {
            let what = layers::TracedRequest {
                kind: kind.name(),
                len_bytes: bytes,
                is_medium: self.sight == Sight::Medium,
            };
            Some((self.path.clone()?, what))
        };
        if let Some(answer) = request.as_ready() {
            counters.record(&self.inner, answer.as_ref().err(), bytes, 0);
            layers::at_once(what);
            return request;
        }
        let request = match self.sight {
            Sight::Medium => layers::at_medium(request),
            Sight::Initiator => layers::at_initiator(request),
            Sight::Through => request,
        };
        let request = layers::at_node(request, what);
        LaneFuture::new(CountedRequest {
            request,
            volume: &self.inner,
            counters,
            bytes,
            began: None,
            is_answered: false,
        })
    }
}

/// A request being waited for; counts as unanswered if dropped before its answer. A hand-written future, because
/// every request of every node goes through it.
struct CountedRequest<'a, T> {
    request: LaneFuture<'a, Result<T>>,
    volume: &'a SharedVolume,
    counters: &'a KindCounters,
    bytes: u64,
    /// The turn in which it arrived, if it was not answered within that turn, and where it is counted.
    began: Option<(Instant, Slot)>,
    is_answered: bool,
}

impl<T> Future for CountedRequest<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let answer = Pin::new(&mut self.request).poll(cx);
        match &answer {
            Poll::Ready(result) => {
                self.is_answered = true;
                let took_ns = self.began.map_or(0, |(began, slot)| {
                    self.counters.pending.end(slot);
                    let ended = time::turn_began();
                    ended.as_ns().saturating_sub(began.as_ns())
                });
                let error = result.as_ref().err();
                self.counters
                    .record(self.volume, error, self.bytes, took_ns);
            }
            Poll::Pending => {
                let pending = &self.counters.pending;
                self.began.get_or_insert_with(|| {
                    let now = time::turn_began();
                    (now, pending.begin(now))
                });
            }
        }
        answer
    }
}

impl<T> Drop for CountedRequest<'_, T> {
    fn drop(&mut self) {
        if !self.is_answered {
            add(&self.counters.unanswered, 1);
            if let Some((_, slot)) = self.began {
                self.counters.pending.end(slot);
            }
        }
    }
}

impl Volume for Stats {
    crate::pass_on! { self => self.inner; shape, member, close, allocation, atomic_writes }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        let request = self.inner.read(at, len);
        self.counted(RequestKind::Read, len as u64, request)
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        let len = data.len() as u64;
        let request = self.inner.write(at, data, durability);
        self.counted(RequestKind::Write, len, request)
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        self.counted(RequestKind::Flush, 0, self.inner.flush())
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        let request = self.inner.discard(at, len);
        self.counted(RequestKind::Discard, len, request)
    }

    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        let len = data.len() as u64;
        let request = self.inner.write_atomic(at, data, durability);
        self.counted(RequestKind::Write, len, request)
    }

    fn compare_and_write(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        let len = data.len() as u64 / 2;
        let request = self.inner.compare_and_write(at, data, durability);
        self.counted(RequestKind::Write, len, request)
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        let request = self.inner.write_zeroes(at, len, may_discard, durability);
        self.counted(RequestKind::Discard, len, request)
    }
}

impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stats({:?})", self.counters)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use engine::{Duration, Lane, LaneConfig};

    use super::*;
    use crate::{
        ErrorKind, contract,
        kinds::fault::{Fault, FaultAction, FaultHandle, Rule},
        kinds::ram::Region,
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
                    faults.add(Rule::always(FaultAction::Delay(Duration::from_millis(3))));
                    stats.flush().await.expect("late");
                    faults.clear();
                    faults.add(Rule::always(FaultAction::Fail(ErrorKind::Medium)));
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
        assert!((2_700_000..all_ns).contains(&flush_ns), "{flush_ns} ns");
        assert_eq!(snapshot.of(RequestKind::Write).requests, 0);
        let shown = NodeReport(BTreeMap::from([("db/stats".into(), snapshot)])).to_string();
        assert!(shown.starts_with("node db/stats\n  read "), "{shown}");
        assert!(
            shown.contains("1 requests, 0 MiB, 1 errors, 0 unanswered"),
            "{shown}"
        );
        assert!(!shown.contains("write"), "{shown}");
    }

    #[test]
    fn a_request_that_is_dropped_is_counted_as_unanswered_and_never_as_done() {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let (handle, faults) = (StatsHandle::new(), FaultHandle::new());
            let ram = Region::new(1 << 20, 512).expect("memory").on_lane();
            let fault = Fault::new(Rc::new(ram), faults.clone());
            let stats = Stats::new(Rc::new(fault), &handle);
            faults.add(Rule::always(FaultAction::Hang));
            let mut write = stats.write(0, Payload::zeroes(512), Durability::Cached);
            let counted = || {
                let snapshot = handle.snapshot();
                let writes = snapshot.of(RequestKind::Write);
                let counts = [writes.requests, writes.bytes, writes.unanswered];
                (counts, writes.pending, writes.oldest)
            };
            let came = time::now();
            let ended = time::timeout(Duration::from_millis(1), &mut write).await;
            assert!(ended.is_none(), "it hangs");
            let (counts, pending, oldest) = counted();
            assert_eq!((counts, pending), ([0, 0, 0], 1));
            assert!(oldest.is_some_and(|oldest| oldest <= came), "{oldest:?}");
            drop(write);
            assert_eq!(counted(), ([0, 0, 1], 0, None));
        });
    }

    #[test]
    fn a_lane_that_opens_a_volume_again_counts_on() {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let handle = StatsHandle::new();
            for _ in 0..100 {
                let ram = Region::new(4096, 512).expect("memory").on_lane();
                let stats = Stats::new(Rc::new(ram), &handle);
                stats.read(0, 512).await.expect("it reads");
            }
            assert_eq!(handle.snapshot().of(RequestKind::Read).requests, 100);
            assert_eq!(handle.lock().len(), 1, "of one thread");
        });
    }
}
