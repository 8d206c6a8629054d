//! The report as text for a terminal: the paper's table for each set-up, then the scores.

use std::fmt::Write;

use super::{grouped, link_text};
use crate::statements::{
    ExperimentReport, SetReport, StatementKind, StatementReport, paper_scores_s,
};

/// Width of the statement column; longer statements end in "…".
const STATEMENT_WIDTH: usize = 38;

/// Width of a setting's name.
const SETTING_WIDTH: usize = 16;

/// The tables of all set-ups and the scores, in lines of at most some 120 columns.
pub fn table(report: &ExperimentReport) -> String {
    let mut text = String::new();
    for note in &report.notes {
        line(&mut text, note);
    }
    line(&mut text, &about(report));
    for (name, value) in &report.settings {
        line(&mut text, &format!("  {name:<SETTING_WIDTH$} {value}"));
    }
    for set in &report.sets {
        line(&mut text, "");
        set_table(&mut text, report, set);
    }
    line(&mut text, "");
    scores(&mut text, report);
    text
}

fn about(report: &ExperimentReport) -> String {
    let data = &report.data;
    let link = report
        .link_bits_per_s
        .map_or("not limited".into(), link_text);
    format!(
        "drive_stats: {} rows, {} to {}, {} MiB; each share's link: {link}",
        grouped(data.rows),
        data.first_day,
        data.last_day,
        data.table_bytes >> 20,
    )
}

fn set_table(text: &mut String, report: &ExperimentReport, set: &SetReport) {
    let runs = set.runs_max();
    let mut head = format!("{:<STATEMENT_WIDTH$}", clipped(&set.name));
    for run in 1..=runs {
        let _ = write!(head, " {:>7}", format!("run {run} s"));
    }
    let _ = write!(
        head,
        " {:>9} {:>6} {:>10} {:>8} {:>6}",
        "average s", "weight", "weighted s", "speed-up", "paper"
    );
    let _ = write!(
        head,
        "  {}",
        if report.link_bits_per_s.is_some() {
            "of the link"
        } else {
            "MB/s"
        }
    );
    line(text, &head);
    line(text, &"─".repeat(head.chars().count()));
    for (index, statement) in set.statements.iter().enumerate() {
        let mut row = format!("{:<STATEMENT_WIDTH$}", clipped(&statement.statement.sql));
        for cell in statement.cells(runs) {
            let _ = write!(row, " {cell:>7}");
        }
        let _ = write!(
            row,
            " {:>9.3} {:>6.2} {:>10.3} {:>8} {:>6}",
            statement.average_s(),
            statement.statement.weight,
            statement.weighted_s(),
            times(report.statement_speedup(set, index)),
            statement
                .statement
                .paper_speedup()
                .map_or(String::new(), times),
        );
        let _ = write!(row, "  {}", links(report, set, statement));
        line(text, &row);
    }
    let width = STATEMENT_WIDTH + runs * 8;
    line(
        text,
        &format!(
            "{:<width$} {:>9} {:>6} {:>10.3} {:>8} {:>6}",
            "score: mean of the weighted averages",
            "",
            "",
            set.score_s(),
            times(report.speedup(set)),
            times(paper_speedup()),
        ),
    );
}

/// What each share of the set-up transferred, as a fraction of its link or in MB/s: what it read and, for
/// statements that write, what it wrote.
pub(super) fn links(
    report: &ExperimentReport,
    set: &SetReport,
    statement: &StatementReport,
) -> String {
    let in_unit = |bytes_per_s: f64| match report.link_bytes_per_s() {
        Some(link) => format!("{:.0}", 100.0 * bytes_per_s / link),
        None => format!("{:.0}", bytes_per_s / 1e6),
    };
    let of_share = |share: &usize| {
        let (read, written) = statement.throughput(*share);
        match statement.statement.kind {
            StatementKind::Scan => in_unit(read),
            StatementKind::Delete | StatementKind::Vacuum => {
                format!("{}r+{}w", in_unit(read), in_unit(written))
            }
        }
    };
    let shares: Vec<String> = set.shares.iter().map(of_share).collect();
    let unit = if report.link_bits_per_s.is_some() {
        " %"
    } else {
        ""
    };
    format!("{}{unit}", shares.join("  "))
}

fn scores(text: &mut String, report: &ExperimentReport) {
    let width = report
        .sets
        .iter()
        .map(|set| set.name.chars().count())
        .max()
        .unwrap_or(0)
        .max(9);
    for set in &report.sets {
        let least = scan_link_use(report, set).map(|told| format!("   {told}"));
        let times = speed(report.speedup(set));
        let score = set.score_s();
        let least = least.unwrap_or_default();
        line(
            text,
            &format!("{:<width$}  {score:>8.3} s  {times:>6}{least}", set.name),
        );
    }
    let [one, two] = paper_scores_s();
    let times = times(paper_speedup());
    line(
        text,
        &format!(
            "{:<width$}  {two:>8.3} s  {times:>6}   (its one share: {one:.3} s)",
            "the paper"
        ),
    );
}

/// How far the scans used the links of a set-up, if links were limited.
pub(super) fn scan_link_use(report: &ExperimentReport, set: &SetReport) -> Option<String> {
    let part = report.least_scan_link_use(set)?;
    Some(match part {
        // With a cache that holds the table, the links are idle.
        ..0.05 => "the scans came from memory".into(),
        _ => format!(
            "every share read at ≥ {:.0} % of its link in the scans",
            (100.0 * part).floor()
        ),
    })
}

pub(super) fn paper_speedup() -> f64 {
    let [one, two] = paper_scores_s();
    one / two
}

/// Formats a ratio: "1.85×".
pub(super) fn times(ratio: f64) -> String {
    format!("{ratio:.2}×")
}

/// Formats a speed-up, which need not be one: "1.85×", "0.40× (slower)".
pub(crate) fn speed(ratio: f64) -> String {
    match ratio {
        ..0.995 => format!("{} (slower)", times(ratio)),
        _ => times(ratio),
    }
}

fn clipped(text: &str) -> String {
    if text.chars().count() <= STATEMENT_WIDTH {
        return text.into();
    }
    text.chars()
        .take(STATEMENT_WIDTH - 1)
        .chain(['…'])
        .collect()
}

fn line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}
