//! Latency histograms that one lane writes and any thread reads.
//!
//! Recording costs a few plain loads and stores and no atomic read-modify-write, because only the owning lane writes.
//! Buckets divide each power of two into equal steps; reading converts them into an HDR histogram.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use hdrhistogram::Histogram;

/// Times up to 2^40 ns, some 18 minutes; longer ones go into the last bucket.
const POWERS: u32 = 40;
const NS_MAX: u64 = (1 << POWERS) - 1;

/// Counts of times in nanoseconds, and their exact sum. A power of two is divided into 2^`STEP_BITS` steps: the reported
/// time is off by at most half a step.
pub struct LaneHistogram<const STEP_BITS: u32> {
    counts: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl<const STEP_BITS: u32> LaneHistogram<STEP_BITS> {
    const BUCKETS: usize = ((POWERS - STEP_BITS + 1) as usize) << STEP_BITS;

    /// Counts a time. Only one thread may call this.
    pub fn record(&self, ns: u64) {
        let ns = ns.min(NS_MAX);
        add(&self.counts[Self::bucket_of(ns)], 1);
        add(&self.sum_ns, ns);
    }

    /// The sum of all times.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns.load(Ordering::Relaxed)
    }

    /// Adds all counts to `sum`. Times recorded concurrently may be missing.
    pub fn add_to(&self, sum: &mut Histogram<u64>) {
        for (bucket, count) in self.counts.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                sum.saturating_record_n(Self::middle_ns(bucket), count);
            }
        }
    }

    fn bucket_of(ns: u64) -> usize {
        // The highest bits of the number select the power of two and the step within it.
        let shift = (ns | 1 << STEP_BITS).ilog2() - STEP_BITS;
        ((shift as usize) << STEP_BITS) + (ns >> shift) as usize
    }

    fn middle_ns(bucket: usize) -> u64 {
        let bucket = bucket as u64;
        if bucket < 1 << STEP_BITS {
            return bucket;
        }
        let shift = (bucket >> STEP_BITS) - 1;
        let start = (bucket - (shift << STEP_BITS)) << shift;
        start + (1 << shift) / 2
    }
}

impl<const STEP_BITS: u32> Default for LaneHistogram<STEP_BITS> {
    fn default() -> Self {
        LaneHistogram {
            counts: (0..Self::BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
        }
    }
}

impl<const STEP_BITS: u32> fmt::Debug for LaneHistogram<STEP_BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        write!(f, "LaneHistogram({} times)", counts.sum::<u64>())
    }
}

/// An HDR histogram that can hold every time that a [`LaneHistogram`] distinguishes.
pub fn empty() -> Histogram<u64> {
    Histogram::new_with_max(1 << POWERS, 2).expect("the bounds are constants that it takes")
}

/// Adds to a counter that no other thread writes.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bucket_says_what_fell_into_it(ns in prop_oneof![0u64..100, 0u64..1 << 40]) {
            let within = |said: u64, steps: u64| said.abs_diff(ns) <= ns / (2 * steps) + 1;
            prop_assert!(within(LaneHistogram::<5>::middle_ns(LaneHistogram::<5>::bucket_of(ns)), 32));
            prop_assert!(within(LaneHistogram::<3>::middle_ns(LaneHistogram::<3>::bucket_of(ns)), 8));
        }
    }

    #[test]
    fn everything_is_counted_once() {
        let times = LaneHistogram::<3>::default();
        for ns in [0, 1, 7, 8, 1000, u64::MAX] {
            times.record(ns);
        }
        let mut sum = empty();
        times.add_to(&mut sum);
        assert_eq!(sum.len(), 6);
        assert_eq!(sum.min(), 0);
    }

    #[test]
    fn the_sum_is_exact() {
        let times = LaneHistogram::<3>::default();
        for ns in [1001, 200_003, 0] {
            times.record(ns);
        }
        assert_eq!(times.sum_ns(), 201_004);
    }
}
