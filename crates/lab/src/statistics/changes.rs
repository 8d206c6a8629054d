//! Where a series of measurements changed: E-divisive means (Matteson and James, "A Nonparametric Approach for
//! Multiple Change Point Analysis of Multivariate Data", 2014). A series is cut where both sides differ most by the
//! energy distance between them; the chance that runs in any other order would have had a cut as deep is counted by
//! permuting them; and both sides are looked at again, until nothing is left that chance does not explain.
//!
//! It needs no shape of the noise, only that runs of equals may have come in any order. A change of less
//! than [`SIDE_MIN`] runs is not one: it would be a wild run.

use engine::random::SplitMix64;
use serde::Serialize;

use super::Median;

/// Runs on each side of a change.
const SIDE_MIN: usize = 3;
/// With fewer runs even a change beyond doubt has a chance of more than 5 %.
pub(crate) const RUNS_MIN: usize = 8;
/// Permutations for each test. The chance that they give is exact for any number, and rough for few.
const PERMUTATIONS: usize = 999;

/// A change of a series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Change {
    /// The first run after it.
    pub(crate) at: usize,
    /// Median of the runs since the change before, or since the first run.
    pub(crate) before: f64,
    /// Median of the runs up to the next change, or to the last run.
    pub(crate) after: f64,
    /// The chance of a cut as deep where there is no change.
    pub(crate) chance: f64,
}

/// The changes of `values`, which are above zero, in their order; `chance` is that of finding one where there is none.
pub(crate) fn changes(values: &[f64], chance: f64) -> Vec<Change> {
    // A factor counts alike wherever it happens.
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let mut random = SplitMix64::new(values.len() as u64);
    let mut cuts = vec![(0, 0.0)];
    divide(&logs, 0, chance, &mut random, &mut cuts);
    cuts.sort_by_key(|(at, _)| *at);
    let end = |index: usize| cuts.get(index + 1).map_or(values.len(), |(at, _)| *at);
    let median = |index: usize| Median::of(&values[cuts[index].0..end(index)]).median;
    let found = (1..cuts.len()).map(|index| Change {
        at: cuts[index].0,
        before: median(index - 1),
        after: median(index),
        chance: cuts[index].1,
    });
    found.collect()
}

/// Cuts `values`, which begin at run `from`, and both sides again.
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
    // Enough of them that a chance of this size can be told at all.
    let permutations = PERMUTATIONS.max((10.0 / chance_max) as usize);
    for _ in 0..permutations {
        shuffle(&mut permuted, random);
        let (_, of_chance) = deepest(&permuted).unwrap_or((0, 0.0));
        // Sums in another order may differ in their last digit.
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

/// The cut whose sides differ most, and by how much: the energy distance between them, weighted by how many
/// runs they have.
fn deepest(values: &[f64]) -> Option<(usize, f64)> {
    let count = values.len();
    let distance = |i: usize, j: usize| (values[i] - values[j]).abs();
    // Sums of the distances within the left side, within the right one, and between them, moved on by a run at a time.
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

/// Any order, each as likely (Fisher and Yates).
fn shuffle(values: &mut [f64], random: &mut SplitMix64) {
    for last in (1..values.len()).rev() {
        values.swap(last, random.below(last as u64 + 1) as usize);
    }
}
