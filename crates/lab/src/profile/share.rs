//! What part of a whole something surely is, for advice: judged by a confidence interval over sections or rounds of a run.

use crate::statistics::Median;

/// A part larger than this deserves advice.
pub(super) const LARGE: f64 = 0.5;

/// Something's part of a whole, over the sections of a run.
pub(super) struct Proportion(Median);

impl Proportion {
    /// From pairs of a part and its whole.
    pub(super) fn of(parts: impl Iterator<Item = (f64, f64)>) -> Proportion {
        let shares: Vec<f64> = parts.map(|(part, whole)| part / whole).collect();
        Proportion(Median::of(&shares))
    }

    /// The part in words, if its interval is entirely above `least`. Few sections have no interval and yield no advice.
    pub(super) fn told_above(&self, least: f64) -> Option<String> {
        let (low, high) = self.0.interval.filter(|(low, _)| *low > least)?;
        Some(format!(
            "{:.0} % (95 % interval {:.0}–{:.0} %)",
            100.0 * self.0.median,
            100.0 * low,
            100.0 * high
        ))
    }
}
