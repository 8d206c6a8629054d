//! Chooses the operations to be watched, of which there are too many to watch all: it slows them down. One of every so
//! many is chosen, at a random place among them, before it is known how long any of them takes.
//!
//! Never by time. Whoever watches the first operation after a pause watches the ones that follow slow operations, and on a
//! disk with bursts of slow flushes these are the slow ones: the sample is slower than what it stands for. And never in
//! equal steps, which may fall on the same disk of a stripe, or on the same part of what the disk does periodically.

use std::time::Duration;

use engine::random::SplitMix64;

/// At least one in this many is watched.
pub(crate) const ONE_OF_MAX: u64 = 67;

/// Not less than so many are watched, or all if there are fewer.
const SAMPLE_MIN: f64 = 512.0;

/// The choice.
#[derive(Debug)]
pub(crate) struct Sampler {
    every: u64,
    /// Which of each `every` is chosen, and how many of them have passed.
    chosen: u64,
    passed: u64,
    random: SplitMix64,
}

impl Sampler {
    /// Chooses about one in `wanted`, if one operation follows the other after `pace` and there will be about `expected`
    /// of them.
    pub(crate) fn new(pace: Duration, wanted: Duration, expected: f64, seed: u64) -> Sampler {
        let by_time = wanted.as_secs_f64() / pace.as_secs_f64().max(1e-9);
        let every = by_time
            .min(expected / SAMPLE_MIN)
            .clamp(1.0, ONE_OF_MAX as f64) as u64;
        let mut random = SplitMix64::new(seed);
        Sampler {
            every,
            chosen: random.below(every),
            passed: 0,
            random,
        }
    }

    /// Whether the next one is chosen.
    pub(crate) fn is_next(&mut self) -> bool {
        let is_chosen = self.passed == self.chosen;
        self.passed += 1;
        if self.passed == self.every {
            self.passed = 0;
            self.chosen = self.random.below(self.every);
        }
        is_chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn a_sample_of_a_bursty_disk_is_as_slow_as_all_of_it() {
        // Commits of 185 µs, and after every 4,000 of them 80 that take 8 ms longer.
        let took = |number: u64| match number % 4080 {
            ..4000 => 185.0,
            _ => 8185.0,
        };
        let count = 100 * 4080;
        let mean = |numbers: &[u64]| {
            numbers.iter().map(|number| took(*number)).sum::<f64>() / numbers.len() as f64
        };
        let all: Vec<u64> = (0..count).collect();
        for seed in 0..20 {
            let wanted = Duration::from_millis(20);
            let mut sampler = Sampler::new(185 * US, wanted, count as f64, seed);
            let seen: Vec<u64> = all.iter().copied().filter(|_| sampler.is_next()).collect();
            // The last few may have one, or not.
            assert!((seen.len() as u64).abs_diff(count / ONE_OF_MAX) <= 1);
            let ratio = mean(&seen) / mean(&all);
            assert!((0.8..1.25).contains(&ratio), "seed {seed}: {ratio}");
            let mut median: Vec<f64> = seen.iter().map(|number| took(*number)).collect();
            median.sort_unstable_by(f64::total_cmp);
            assert_eq!(median[median.len() / 2], 185.0);
        }
    }

    #[test]
    fn slow_and_few_operations_are_all_watched() {
        let wanted = Duration::from_millis(20);
        let seen = |pace: Duration, count: u64| {
            let mut sampler = Sampler::new(pace, wanted, count as f64, 1);
            (0..count).filter(|_| sampler.is_next()).count() as u64
        };
        assert_eq!(seen(25_000 * US, 800), 800);
        assert_eq!(seen(100 * US, 5), 5);
        assert_eq!(seen(100 * US, 5120), 512);
        assert_eq!(seen(100 * US, 67_000), 1000);
    }
}
