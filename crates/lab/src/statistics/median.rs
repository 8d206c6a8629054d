//! Medians with a distribution-free confidence interval from the sign test. Each sample lies below the true
//! median with probability one half, so the number of n samples below it is binomial like n coin tosses. The
//! k-th smallest and k-th largest sample therefore enclose the true median except with twice the probability
//! of fewer than k heads.

use serde::Serialize;

/// The median of some samples and an interval for the true median.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Median {
    /// The middle sample, or the mean of the two middle ones.
    pub(crate) median: f64,
    /// Contains the true median with a probability of at least 95 %; `None` with fewer than six samples,
    /// which are too few.
    pub(crate) interval: Option<(f64, f64)>,
}

/// The minimum number of samples for an interval.
pub(crate) const SAMPLES_MIN: usize = 6;

impl Median {
    /// From these samples, in any order.
    pub(crate) fn of(samples: &[f64]) -> Median {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        if count == 0 {
            return Median {
                median: f64::NAN,
                interval: None,
            };
        }
        let interval = rank(count).map(|rank| (sorted[rank - 1], sorted[count - rank]));
        Median {
            median: f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]),
            interval,
        }
    }

    /// From one figure of each item.
    pub(crate) fn of_each<T>(items: &[T], of: impl Fn(&T) -> f64) -> Median {
        Median::of(&items.iter().map(of).collect::<Vec<f64>>())
    }
}

/// The largest k for which fewer than k heads in `count` tosses have a probability of at most 2.5 %.
fn rank(count: usize) -> Option<usize> {
    let mut chance = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut below = 0.0;
    let mut rank = 0;
    while rank < count && below + chance <= 0.025 {
        below += chance;
        chance *= (count - rank) as f64 / (rank + 1) as f64;
        rank += 1;
    }
    (rank > 0).then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_tables() {
        // Two-sided 5 % of the sign test: the published table's critical value plus one.
        let expected = [
            (5, None),
            (SAMPLES_MIN, Some(1)),
            (8, Some(1)),
            (9, Some(2)),
            (20, Some(6)),
            (25, Some(8)),
            (50, Some(18)),
        ];
        for (count, expected) in expected {
            assert_eq!(rank(count), expected, "{count} samples");
        }
    }

    #[test]
    fn median_and_interval_come_from_the_sorted_samples() {
        let samples: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        let found = Median::of(&samples);
        assert_eq!(found.median, 10.5);
        assert_eq!(found.interval, Some((6.0, 15.0)));
        assert_eq!(Median::of(&[3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Median::of(&[3.0, 1.0, 2.0]).interval, None);
        assert!(Median::of(&[]).median.is_nan());
    }
}
