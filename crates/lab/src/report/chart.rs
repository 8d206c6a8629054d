//! The line chart of the HTML page, as SVG: what each share of a set-up transferred over the measured time.
//! Runs follow each other without the untimed gaps, and each statement is a labelled band. Reads are solid
//! lines, writes are dashed, the link's rate is a horizontal line.

use std::fmt::Write;

use super::{
    Report, Sample, SetReport, StatementReport,
    axes::{Scale, draw_columns, draw_rows},
    findings::Axis,
    html::escaped,
};

const WIDTH: f64 = 1040.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 26.0;

/// More points than this cannot be distinguished on a chart, so samples are merged.
const POINTS_MAX: usize = 500;

/// The chart of one set-up.
pub(super) fn throughput(report: &Report, set: &SetReport) -> String {
    let seconds: f64 = set
        .statements
        .iter()
        .flat_map(|s| &s.runs)
        .map(|run| run.seconds)
        .sum::<f64>()
        .max(1e-6);
    let samples: usize = set
        .statements
        .iter()
        .flat_map(|s| &s.runs)
        .map(|run| run.samples.len())
        .sum();
    let merge = samples.div_ceil(POINTS_MAX).max(1);
    let axis = Axis::default();
    let frame = Frame {
        x: Scale::exact(seconds, &axis, (LEFT, WIDTH - RIGHT)),
        y: Scale::exact(
            highest(report, set, merge) / 1e6,
            &axis,
            (HEIGHT - BOTTOM, TOP),
        ),
    };

    let mut svg = format!(
        "<svg class=\"lines\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"Throughput of each share over time: {}\">",
        escaped(&set.name)
    );
    axes(&mut svg, &frame);
    let mut begun = 0.0;
    let mut lines = Lines::new(set);
    for (index, statement) in set.statements.iter().enumerate() {
        let length: f64 = statement.runs.iter().map(|run| run.seconds).sum();
        band(&mut svg, &frame, index, statement, begun, length);
        for run in &statement.runs {
            lines.add(&frame, begun, &run.samples, merge);
            begun += run.seconds;
        }
    }
    if let Some(link) = report.link_bytes_per_s() {
        let y = frame.y(link);
        let _ = write!(
            svg,
            "<line class=\"link\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"link\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">link {:.0} MB/s</text>",
            WIDTH - RIGHT,
            WIDTH - RIGHT - 4.0,
            y - 5.0,
            link / 1e6,
        );
    }
    lines.draw(&mut svg);
    svg.push_str("</svg>");
    svg
}

/// The axes: seconds, and megabytes per second.
struct Frame {
    x: Scale,
    y: Scale,
}

impl Frame {
    fn x(&self, seconds: f64) -> f64 {
        self.x.place(seconds).unwrap_or(LEFT)
    }

    fn y(&self, bytes_per_s: f64) -> f64 {
        self.y.place(bytes_per_s / 1e6).unwrap_or(HEIGHT - BOTTOM)
    }
}

/// The upper end of the y axis: above the link's rate and every point.
fn highest(report: &Report, set: &SetReport, merge: usize) -> f64 {
    let runs = set.statements.iter().flat_map(|s| &s.runs);
    let points = runs
        .flat_map(|run| run.samples.chunks(merge))
        .flat_map(|samples| {
            set.shares.iter().flat_map(move |share| {
                let (_, read, written) = rate(samples, *share);
                [read, written]
            })
        });
    let top = points.fold(report.link_bytes_per_s().unwrap_or(1e6), f64::max);
    top * 1.12
}

/// Total length of some samples in seconds, and bytes per second read and written.
fn rate(samples: &[Sample], share: usize) -> (f64, f64, f64) {
    let seconds: f64 = samples.iter().map(|sample| sample.seconds).sum();
    let sum = |bytes: fn(&crate::statements::Traffic) -> u64| -> f64 {
        let of_share = samples.iter().filter_map(|sample| sample.shares.get(share));
        of_share.map(bytes).sum::<u64>() as f64 / seconds.max(1e-9)
    };
    (seconds, sum(|t| t.read_bytes), sum(|t| t.written_bytes))
}

fn axes(svg: &mut String, frame: &Frame) {
    draw_rows(svg, &frame.y, (LEFT, WIDTH - RIGHT));
    draw_columns(svg, &frame.x, HEIGHT - 8.0, " s");
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"14\" text-anchor=\"end\">MB/s</text>",
        LEFT - 8.0
    );
}

fn band(
    svg: &mut String,
    frame: &Frame,
    index: usize,
    statement: &StatementReport,
    begun: f64,
    length: f64,
) {
    let (from, to) = (frame.x(begun), frame.x(begun + length));
    let shade = if index % 2 == 0 { "even" } else { "odd" };
    let _ = write!(
        svg,
        "<g class=\"band {shade}\"><title>{}: {} runs, {:.2} s on average</title>\
         <rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\"/>",
        escaped(&statement.statement.sql),
        statement.runs.len(),
        statement.average_s(),
        to - from,
        HEIGHT - TOP - BOTTOM,
    );
    // About 6.5 units per letter; a name that does not fit appears only in the band's title.
    let name = &statement.statement.name;
    if to - from > name.len() as f64 * 6.5 {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>",
            (from + to) / 2.0,
            TOP - 10.0,
        );
    }
    svg.push_str("</g>");
}

/// The paths being built: reads and writes of each share.
struct Lines<'a> {
    set: &'a SetReport,
    reads: Vec<String>,
    writes: Vec<String>,
}

impl<'a> Lines<'a> {
    fn new(set: &'a SetReport) -> Self {
        let empty = vec![String::new(); set.shares.len()];
        Self {
            set,
            reads: empty.clone(),
            writes: empty,
        }
    }

    fn add(&mut self, frame: &Frame, begun: f64, samples: &[Sample], merge: usize) {
        for (line, share) in self.set.shares.iter().enumerate() {
            let mut from = begun;
            for (index, merged) in samples.chunks(merge).enumerate() {
                let (seconds, read, written) = rate(merged, *share);
                let to = from + seconds;
                for (path, value) in [
                    (&mut self.reads[line], read),
                    (&mut self.writes[line], written),
                ] {
                    // Each run starts a new path; within it, each interval is a horizontal step.
                    let verb = if index == 0 { 'M' } else { 'L' };
                    let (from, to, y) = (frame.x(from), frame.x(to), frame.y(value));
                    let _ = write!(path, "{verb}{from:.1} {y:.1}H{to:.1}");
                }
                from = to;
            }
        }
    }

    fn draw(&self, svg: &mut String) {
        let several = self.set.shares.len() > 1;
        for (line, share) in self.set.shares.iter().enumerate() {
            // Shares with equal rates overlap, so the first line is broad enough to show beneath the others.
            let first = if several && line == 0 { " first" } else { "" };
            for (class, path) in [("write", &self.writes[line]), ("read", &self.reads[line])] {
                let share = share % 4;
                let _ = write!(
                    svg,
                    "<path class=\"{class} s{share}{first}\" d=\"{path}\"/>"
                );
            }
        }
    }
}
