//! The report model must reproduce the paper's published figures, and the three output forms must agree with
//! the model.

use super::*;
use crate::statements::{
    DataReport, ExperimentReport, RunReport, SetReport, ShareReport, StatementKind,
    StatementReport, Traffic, TrafficSample, statements,
};

/// One run for each statement of the paper: its averages on one share and on two.
fn papers_report() -> ExperimentReport {
    let set = |name: &str, shares: Vec<usize>, column: usize| SetReport {
        name: name.into(),
        statements: statements()
            .into_iter()
            .map(|statement| {
                let seconds = statement.paper_s.expect("the paper has it")[column];
                let bytes = if statement.kind == StatementKind::Scan {
                    120e6
                } else {
                    60e6
                } * seconds;
                let moved = Traffic {
                    read_bytes: bytes as u64,
                    written_bytes: bytes as u64 / 2,
                };
                let traffic = vec![moved; 2];
                let samples = vec![
                    TrafficSample {
                        at_s: seconds / 2.0,
                        seconds: seconds / 2.0,
                        shares: traffic.clone()
                    };
                    2
                ];
                StatementReport {
                    runs: vec![RunReport {
                        seconds,
                        traffic,
                        samples,
                    }],
                    statement,
                }
            })
            .collect(),
        shares,
    };
    ExperimentReport {
        notes: vec!["a note with <angle> brackets".into()],
        link_bits_per_s: Some(1_000_000_000),
        settings: vec![("journal_mode".into(), "DELETE".into())],
        data: DataReport {
            rows: 1_250_000,
            first_day: "2017-01-01".into(),
            last_day: "2017-02-28".into(),
            deleted_month: "2017-01".into(),
            table_bytes: 300 << 20,
        },
        shares: ["share 1", "share 2"]
            .map(|name| ShareReport { name: name.into() })
            .into(),
        sets: vec![
            set("one share", vec![0], 0),
            set("two shares, striped", vec![0, 1], 1),
        ],
    }
}

#[test]
fn the_papers_figures_give_the_papers_scores() {
    let report = papers_report();
    assert!((report.sets[0].score_s() - 21.159_95).abs() < 1e-9);
    assert!((report.sets[1].score_s() - 17.300_425).abs() < 1e-9);
    let speedup = report.speedup(&report.sets[1]);
    assert!((speedup - 1.2231).abs() < 1e-4, "{speedup}");
    assert!((report.statement_speedup(&report.sets[1], 4) - 1.484).abs() < 1e-3);
    assert_eq!(report.speedup(&report.sets[0]), 1.0);
}

#[test]
fn link_use_is_what_was_moved_over_what_the_link_carries() {
    let report = papers_report();
    let least = report.least_scan_link_use(&report.sets[1]).unwrap();
    assert!((least - 0.96).abs() < 1e-6, "{least}");
    let unlimited = ExperimentReport {
        link_bits_per_s: None,
        ..report
    };
    assert_eq!(unlimited.least_scan_link_use(&unlimited.sets[0]), None);
}

#[test]
fn the_table_has_a_row_for_each_statement_and_the_papers_ratio_beside_ours() {
    let text = table(&papers_report());
    assert!(text.starts_with("a note"), "{text}");
    assert_eq!(text.matches("VACUUM;").count(), 2);
    assert!(text.contains("1,250,000 rows"), "{text}");
    assert!(text.contains("17.300 s   1.22×"), "{text}");
    assert!(
        text.contains("96  96 %") && text.contains("48r+24w  48r+24w %"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 125),
        "{text}"
    );
}

#[test]
fn the_json_has_the_keys_that_stay() {
    let value = json(&papers_report());
    let set = &value["sets"][1];
    assert_eq!(set["name"], "two shares, striped");
    assert!((set["weighted_score_s"].as_f64().unwrap() - 17.300_425).abs() < 1e-9);
    assert!(set["speedup"].as_f64().unwrap() > 1.2);
    let statement = &set["statements"][3];
    assert_eq!(statement["name"], "vacuum");
    assert_eq!(statement["runs_s"], serde_json::json!([632.5]));
    assert_eq!(statement["average_s"], 632.5);
    assert!(statement["speedup"].as_f64().unwrap() > 1.2);
}

#[test]
fn the_page_has_a_plot_of_the_statements_and_one_for_each_set_up() {
    let page = page(&papers_report().findings());
    assert!(page.contains("a note with &lt;angle&gt; brackets"));
    assert!(page.contains("LIKE &#39;{month}-%&#39;"));
    let answer = "<p>SQLite on one share scores 21.160 s; two shares, striped is 1.22× as fast";
    assert!(page.contains(answer), "{page}");
    assert_eq!(page.matches("<svg").count(), 3);
    let tip =
        "data-tip=\"VACUUM; on two shares, striped\n632.500 s on average, 1.23×\nruns: 632.50 s\"";
    assert!(page.contains(tip), "{page}");
    let tip = "data-tip=\"share 2, reads\nvacuum\nseconds: 379\nMB/s: 120\"";
    assert!(page.contains(tip), "{page}");
    assert!(!page.contains("NaN") && !page.contains("inf"));
    // An experiment without a run must not divide by zero.
    let mut empty = papers_report();
    for statement in empty.sets.iter_mut().flat_map(|set| &mut set.statements) {
        statement.runs.clear();
    }
    let page = super::page(&empty.findings());
    assert!(!page.contains("NaN") && !table(&empty).contains("NaN"));
}
