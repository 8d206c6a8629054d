//! The demo's experiment as findings, which the page shows: scores, the time of each statement, what each share
//! transferred over time, and the paper's table for each set-up.

use std::collections::BTreeMap;

use super::{
    Axis, Bar, BarRow, Findings, FindingsTable, Marks, Plot, grouped, link_text,
    table::{links, paper_speedup, scan_link_use, speed, times},
    timeline,
};
use crate::{
    machine,
    statements::{ExperimentReport, SetReport, StatementReport, paper_scores_s},
};

impl ExperimentReport {
    /// What the page shows. Its machine is this one.
    pub fn findings(&self) -> Findings {
        let mut tables = vec![scores(self)];
        tables.extend(self.sets.iter().map(|set| statements(self, set)));
        let mut plots = vec![statement_times(self)];
        plots.extend(self.sets.iter().map(|set| timeline::plot(self, set)));
        Findings {
            profile: "SQL".into(),
            on: self.sets.iter().map(|set| set.name.clone()).collect(),
            about: about(self),
            answer: answer(self),
            notes: self.notes.clone(),
            machine: conditions(self),
            tables,
            plots,
            ..Findings::default()
        }
    }
}

fn about(report: &ExperimentReport) -> String {
    let data = &report.data;
    let link = report.link_bits_per_s.map_or("no limit".into(), link_text);
    format!(
        "{} rows of drive_stats, {} to {}, {} MiB; five statements, each share behind a link of {link} in each \
         direction",
        grouped(data.rows),
        data.first_day,
        data.last_day,
        data.table_bytes >> 20,
    )
}

fn answer(report: &ExperimentReport) -> String {
    let paper = times(paper_speedup());
    let [first, others @ ..] = &report.sets[..] else {
        return "Nothing was measured.".into();
    };
    let score = format!("{} scores {:.3} s", first.name, first.score_s());
    let others = others.iter().map(|set| {
        let ratio = report.speedup(set);
        let slower = if ratio < 0.995 { " (slower)" } else { "" };
        format!("; {} is {} as fast{slower}", set.name, times(ratio))
    });
    let others: String = others.collect();
    format!("SQLite on {score}{others} (in the paper, two shares were {paper} as fast as one).")
}

fn conditions(report: &ExperimentReport) -> BTreeMap<String, String> {
    let mut all = machine::facts();
    all.extend(report.settings.iter().cloned());
    all.insert("month deleted".into(), report.data.deleted_month.clone());
    all
}

fn scores(report: &ExperimentReport) -> FindingsTable {
    let mut table = FindingsTable::new(
        "Scores",
        "The score is the mean of the five weighted averages, as in the paper; less is better.",
        &["set-up", "score, s", "speed-up", "links in scans"],
    );
    for set in &report.sets {
        table.rows.push(vec![
            set.name.clone(),
            format!("{:.3}", set.score_s()),
            speed(report.speedup(set)),
            scan_link_use(report, set).unwrap_or_else(|| "–".into()),
        ]);
    }
    let [one, two] = paper_scores_s();
    for (name, score_s, speedup) in [
        ("the paper, one share", one, 1.0),
        ("the paper, two shares", two, paper_speedup()),
    ] {
        let cells = [format!("{score_s:.3}"), times(speedup), "–".into()];
        table
            .rows
            .push([name.into()].into_iter().chain(cells).collect());
    }
    table
}

/// The paper's table.
fn statements(report: &ExperimentReport, set: &SetReport) -> FindingsTable {
    let runs = set.runs_max();
    let unit = match report.link_bits_per_s {
        Some(_) => "of the link",
        None => "MB/s",
    };
    let mut table = FindingsTable::new(
        &format!("Statements on {}", set.name),
        "Seconds. Set-ups take turns within every run, and each run has a connection of its own, so SQLite's cache is \
         cold. DELETE and VACUUM run one after the other on a fresh copy of the loaded database; VACUUM stands for \
         OPTIMIZE TABLE. The last column has the payload of each share: r from it, w to it.",
        &["statement"],
    );
    let columns = (1..=runs).map(|run| format!("run {run}, s"));
    let others = [
        "average, s",
        "weight",
        "weighted, s",
        "speed-up",
        "paper",
        unit,
    ];
    table
        .columns
        .extend(columns.chain(others.map(str::to_owned)));
    for (index, measured) in set.statements.iter().enumerate() {
        let statement = &measured.statement;
        let paper = statement.paper_speedup();
        let cells = [
            format!("{:.3}", measured.average_s()),
            format!("{:.2}", statement.weight),
            format!("{:.3}", measured.weighted_s()),
            speed(report.statement_speedup(set, index)),
            paper.map_or("–".into(), times),
            // Spaces in a row are one on a page.
            links(report, set, measured).replace("  ", ", "),
        ];
        let row = [statement.sql.clone()].into_iter();
        table
            .rows
            .push(row.chain(measured.cells(runs)).chain(cells).collect());
    }
    table
}

fn statement_times(report: &ExperimentReport) -> Plot {
    let statements = report.sets.first().map_or(&[][..], |set| &set.statements);
    let rows = statements.iter().enumerate().map(|(index, first)| BarRow {
        name: first.statement.name.clone(),
        lines: report
            .sets
            .iter()
            .enumerate()
            .filter_map(|(class, set)| {
                let measured = set.statements.get(index)?;
                let speedup = report.statement_speedup(set, index);
                Some(vec![bar(class, &set.name, measured, speedup)])
            })
            .collect(),
    });
    let names = report.sets.iter().map(|set| set.name.clone());
    Plot {
        title: "Time of each statement".into(),
        about: "The average of all runs; shorter is better.".into(),
        x: Axis {
            label: "seconds".into(),
            is_logarithmic: false,
        },
        y: Axis::default(),
        marks: Marks::Bars {
            rows: rows.collect(),
            legend: names.enumerate().collect(),
        },
    }
}

fn bar(class: usize, set: &str, measured: &StatementReport, speedup: f64) -> Bar {
    let runs: Vec<String> = measured.cells(measured.runs.len()).collect();
    let average_s = measured.average_s();
    let speedup = speed(speedup);
    Bar {
        from: 0.0,
        to: average_s,
        class,
        label: format!("{average_s:.2} s, {speedup}"),
        tip: format!(
            "{} on {set}\n{average_s:.3} s on average, {speedup}\nruns: {} s",
            measured.statement.sql,
            runs.join(", "),
        ),
    }
}
