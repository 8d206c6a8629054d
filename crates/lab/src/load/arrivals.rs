//! The arrival times of an open loop, which are fixed in advance and do not depend on how fast I/Os complete.

use engine::random::SplitMix64;
use serde::{Deserialize, Serialize};

/// The distribution of the intervals between arrivals.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spacing {
    /// Independent of each other, like the requests of many users.
    #[default]
    Poisson,
    /// At equal intervals.
    Even,
}

/// Arrival times, in nanoseconds from the start. A clone continues with the same times.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    at_ns: f64,
    step_ns: f64,
    spacing: Spacing,
    random: SplitMix64,
}

impl Schedule {
    pub(super) fn new(rate_per_s: f64, spacing: Spacing, seed: u64) -> Schedule {
        Schedule {
            at_ns: 0.0,
            step_ns: 1e9 / rate_per_s,
            spacing,
            // Not the sequence that the places are drawn from.
            random: SplitMix64::new(SplitMix64::new(!seed).bits()),
        }
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.at_ns += match self.spacing {
            Spacing::Even => self.step_ns,
            Spacing::Poisson => -self.random.unit().ln() * self.step_ns,
        };
        Some(self.at_ns as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_and_the_spread_that_they_are_to_have() {
        for (spacing, spread) in [(Spacing::Even, 0.0), (Spacing::Poisson, 1.0)] {
            let moments: Vec<u64> = Schedule::new(1000.0, spacing, 0).take(20_000).collect();
            let steps: Vec<f64> = moments
                .windows(2)
                .map(|pair| (pair[1] - pair[0]) as f64 / 1e6)
                .collect();
            let others: Vec<u64> = Schedule::new(1000.0, spacing, 1).take(20_000).collect();
            assert_eq!(moments == others, spacing == Spacing::Even, "{spacing:?}");
            let mean = steps.iter().sum::<f64>() / steps.len() as f64;
            let squares: f64 = steps.iter().map(|step| (step - mean).powi(2)).sum();
            let deviation = (squares / steps.len() as f64).sqrt();
            assert!((mean - 1.0).abs() < 0.03, "{spacing:?}: {mean} ms");
            assert!(
                (deviation - spread).abs() < 0.05,
                "{spacing:?}: {deviation}"
            );
        }
    }
}
