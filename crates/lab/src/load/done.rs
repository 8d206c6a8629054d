//! What a load has done, with the times of all of its I/Os.

use engine::Duration;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// What a load has done.
#[derive(Clone, Debug)]
pub struct Done {
    /// I/Os completed.
    pub ios: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// How long it ran, to the end of its last I/O.
    pub elapsed: Duration,
    /// Time of each I/O in nanoseconds: of a closed loop from its beginning, of an open one from the moment
    /// at which it was to begin.
    pub latency_ns: Histogram<u64>,
    /// The part of it that the volume took, in nanoseconds; without the wait for an adapter's place and
    /// for a load that is behind.
    pub volume_ns: Histogram<u64>,
    /// How late the generator itself began each I/O of an open loop, in nanoseconds.
    pub late_ns: Histogram<u64>,
    /// Arrivals of an open loop that did not begin before the time was over.
    pub not_begun: u64,
    /// What it was like meanwhile.
    pub series: Vec<Point>,
}

/// A moment of a load, and what has happened since the one before.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
pub struct Point {
    /// Since the beginning, in milliseconds.
    pub at_ms: f64,
    /// I/Os that have arrived and not ended: those at the volume and those that wait before it.
    pub queue: u64,
    /// Of these, at the volume.
    pub at_volume: u64,
    /// I/Os a second.
    pub iops: f64,
    /// Mean latency of those that have ended, in microseconds; 0 if none has.
    pub latency_us: f64,
}

impl Done {
    /// That of a load of which the times of single I/Os are not known.
    pub(crate) fn without_times(elapsed: Duration) -> Done {
        Done::of_latencies(elapsed, histogram())
    }

    /// What is known where only latencies were measured.
    pub(crate) fn of_latencies(elapsed: Duration, latency_ns: Histogram<u64>) -> Done {
        Done {
            ios: latency_ns.len(),
            bytes: 0,
            elapsed,
            latency_ns,
            volume_ns: histogram(),
            late_ns: histogram(),
            not_begun: 0,
            series: Vec::new(),
        }
    }

    /// I/Os per second.
    pub fn iops(&self) -> f64 {
        self.ios as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Megabytes (of 1,000,000 bytes) per second.
    pub fn megabytes_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Mean latency in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.latency_ns.mean() / 1e3
    }

    /// The latency which a part `quantile` of all I/Os does not exceed, in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        quantile_us(&self.latency_ns, quantile)
    }

    /// Mean number of I/Os that had arrived and not ended, as it was counted from time to time.
    pub fn mean_queue(&self) -> f64 {
        let sum: u64 = self.series.iter().map(|point| point.queue).sum();
        sum as f64 / self.series.len().max(1) as f64
    }

    /// The same by Little's law: arrivals a second times the mean time that each took.
    pub fn queue_by_little(&self) -> f64 {
        self.iops() * self.mean_us() / 1e6
    }
}

/// The same of any histogram in nanoseconds.
pub(crate) fn quantile_us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}

/// From 100 ns to a minute, to 1 %.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 60_000_000_000, 2).expect("valid bounds")
}
