//! Change point detection by E-divisive means (Matteson and James, "A Nonparametric Approach for Multiple
//! Change Point Analysis of Multivariate Data", 2014). A series is split where the energy distance between
//! both sides is largest. A permutation test estimates the probability that the same runs in random order
//! would have an equally deep split. Both sides are then examined again, until every remaining split is
//! explained by chance.
//!
//! The method assumes nothing about the distribution of the noise, only that runs without a change are
//! exchangeable. A change of fewer than [`SIDE_MIN`] runs is treated as an outlier.

use engine::random::SplitMix64;
use serde::Serialize;

use super::Median;

/// Minimum number of runs on each side of a change.
const SIDE_MIN: usize = 3;
/// With fewer runs, even an obvious change has a p-value above 5 %.
pub(crate) const RUNS_MIN: usize = 8;
/// Permutations for each test. The p-value is exact for any number, but coarse for few.
const PERMUTATIONS: usize = 999;

/// A change of a series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SeriesChange {
    /// The first run after the change.
    pub(crate) at: usize,
    /// Median of the runs since the previous change, or since the first run.
    pub(crate) before: f64,
    /// Median of the runs up to the next change, or to the last run.
    pub(crate) after: f64,
    /// The p-value: the probability of an equally deep split without a change.
    pub(crate) chance: f64,
}

/// The changes of `values`, which must be above zero, in order; `chance` is the probability of a false alarm.
pub(crate) fn changes(values: &[f64], chance: f64) -> Vec<SeriesChange> {
    // On logarithms, a given factor counts the same at any level.
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let mut random = SplitMix64::new(values.len() as u64);
    let mut cuts = vec![(0, 0.0)];
    divide(&logs, 0, chance, &mut random, &mut cuts);
    cuts.sort_by_key(|(at, _)| *at);
    let end = |index: usize| cuts.get(index + 1).map_or(values.len(), |(at, _)| *at);
    let median = |index: usize| Median::of(&values[cuts[index].0..end(index)]).median;
    let found = (1..cuts.len()).map(|index| SeriesChange {
        at: cuts[index].0,
        before: median(index - 1),
        after: median(index),
        chance: cuts[index].1,
    });
    found.collect()
}

/// Splits `values`, which start at run `from`, and then both sides recursively.
fn divide(
    values: &[f64],
    from: usize,
    chance_max: f64,
    random: &mut SplitMix64,
    cuts: &mut Vec<(usize, f64)>,
) {
    let Some((at, depth)) = deepest(values) else {
        return;
    };
    let mut permuted = values.to_vec();
    let mut as_deep = 0;
    // Enough permutations to resolve a p-value this small.
    let permutations = PERMUTATIONS.max((10.0 / chance_max) as usize);
    for _ in 0..permutations {
        shuffle(&mut permuted, random);
        let (_, of_chance) = deepest(&permuted).unwrap_or((0, 0.0));
        // Sums in a different order may differ in their last digit.
        as_deep += usize::from(of_chance >= depth * (1.0 - 1e-9));
    }
    let chance = (as_deep + 1) as f64 / (permutations + 1) as f64;
    if chance > chance_max {
        return;
    }
    cuts.push((from + at, chance));
    divide(&values[..at], from, chance_max, random, cuts);
    divide(&values[at..], from + at, chance_max, random, cuts);
}

/// The split whose sides differ most, and its depth: the energy distance between them, weighted by their
/// lengths.
fn deepest(values: &[f64]) -> Option<(usize, f64)> {
    let count = values.len();
    let distance = |i: usize, j: usize| (values[i] - values[j]).abs();
    // Sums of the distances within the left side, within the right side, and between them, updated as the
    // split advances by one run.
    let (mut within_left, mut within_right, mut between) = (0.0, 0.0, 0.0);
    for i in 0..count {
        within_right += (i + 1..count).map(|j| distance(i, j)).sum::<f64>();
    }
    let mut best: Option<(usize, f64)> = None;
    for at in 1..count {
        let moved = at - 1;
        let to_left: f64 = (0..moved).map(|i| distance(i, moved)).sum();
        let to_right: f64 = (at..count).map(|j| distance(moved, j)).sum();
        within_left += to_left;
        within_right -= to_right;
        between += to_right - to_left;
        if at < SIDE_MIN || count - at < SIDE_MIN {
            continue;
        }
        let (left, right) = (at as f64, (count - at) as f64);
        let pairs = |n: f64| n * (n - 1.0) / 2.0;
        let energy = 2.0 * between / (left * right)
            - within_left / pairs(left)
            - within_right / pairs(right);
        let depth = left * right / (left + right) * energy;
        if best.is_none_or(|(_, deepest)| depth > deepest) {
            best = Some((at, depth));
        }
    }
    best
}

/// A uniformly random permutation (Fisher and Yates).
fn shuffle(values: &mut [f64], random: &mut SplitMix64) {
    for last in (1..values.len()).rev() {
        values.swap(last, random.below(last as u64 + 1) as usize);
    }
}
