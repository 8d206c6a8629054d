//! The results of a load, including the times of all its I/Os.

use engine::Duration;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use volume::layers::Layers;

/// The results of a load.
#[derive(Clone, Debug)]
pub struct Done {
    /// I/Os completed.
    pub ios: u64,
    /// Bytes transferred by them.
    pub bytes: u64,
    /// Duration of the load, up to the end of its last I/O.
    pub elapsed: Duration,
    /// Latency of each I/O in nanoseconds: in a closed loop from its start, in an open loop from its intended
    /// start.
    pub latency_ns: Histogram<u64>,
    /// Service time of each I/O in nanoseconds: from when it was sent to the volume. It excludes waiting for the
    /// adapter and for a load that has fallen behind.
    pub service_ns: Histogram<u64>,
    /// How late the generator itself started each I/O of an open loop, in nanoseconds.
    pub late_ns: Histogram<u64>,
    /// Arrivals of an open loop that had not started when the time was over.
    pub not_begun: u64,
    /// The state of the load over time.
    pub series: Vec<Point>,
    /// If the load was watched: a few thousand I/Os sampled over its whole duration.
    pub seen: Vec<SeenIo>,
}

/// Where the time of an I/O went.
#[derive(Clone, Copy, Debug)]
pub struct SeenIo {
    /// Its latency, measured as in [`Done::latency_ns`], in nanoseconds.
    pub latency_ns: u64,
    /// Its service time, measured as in [`Done::service_ns`], in nanoseconds.
    pub service_ns: u64,
    /// How the volume's part divides into layers.
    pub layers: Layers,
}

/// A sample of a stream of I/Os in bounded memory: when it is full, it drops every other one and from then on
/// keeps half as many.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    pub(super) ios: Vec<SeenIo>,
    /// The sampling interval, as a power of two.
    one_of: u32,
    count: u64,
}

impl Sampled {
    const IOS_MAX: usize = 16_384;

    pub(super) fn add(&mut self, io: SeenIo) {
        let is_one = self.count.trailing_zeros() >= self.one_of;
        self.count += 1;
        if !is_one {
            return;
        }
        if self.ios.len() == Self::IOS_MAX {
            let mut index = 0;
            self.ios.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.one_of += 1;
        }
        self.ios.push(io);
    }
}

/// A moment of a load, and what happened since the previous point.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
pub struct Point {
    /// Time since the start, in milliseconds.
    pub at_ms: f64,
    /// I/Os that have arrived and not completed: those at the volume and those waiting in front of it.
    pub queue: u64,
    /// Those of them at the volume.
    pub at_volume: u64,
    /// I/Os per second.
    pub iops: f64,
    /// Mean latency of the I/Os that completed, in microseconds; 0 if there were none.
    pub latency_us: f64,
}

impl Done {
    /// The result of a load for which the times of single I/Os are unknown.
    pub(crate) fn without_times(elapsed: Duration) -> Done {
        Done {
            ios: 0,
            bytes: 0,
            elapsed,
            latency_ns: histogram(),
            service_ns: histogram(),
            late_ns: histogram(),
            not_begun: 0,
            series: Vec::new(),
            seen: Vec::new(),
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

    /// The latency that a fraction `quantile` of all I/Os does not exceed, in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        quantile_us(&self.latency_ns, quantile)
    }

    /// Mean number of I/Os that had arrived and not completed, from periodic samples.
    pub fn mean_queue(&self) -> f64 {
        let sum: u64 = self.series.iter().map(|point| point.queue).sum();
        sum as f64 / self.series.len().max(1) as f64
    }

    /// The same by Little's law: arrival rate times mean latency.
    pub fn queue_by_little(&self) -> f64 {
        self.iops() * self.mean_us() / 1e6
    }
}

/// A quantile of any histogram in nanoseconds, converted to microseconds.
pub(crate) fn quantile_us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}

/// A histogram in nanoseconds as pairs of a lower bound in microseconds and a count. Each bucket spans an
/// eighth of a power of two.
pub(crate) fn buckets_us(histogram: &Histogram<u64>) -> Vec<(f64, u64)> {
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    for recorded in histogram.iter_recorded() {
        let value_ns = recorded.value_iterated_to().max(1);
        let shift = value_ns.ilog2().saturating_sub(3);
        let from_us = (value_ns >> shift << shift) as f64 / 1e3;
        match buckets.last_mut() {
            Some((last_us, count)) if *last_us == from_us => *count += recorded.count_at_value(),
            _ => buckets.push((from_us, recorded.count_at_value())),
        }
    }
    buckets
}

/// From 100 ns to a minute with a precision of 0.1 %, so that comparisons with other tools' percentiles add
/// no error.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 60_000_000_000, 3).expect("valid bounds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_every_value_at_or_above_where_they_begin() {
        let mut all = histogram();
        for value_ns in [2_000, 90_000, 90_100, 300_000_000, 300_000_000, 550_000_000] {
            all.record(value_ns).expect("within bounds");
        }
        let buckets = buckets_us(&all);
        let counts: Vec<u64> = buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1, 2, 2, 1]);
        assert!(buckets.windows(2).all(|two| two[0].0 < two[1].0));
        for ((from_us, _), value_us) in buckets.iter().zip([2.0, 90.0, 300_000.0, 550_000.0]) {
            assert!(
                *from_us <= value_us && *from_us > value_us * 0.87,
                "{from_us}"
            );
        }
    }

    #[test]
    fn a_sample_is_from_all_of_the_time_and_bounded() {
        let mut sampled = Sampled::default();
        let count = 1_000_000;
        for latency_ns in 0..count {
            sampled.add(SeenIo {
                latency_ns,
                service_ns: 0,
                layers: Layers::default(),
            });
        }
        let ios = &sampled.ios;
        assert!(ios.len() > Sampled::IOS_MAX / 2 && ios.len() <= Sampled::IOS_MAX);
        let step = ios[1].latency_ns - ios[0].latency_ns;
        let steps = ios
            .windows(2)
            .map(|two| two[1].latency_ns - two[0].latency_ns);
        assert!(steps.into_iter().all(|each| each == step), "in even steps");
        assert!(ios.last().expect("some").latency_ns >= count - step);
    }
}
