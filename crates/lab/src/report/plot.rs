//! Plots as SVG. Every mark carries its figures as text (`data-tip`), which the page's script shows under the
//! pointer, and as a title for readers without the script.

use std::fmt::Write;

use super::{
    axes::{LETTER, Scale, WIDTH, draw_columns, draw_rows},
    bars,
    findings::{Marks, Plot, PlotLine, Span},
    html::escaped,
    number::short,
};

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
        Marks::Lines(lines) | Marks::Timeline { lines, .. } => lines
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
        Marks::Lines(lines) => draw_lines(&mut out, plot, &[], lines),
        Marks::Timeline { spans, lines } => draw_lines(&mut out, plot, spans, lines),
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

fn draw_lines(out: &mut String, plot: &Plot, spans: &[Span], lines: &[PlotLine]) {
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
    draw_spans(out, &x, spans);
    draw_rows(out, &y, (LEFT, WIDTH - RIGHT));
    draw_columns(out, &x, HEIGHT - BOTTOM + 18.0);
    for (index, line) in lines.iter().enumerate() {
        let mut path = String::new();
        let mut marks = String::new();
        for (left, up) in &line.points {
            let (Some(cx), Some(cy)) = (x.place(*left), y.place(*up)) else {
                continue;
            };
            let verb = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{verb}{cx:.1} {cy:.1}");
            let within = |span: &&Span| (span.from..=span.to).contains(left);
            let span = spans.iter().find(within);
            let tip = format!(
                "{}{}\n{}: {}\n{}: {}",
                line.name,
                span.map_or(String::new(), |span| format!("\n{}", span.name)),
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

/// Shades every other span, and writes its name above it if there is room.
fn draw_spans(out: &mut String, x: &Scale, spans: &[Span]) {
    for (index, span) in spans.iter().enumerate() {
        let (Some(from), Some(to)) = (x.place(span.from), x.place(span.to)) else {
            continue;
        };
        let name = escaped(&span.name);
        let shade = if index % 2 == 0 { "even" } else { "odd" };
        let _ = write!(
            out,
            "<rect class=\"span {shade}\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\">\
             <title>{name}</title></rect>",
            to - from,
            HEIGHT - TOP - BOTTOM,
        );
        if to - from > span.name.chars().count() as f64 * LETTER {
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>",
                (from + to) / 2.0,
                TOP - 8.0,
            );
        }
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
