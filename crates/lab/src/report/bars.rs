//! Plots of bars in rows: what ran when, or the parts of a whole. A row has one or more lines of bars.

use std::fmt::Write;

use super::{
    axes::{LETTER, Scale, WIDTH, draw_columns},
    findings::{Axis, Bar, BarRow},
    html::escaped,
};

const LEFT: f64 = 250.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 44.0;
const LINE: f64 = 20.0;
const GAP: f64 = 10.0;
/// Maximum letters in a row's name.
const NAME_MAX: usize = 36;
/// Minimum width of a bar, so that it can still be pointed at.
const BAR_MIN: f64 = 1.5;

fn height_of(row: &BarRow) -> f64 {
    row.lines.len().max(1) as f64 * LINE + GAP
}

/// The height of the plot.
pub(super) fn height(rows: &[BarRow]) -> f64 {
    TOP + BOTTOM + rows.iter().map(height_of).sum::<f64>()
}

pub(super) fn draw(out: &mut String, rows: &[BarRow], axis: &Axis) {
    let all = || rows.iter().flat_map(|row| row.lines.iter().flatten());
    let most = all().map(|bar| bar.to).fold(0.0, f64::max);
    let scale = Scale::exact(most, axis, (LEFT, WIDTH - RIGHT));
    let bottom = height(rows) - BOTTOM;
    for (at, _) in scale.marks() {
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>"
        );
    }
    draw_columns(out, &scale, bottom + 18.0);
    let mut top = TOP;
    for row in rows {
        let _ = write!(
            out,
            "<text class=\"row\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}<title>{}</title></text>",
            LEFT - 8.0,
            top + LINE - 6.0,
            escaped(&elided(&row.name)),
            escaped(&row.name),
        );
        for (index, line) in row.lines.iter().enumerate() {
            for bar in line {
                draw_bar(out, bar, &scale, top + index as f64 * LINE);
            }
        }
        top += height_of(row);
    }
}

fn draw_bar(out: &mut String, bar: &Bar, scale: &Scale, top: f64) {
    let (Some(from), Some(to)) = (scale.place(bar.from), scale.place(bar.to)) else {
        return;
    };
    let width = (to - from).max(BAR_MIN);
    let tip = escaped(&bar.tip);
    let _ = write!(
        out,
        "<rect class=\"bar s{}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
         data-tip=\"{tip}\"><title>{tip}</title></rect>",
        bar.class % 8,
        LINE - 2.0,
    );
    // A label that overflows its bar would be read as another bar's.
    if !bar.label.is_empty() && width > bar.label.chars().count() as f64 * LETTER + 8.0 {
        let _ = write!(
            out,
            "<text class=\"on\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            from + 5.0,
            top + LINE - 6.5,
            escaped(&bar.label),
        );
    }
}

/// Shortens a name in the middle, because the end of a path tells more.
fn elided(name: &str) -> String {
    let count = name.chars().count();
    if count <= NAME_MAX {
        return name.to_owned();
    }
    let begin: String = name.chars().take(8).collect();
    let end: String = name.chars().skip(count - (NAME_MAX - 9)).collect();
    format!("{begin}…{end}")
}
