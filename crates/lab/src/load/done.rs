//! What a load has done, with the times of all of its I/Os.

use engine::Duration;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use volume::layers::Layers;

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
    /// Of a load that was watched: I/Os over all of its time, a few thousand of them.
    pub seen: Vec<SeenIo>,
}

/// Where the time of an I/O went.
#[derive(Clone, Copy, Debug)]
pub struct SeenIo {
    /// As its latency counts, in nanoseconds.
    pub latency_ns: u64,
    /// The part of it that the volume took.
    pub volume_ns: u64,
    /// And where that was.
    pub layers: Layers,
}

/// One of so many I/Os, always as many more as there are too many of them.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    pub(super) ios: Vec<SeenIo>,
    /// As a power of two.
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

/// All values of a histogram in nanoseconds, as pairs: from so many microseconds on, so many. A pair reaches
/// to the next eighth of a power of two.
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

/// From 100 ns to a minute, to 0.1 %: what is compared with others' percentiles adds no error of its own.
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
                volume_ns: 0,
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
