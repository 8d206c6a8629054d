//! The report for programs. `sets[].{name, weighted_score_s, speedup, statements[].{name, runs_s, average_s,
//! speedup}}` is a stable interface; other keys may be added.

use serde_json::{Value, json};

use super::table::paper_speedup;
use crate::statements::{ExperimentReport, SetReport, StatementReport, paper_scores_s};

/// The report with all samples. Times are in seconds, rates in bits or bytes per second as named.
pub fn json(report: &ExperimentReport) -> Value {
    let [paper_one, paper_two] = paper_scores_s();
    json!({
        "format": 1,
        "notes": report.notes,
        "link_bits_per_s": report.link_bits_per_s,
        "settings": report.settings.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        "data": report.data,
        "shares": report.shares.iter().map(|share| json!({ "name": share.name })).collect::<Vec<_>>(),
        "sets": report.sets.iter().map(|set| set_json(report, set)).collect::<Vec<_>>(),
        "paper": {
            "one_share_score_s": paper_one,
            "two_shares_score_s": paper_two,
            "speedup": paper_speedup(),
        },
    })
}

fn set_json(report: &ExperimentReport, set: &SetReport) -> Value {
    let statement_json = |(index, statement): (usize, &StatementReport)| {
        let throughput = set.shares.iter().map(|share| {
            let (read, written) = statement.throughput(*share);
            let of_link =
                |bytes_per_s: f64| report.link_bytes_per_s().map(|link| bytes_per_s / link);
            json!({
                "share": share,
                "read_bytes_per_s": read,
                "written_bytes_per_s": written,
                "read_of_link": of_link(read),
                "written_of_link": of_link(written),
            })
        });
        let samples = statement
            .runs
            .iter()
            .map(|run| &run.samples)
            .collect::<Vec<_>>();
        json!({
            "name": statement.statement.name,
            "sql": statement.statement.sql,
            "weight": statement.statement.weight,
            "runs_s": statement.runs.iter().map(|run| run.seconds).collect::<Vec<_>>(),
            "average_s": statement.average_s(),
            "weighted_s": statement.weighted_s(),
            "speedup": report.statement_speedup(set, index),
            "paper_speedup": statement.statement.paper_speedup(),
            "shares": throughput.collect::<Vec<_>>(),
            "samples": samples,
        })
    };
    json!({
        "name": set.name,
        "weighted_score_s": set.score_s(),
        "speedup": report.speedup(set),
        "least_scan_link_use": report.least_scan_link_use(set),
        "shares": set.shares,
        "statements": set.statements.iter().enumerate().map(statement_json).collect::<Vec<_>>(),
    })
}
