//! Decides whether two things differ, from pairs of measurements taken alternately.
//!
//! Slow drift (a shared disk, a machine warming up) mostly affects both halves of a pair alike, so only the ratio
//! within each pair counts. Where it affects one of them alone, the ratios have a trend, which is reported. The estimate is the median of all pairwise means of the ratios (Hodges and
//! Lehmann), which a few outliers hardly move. Its interval is a bootstrap over the pairs, widened if
//! necessary to the exact one of Wilcoxon's signed ranks: with few pairs, a bootstrap alone reports false
//! differences in up to one of seven cases. Both work on logarithms, where "half" is as far from "the same"
//! as "twice".
//!
//! Everything here is deterministic: the same samples give the same answer.

mod changes;
mod median;
#[cfg(test)]
mod tests;

use engine::random::SplitMix64;
use serde::Serialize;

pub(crate) use changes::{RUNS_MIN, SeriesChange, changes};
pub(crate) use median::{Median, SAMPLES_MIN};

/// Resamples of the bootstrap.
const RESAMPLES: usize = 1000;
/// Probability that the true ratio lies outside of the interval, on each side.
const TAIL: f64 = 0.025;
/// The quantiles at which a trend of both, and one of the ratios, is significant: 1 % and 4 %. A trend of the ratios puts
/// the answer in doubt, so it is reported sooner.
const LEVEL_Z: f64 = 2.576;
const RATIO_Z: f64 = 2.054;
/// The difference that [`Comparison::pairs_needed`] refers to.
const DIFFERENCE: f64 = 1.05;

/// What pairs of measurements say about B compared with A.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// B divided by A.
    pub ratio: f64,
    /// Contains the true ratio with a probability of 95 %; `None` with fewer than six pairs, which are too
    /// few.
    pub interval: Option<(f64, f64)>,
    /// Pairs of measurements.
    pub pairs: usize,
    /// Standard deviation of the ratios between pairs: 0.03 for 3 %.
    pub noise: f64,
    /// The change of the mean level of both from the first pair to the last, as a ratio, if it is significant.
    pub drift: Option<f64>,
    /// The ratio at the first pair and at the last, if its trend is significant: one of the two changed alone.
    pub ratio_drift: Option<(f64, f64)>,
    /// The number of pairs needed to detect a difference of 5 % reliably at this noise.
    pub pairs_needed: usize,
}

impl Comparison {
    /// Compares `b` with `a`, which were measured alternately: the first with the first, and so on. Values
    /// without a partner, or not above zero, are ignored.
    pub fn of(a: &[f64], b: &[f64]) -> Comparison {
        let is_usable = |(a, b): &(f64, f64)| *a > 0.0 && *b > 0.0 && (a * b).is_finite();
        let pairs = a.iter().copied().zip(b.iter().copied());
        let pairs: Vec<(f64, f64)> = pairs.filter(is_usable).collect();
        let ratios: Vec<f64> = pairs.iter().map(|(a, b)| (b / a).ln()).collect();
        let levels: Vec<f64> = pairs.iter().map(|(a, b)| (a * b).ln() / 2.0).collect();
        let noise = deviation(&ratios);
        Comparison {
            ratio: middle(&mut means_of_two(&ratios)).exp(),
            interval: interval(&ratios).map(|(low, high)| (low.exp(), high.exp())),
            pairs: pairs.len(),
            noise,
            drift: Trend::of(&levels, LEVEL_Z).map(|level| (level.last - level.first).exp()),
            ratio_drift: Trend::of(&ratios, RATIO_Z)
                .map(|ratio| (ratio.first.exp(), ratio.last.exp())),
            pairs_needed: pairs_needed(noise),
        }
    }

    /// Whether B differs from A.
    pub fn differs(&self) -> bool {
        self.interval
            .is_some_and(|(low, high)| low > 1.0 || high < 1.0)
    }

    /// The answer in a sentence, where more is faster: "B is faster: 1.31× A (95 % interval 1.24–1.38, 12 pairs)".
    pub fn sentence(&self, a: &str, b: &str) -> String {
        let pairs = self.pairs;
        let Some((low, high)) = self.interval else {
            return format!("{pairs} pairs are too few: take {SAMPLES_MIN} or more");
        };
        if self.differs() {
            let ratio = self.ratio;
            let which = if ratio < 1.0 { "slower" } else { "faster" };
            return format!(
                "{b} is {which}: {ratio:.2}× {a} (95 % interval {low:.2}–{high:.2}, {pairs} pairs)"
            );
        }
        format!(
            "no difference found between {a} and {b} (95 % interval of the ratio {low:.2}–{high:.2}, \
             {pairs} pairs)"
        )
    }

    /// Caveats that weaken the answer, as sentences.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if !self.differs() && self.pairs >= SAMPLES_MIN && self.pairs_needed > self.pairs {
            doubts.push(format!(
                "noise: the ratios of the pairs differ by {:.1} %; finding a difference of 5 % would \
                 take {} pairs",
                self.noise * 100.0,
                self.pairs_needed
            ));
        }
        if let Some(drift) = self.drift {
            let ratios = match self.ratio_drift {
                None => {
                    "; the ratios of the pairs show no trend, so this affects only absolute figures"
                }
                Some(_) => "",
            };
            doubts.push(format!(
                "drift: from the first pair to the last the mean of both became {drift:.2}× what it was{ratios}"
            ));
        }
        if let Some((first, last)) = self.ratio_drift {
            doubts.push(format!(
                "drift of the ratio itself, from {first:.2} at the first pair to {last:.2} at the last (Kendall's \
                 test, p < 0.05): one of the two changed more than the other, so the ratio and its interval are means \
                 over this run, and another run may find another"
            ));
        }
        doubts
    }
}

/// The means of all pairs of values, including each value with itself.
fn means_of_two(values: &[f64]) -> Vec<f64> {
    let mut means = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (index, first) in values.iter().enumerate() {
        means.extend(values[index..].iter().map(|second| (first + second) / 2.0));
    }
    means
}

/// The median; reorders the values.
fn middle(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let half = values.len() / 2;
    let is_even = values.len() % 2 == 0;
    let (below, upper, _) = values.select_nth_unstable_by(half, f64::total_cmp);
    let upper = *upper;
    match is_even {
        true => f64::midpoint(below.iter().copied().fold(f64::MIN, f64::max), upper),
        false => upper,
    }
}

/// The interval of the true median, wide enough for both methods.
fn interval(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < SAMPLES_MIN {
        return None;
    }
    let (low, high) = signed_ranks(values)?;
    let (least, most) = bootstrap(values);
    Some((low.min(least), high.max(most)))
}

/// The interval of Wilcoxon's signed ranks: the k-th smallest and k-th largest pairwise mean, where a rank
/// sum below k has a probability of at most [`TAIL`].
fn signed_ranks(values: &[f64]) -> Option<(f64, f64)> {
    let mut means = means_of_two(values);
    means.sort_unstable_by(f64::total_cmp);
    // The probability of each rank sum if each rank counts or not by a coin toss. Only the lower tail is
    // needed, but computing all sums is cheap.
    let mut chances = vec![0.0; means.len() + 1];
    chances[0] = 1.0;
    for rank in 1..=values.len() {
        for sum in (0..chances.len()).rev() {
            let with = if sum >= rank {
                chances[sum - rank]
            } else {
                0.0
            };
            chances[sum] = (chances[sum] + with) / 2.0;
        }
    }
    let mut below = 0.0;
    let rank = chances.iter().take_while(|chance| {
        below += **chance;
        below <= TAIL
    });
    let rank = rank.count();
    (rank > 0).then(|| (means[rank - 1], means[means.len() - rank]))
}

/// The interval that excludes the medians of a fraction [`TAIL`] of the resamples on each side.
fn bootstrap(values: &[f64]) -> (f64, f64) {
    // A fixed seed makes the result reproducible; any would do.
    let mut random = SplitMix64::new(values.len() as u64);
    let mut resample = vec![0.0; values.len()];
    let mut middles: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            for value in &mut resample {
                *value = values[random.below(values.len() as u64) as usize];
            }
            middle(&mut means_of_two(&resample))
        })
        .collect();
    middles.sort_unstable_by(f64::total_cmp);
    let outside = (TAIL * RESAMPLES as f64) as usize;
    (middles[outside], middles[RESAMPLES - 1 - outside])
}

/// The standard deviation.
fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// A trend of values in their order: Theil and Sen's line.
struct Trend {
    first: f64,
    last: f64,
}

impl Trend {
    /// If Kendall's test, with its correction for continuity, rejects chance at the two-sided quantile `z` of the normal
    /// distribution. From six values on, that is at most as likely by chance as the exact test's level.
    fn of(values: &[f64], z: f64) -> Option<Trend> {
        let count = values.len();
        let (mut slopes, mut order) = (Vec::new(), 0.0);
        for (index, earlier) in values.iter().enumerate() {
            for (distance, later) in (1..).zip(&values[index + 1..]) {
                let step = later - earlier;
                order += if step == 0.0 { 0.0 } else { step.signum() };
                slopes.push(step / f64::from(distance));
            }
        }
        let n = count as f64;
        let spread = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
        if count < SAMPLES_MIN || f64::abs(order) - 1.0 < z * spread {
            return None;
        }
        let slope = middle(&mut slopes);
        let starts = (0_u32..).zip(values);
        let mut starts: Vec<f64> = starts
            .map(|(index, value)| value - slope * f64::from(index))
            .collect();
        let first = middle(&mut starts);
        Some(Trend {
            first,
            last: first + slope * (n - 1.0),
        })
    }
}

/// Pairs needed to find [`DIFFERENCE`] with a probability of 95 %, for ratios with a standard deviation of
/// `noise`.
fn pairs_needed(noise: f64) -> usize {
    // A two-sided 5 % test with 5 % misses. A rank test needs π/3 times the samples of a mean, and a few more
    // because the noise itself is only estimated.
    let pairs = ((1.96 + 1.645) * noise / DIFFERENCE.ln()).powi(2) * std::f64::consts::PI / 3.0;
    (pairs.ceil() as usize).saturating_add(4).max(SAMPLES_MIN)
}
