//! What each share of a set-up transferred over the measured time. Runs follow each other without the untimed gaps,
//! and each statement is a span.

use super::{Axis, Marks, Plot, PlotLine, Span};
use crate::statements::{ExperimentReport, SetReport, StatementReport, TrafficSample};

/// Samples are merged into at most this many points a line, so that each can be pointed at.
const POINTS_MAX: usize = 160;

/// The plot of one set-up.
pub(super) fn plot(report: &ExperimentReport, set: &SetReport) -> Plot {
    let runs = || set.statements.iter().flat_map(|statement| &statement.runs);
    let samples: usize = runs().map(|run| run.samples.len()).sum();
    let merged = samples.div_ceil(POINTS_MAX).max(1);
    let mut lines = Vec::new();
    for share in &set.shares {
        let name = report.shares.get(*share).map_or("", |share| &share.name);
        for (what, is_read) in [("reads", true), ("writes", false)] {
            let mut points = Vec::new();
            let mut begun_s = 0.0;
            for run in runs() {
                let mut from_s = begun_s;
                for samples in run.samples.chunks(merged) {
                    let (seconds, bytes_per_s) = rate(samples, *share, is_read);
                    points.push((from_s + seconds / 2.0, bytes_per_s / 1e6));
                    from_s += seconds;
                }
                begun_s += run.seconds;
            }
            lines.push(PlotLine {
                name: format!("{name}, {what}"),
                points,
            });
        }
    }
    let spans = spans(set);
    let end_s = spans.last().map_or(0.0, |span| span.to);
    if let Some(link) = report.link_bytes_per_s() {
        lines.push(PlotLine {
            name: "the link of each share".into(),
            points: vec![(0.0, link / 1e6), (end_s, link / 1e6)],
        });
    }
    let axis = |label: &str| Axis {
        label: label.into(),
        is_logarithmic: false,
    };
    Plot {
        title: format!("Throughput of each share: {}", set.name),
        about: "Payload during the timed runs, one after the other.".into(),
        x: axis("seconds"),
        y: axis("MB/s"),
        marks: Marks::Timeline { spans, lines },
    }
}

/// Where the runs of each statement lie.
fn spans(set: &SetReport) -> Vec<Span> {
    let mut begun_s = 0.0;
    let span = |statement: &StatementReport| {
        let from = begun_s;
        begun_s += statement.runs.iter().map(|run| run.seconds).sum::<f64>();
        Span {
            name: statement.statement.name.clone(),
            from,
            to: begun_s,
        }
    };
    set.statements.iter().map(span).collect()
}

/// The length of some samples in seconds, and what a share moved in bytes per second.
fn rate(samples: &[TrafficSample], share: usize, is_read: bool) -> (f64, f64) {
    let seconds: f64 = samples.iter().map(|sample| sample.seconds).sum();
    let of_share = samples.iter().filter_map(|sample| sample.shares.get(share));
    let bytes: u64 = of_share
        .map(|moved| match is_read {
            true => moved.read_bytes,
            false => moved.written_bytes,
        })
        .sum();
    (seconds, bytes as f64 / seconds.max(1e-9))
}
