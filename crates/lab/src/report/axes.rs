//! Axes of plots: values become coordinates, and round values a grid.

use std::fmt::Write;

use super::{findings::Axis, number::short};

/// Width of every plot.
pub(super) const WIDTH: f64 = 1040.0;
/// Approximate width of a letter of a label.
pub(super) const LETTER: f64 = 6.4;

/// Converts values to coordinates on one axis.
pub(super) struct Scale {
    from: f64,
    to: f64,
    is_logarithmic: bool,
    /// The coordinates of `from` and `to`.
    ends: (f64, f64),
}

impl Scale {
    pub(super) fn new(
        axis: &Axis,
        values: impl Iterator<Item = f64> + Clone,
        ends: (f64, f64),
    ) -> Scale {
        let is_logarithmic = axis.is_logarithmic;
        let values = values.filter(|value| value.is_finite() && (!is_logarithmic || *value > 0.0));
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let most = values.fold(f64::NEG_INFINITY, f64::max);
        let (from, to) = match (least <= most, is_logarithmic) {
            (false, _) => (1.0, 10.0),
            (true, true) if most <= least => (least / 2.0, most * 2.0),
            (true, true) => (least, most),
            (true, false) => (0.0, if most > 0.0 { most * 1.08 } else { 1.0 }),
        };
        Scale {
            from,
            to,
            is_logarithmic,
            ends,
        }
    }

    /// From zero to `to`, without a margin.
    pub(super) fn exact(to: f64, axis: &Axis, ends: (f64, f64)) -> Scale {
        Scale {
            to: if to > 0.0 { to } else { 1.0 },
            ..Scale::new(axis, [to].into_iter(), ends)
        }
    }

    pub(super) fn place(&self, value: f64) -> Option<f64> {
        if !value.is_finite() || (self.is_logarithmic && value <= 0.0) {
            return None;
        }
        let of = |value: f64| match self.is_logarithmic {
            true => value.ln(),
            false => value,
        };
        let part = (of(value) - of(self.from)) / (of(self.to) - of(self.from));
        Some(self.ends.0 + (self.ends.1 - self.ends.0) * part.clamp(0.0, 1.0))
    }

    /// The coordinates of round values, and the values as text.
    pub(super) fn marks(&self) -> impl Iterator<Item = (f64, String)> + '_ {
        let ticks = self.ticks().into_iter();
        ticks.filter_map(|tick| Some((self.place(tick)?, short(tick))))
    }

    /// Round values for the grid.
    fn ticks(&self) -> Vec<f64> {
        if self.is_logarithmic {
            let decades = (self.to / self.from).log10();
            let steps: &[f64] = if decades > 2.5 {
                &[1.0]
            } else {
                &[1.0, 2.0, 5.0]
            };
            let first = self.from.log10().floor() as i32;
            let last = self.to.log10().ceil() as i32;
            let all =
                (first..=last).flat_map(|power| steps.iter().map(move |s| s * 10f64.powi(power)));
            return all
                .filter(|tick| (self.from..=self.to).contains(tick))
                .collect();
        }
        let rough = (self.to - self.from) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power);
        let step = step
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        (0..=(self.to / step) as i32)
            .map(|n| f64::from(n) * step)
            .collect()
    }
}

/// Draws a line from left to right at each round value of the y axis, with the value beside it.
pub(super) fn draw_rows(out: &mut String, y: &Scale, (left, right): (f64, f64)) {
    for (at, value) in y.marks() {
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{left}\" x2=\"{right:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            left - 8.0,
            at + 4.0,
        );
    }
}

/// Writes the round values of the x axis on a line at `y`.
pub(super) fn draw_columns(out: &mut String, x: &Scale, y: f64) {
    for (at, value) in x.marks() {
        let _ = write!(
            out,
            "<text x=\"{at:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{value}</text>",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_values_are_in_their_places_on_both_axes() {
        let axis = Axis::default();
        let mut out = String::new();
        draw_rows(
            &mut out,
            &Scale::exact(2400.0, &axis, (100.0, 0.0)),
            (10.0, 90.0),
        );
        let row =
            "y1=\"58.3\" y2=\"58.3\"/><text x=\"2.0\" y=\"62.3\" text-anchor=\"end\">1,000</text>";
        assert!(out.contains(row), "{out}");
        assert_eq!(out.matches("<line").count(), 5, "0 to 2,000 by 500: {out}");
        let mut out = String::new();
        draw_columns(&mut out, &Scale::exact(0.5, &axis, (0.0, 100.0)), 7.0);
        let column = "<text x=\"60.0\" y=\"7.0\" text-anchor=\"middle\">0.3</text>";
        assert!(out.contains(column), "{out}");
    }
}
