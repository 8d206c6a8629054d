//! Plots as SVG. Every mark carries its figures as text (`data-tip`), which the page's script shows under the
//! pointer, and as a title for readers without the script.

use std::fmt::Write;

use super::{
    bars,
    findings::{Axis, Line, Marks, Plot},
    html::escaped,
};

pub(super) const WIDTH: f64 = 1040.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 48.0;
/// Lines with more points than this get small marks.
const MARKS_MAX: usize = 60;

/// The plot with its legend.
pub(super) fn svg(plot: &Plot) -> String {
    let mut out = String::from("<div class=\"plot\">");
    let names: Vec<(usize, &str)> = match &plot.marks {
        Marks::Lines(lines) => lines
            .iter()
            .map(|line| line.name.as_str())
            .enumerate()
            .collect(),
        Marks::Bars { legend, .. } => legend
            .iter()
            .map(|(class, name)| (*class, name.as_str()))
            .collect(),
        Marks::Field { .. } => Vec::new(),
    };
    let height = match &plot.marks {
        Marks::Bars { rows, .. } => bars::height(rows),
        _ => HEIGHT,
    };
    if !names.is_empty() {
        out.push_str("<p class=\"legend\">");
        for (class, name) in &names {
            let _ = write!(
                out,
                "<span class=\"s{}\">{}</span>",
                class % 8,
                escaped(name)
            );
        }
        out.push_str("</p>");
    }
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" tabindex=\"0\" aria-label=\"{}\">",
        escaped(&plot.title)
    );
    match &plot.marks {
        Marks::Lines(lines) => draw_lines(&mut out, plot, lines),
        Marks::Field {
            columns,
            rows,
            unit,
        } => draw_field(&mut out, columns, rows, unit),
        Marks::Bars { rows, .. } => bars::draw(&mut out, rows, &plot.x),
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ = write!(
        out,
        "<text class=\"label\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text class=\"label\" x=\"4\" y=\"14\">{}</text></svg></div>",
        height - 8.0,
        escaped(&plot.x.label),
        escaped(&plot.y.label),
    );
    out
}

/// Converts values to coordinates on one axis.
pub(super) struct Scale {
    from: f64,
    to: f64,
    is_logarithmic: bool,
    /// The coordinates of `from` and `to`.
    ends: (f64, f64),
}

impl Scale {
    fn new(axis: &Axis, values: impl Iterator<Item = f64> + Clone, ends: (f64, f64)) -> Scale {
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

    /// Round values for the grid.
    pub(super) fn ticks(&self) -> Vec<f64> {
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

fn draw_lines(out: &mut String, plot: &Plot, lines: &[Line]) {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let x = Scale::new(
        &plot.x,
        points().map(|point| point.0),
        (LEFT, WIDTH - RIGHT),
    );
    let y = Scale::new(
        &plot.y,
        points().map(|point| point.1),
        (HEIGHT - BOTTOM, TOP),
    );
    for tick in y.ticks() {
        let Some(at) = y.place(tick) else { continue };
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            short(tick),
        );
    }
    for tick in x.ticks() {
        let Some(at) = x.place(tick) else { continue };
        let _ = write!(
            out,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM + 18.0,
            short(tick),
        );
    }
    for (index, line) in lines.iter().enumerate() {
        let mut path = String::new();
        let mut marks = String::new();
        for (left, up) in &line.points {
            let (Some(cx), Some(cy)) = (x.place(*left), y.place(*up)) else {
                continue;
            };
            let verb = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{verb}{cx:.1} {cy:.1}");
            let tip = format!(
                "{}\n{}: {}\n{}: {}",
                line.name,
                plot.x.label,
                short(*left),
                plot.y.label,
                short(*up)
            );
            let radius = if line.points.len() > MARKS_MAX {
                1.5
            } else {
                4.0
            };
            let tip = escaped(&tip);
            let _ = write!(
                marks,
                "<circle class=\"point\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"{radius}\" data-tip=\"{tip}\">\
                 <title>{tip}</title></circle>"
            );
        }
        let _ = write!(
            out,
            "<g class=\"s{}\"><path d=\"{path}\"/>{marks}</g>",
            index % 8
        );
    }
}

fn draw_field(
    out: &mut String,
    columns: &[String],
    rows: &[(String, Vec<Option<f64>>)],
    unit: &str,
) {
    let most = rows.iter().flat_map(|(_, values)| values.iter().flatten());
    let most = most.copied().fold(f64::MIN_POSITIVE, f64::max);
    let width = (WIDTH - LEFT - RIGHT) / columns.len().max(1) as f64;
    let height = (HEIGHT - TOP - BOTTOM) / rows.len().max(1) as f64;
    for (index, column) in columns.iter().enumerate() {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            LEFT + (index as f64 + 0.5) * width,
            HEIGHT - BOTTOM + 18.0,
            escaped(column)
        );
    }
    for (row, (name, values)) in rows.iter().enumerate() {
        let y = HEIGHT - BOTTOM - (row as f64 + 1.0) * height;
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + height / 2.0 + 4.0,
            escaped(name)
        );
        for (index, value) in values.iter().enumerate() {
            let x = LEFT + index as f64 * width;
            let at =
                format!("x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"");
            let column = columns.get(index).map_or("", String::as_str);
            let _ = match value {
                None => write!(out, "<rect class=\"cell none\" {at}/>"),
                Some(value) => {
                    let tip = escaped(&format!("{name} × {column}\n{} {unit}", short(*value)));
                    write!(
                        out,
                        "<rect class=\"cell\" {at} fill-opacity=\"{:.2}\" data-tip=\"{tip}\">\
                         <title>{tip}</title></rect><text x=\"{:.1}\" y=\"{:.1}\" \
                         text-anchor=\"middle\">{}</text>",
                        0.08 + 0.72 * value / most,
                        x + width / 2.0,
                        y + height / 2.0 + 4.0,
                        short(*value),
                    )
                }
            };
        }
    }
}

/// Formats a number briefly: 1,234 or 12.3 or 0.123.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 1000.0 => super::grouped(value.round() as u64),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => trimmed(format!("{value:.1}")),
        size if size >= 0.1 => trimmed(format!("{value:.2}")),
        _ => trimmed(format!("{value:.4}")),
    }
}

fn trimmed(text: String) -> String {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}
