//! Samples throughput over time. The thread that runs SQLite also owns the shares' counters, so it samples
//! them itself: after each call into the disk it checks the clock and records a sample if the interval has
//! passed. This needs no second thread and no shared counter.

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    time::{Duration, Instant},
};

use crate::sqlite::DatabaseDisk;

/// Traffic over a share's link, payload only, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Traffic {
    /// From the share.
    pub read_bytes: u64,
    /// To the share.
    pub written_bytes: u64,
}

impl Traffic {
    /// The traffic added since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
        }
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
        }
    }
}

/// What each share transferred in an interval.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct TrafficSample {
    /// End of the interval, in seconds since the start of the run.
    pub at_s: f64,
    /// Its length in seconds.
    pub seconds: f64,
    /// One for each share.
    pub shares: Vec<Traffic>,
}

/// Time between samples.
const INTERVAL: Duration = Duration::from_millis(100);

/// Reads all shares' counters.
type Meters = Box<dyn Fn() -> Vec<Traffic>>;

/// The clock and the counters during one timed run.
pub(crate) struct Sampler {
    meters: Meters,
    run: RefCell<Option<TimedRun>>,
    next: Cell<Option<Instant>>,
}

struct TimedRun {
    begun: Instant,
    first: Vec<Traffic>,
    last: (Instant, Vec<Traffic>),
    samples: Vec<TrafficSample>,
}

/// A finished run: its length in seconds, what each share moved in it, and when.
pub(crate) struct Timed {
    pub(crate) seconds: f64,
    pub(crate) traffic: Vec<Traffic>,
    pub(crate) samples: Vec<TrafficSample>,
}

impl Sampler {
    pub(crate) fn new(meters: Meters) -> Rc<Self> {
        Rc::new(Self {
            meters,
            run: RefCell::new(None),
            next: Cell::new(None),
        })
    }

    /// Starts a timed run.
    pub(crate) fn begin(&self) {
        let first = (self.meters)();
        let begun = Instant::now();
        let last = (begun, first.clone());
        *self.run.borrow_mut() = Some(TimedRun {
            begun,
            first,
            last,
            samples: Vec::new(),
        });
        self.next.set(Some(begun + INTERVAL));
    }

    /// Ends the run.
    pub(crate) fn end(&self) -> Timed {
        let now = Instant::now();
        self.next.set(None);
        let Some(mut run) = self.run.borrow_mut().take() else {
            return Timed {
                seconds: 0.0,
                traffic: Vec::new(),
                samples: Vec::new(),
            };
        };
        run.sample(now, (self.meters)());
        run.join_short_tail();
        let traffic = run
            .last
            .1
            .iter()
            .zip(&run.first)
            .map(|(now, first)| now.since(*first));
        let seconds = now.duration_since(run.begun).as_secs_f64();
        Timed {
            seconds,
            traffic: traffic.collect(),
            samples: run.samples,
        }
    }

    fn tick(&self) {
        let Some(next) = self.next.get() else { return };
        let now = Instant::now();
        if now < next {
            return;
        }
        if let Some(run) = self.run.borrow_mut().as_mut() {
            run.sample(now, (self.meters)());
        }
        self.next.set(Some(now + INTERVAL));
    }
}

impl TimedRun {
    fn sample(&mut self, now: Instant, traffic: Vec<Traffic>) {
        let seconds = now.duration_since(self.last.0).as_secs_f64();
        if seconds > 0.0 {
            let shares = traffic
                .iter()
                .zip(&self.last.1)
                .map(|(now, last)| now.since(*last));
            let at_s = now.duration_since(self.begun).as_secs_f64();
            self.samples.push(TrafficSample {
                at_s,
                seconds,
                shares: shares.collect(),
            });
        }
        self.last = (now, traffic);
    }

    /// Merges a last interval of a few milliseconds into the previous one; its rate would be meaningless.
    fn join_short_tail(&mut self) {
        let short = |sample: &TrafficSample| sample.seconds < INTERVAL.as_secs_f64() / 2.0;
        if self.samples.len() < 2 || !self.samples.last().is_some_and(short) {
            return;
        }
        if let (Some(tail), Some(before)) = (self.samples.pop(), self.samples.last_mut()) {
            before.at_s = tail.at_s;
            before.seconds += tail.seconds;
            for (share, more) in before.shares.iter_mut().zip(tail.shares) {
                *share = share.plus(more);
            }
        }
    }
}

/// A disk that lets the sampler check the clock after each call.
pub(crate) struct SampledDisk {
    pub(crate) inner: Rc<dyn DatabaseDisk>,
    pub(crate) sampler: Rc<Sampler>,
}

impl DatabaseDisk for SampledDisk {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let result = self.inner.read_at(offset, buffer);
        self.sampler.tick();
        result
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let result = self.inner.write_at(offset, bytes);
        self.sampler.tick();
        result
    }

    fn flush(&self) -> io::Result<()> {
        let result = self.inner.flush();
        self.sampler.tick();
        result
    }
}
