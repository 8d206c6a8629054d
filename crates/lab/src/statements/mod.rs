//! The reference experiment: five SQL statements over `drive_stats`, each with a weight, timed on alternating
//! set-ups, with one score for each set-up. Statements, weights and score are those of "An Investigation in
//! to iSCSI performance optimization for Virtualized Sequential SQL Database operations", whose published
//! figures are included here for comparison.

mod check;
mod experiment;
mod load;
mod report;
mod sampling;
mod survey;
#[cfg(test)]
mod tests;

pub(crate) use check::check;
pub use experiment::{Experiment, MeasuredShare, SetUp};
pub use report::{
    DataReport, ExperimentReport, RunReport, SetReport, ShareReport, StatementReport,
};
pub use sampling::{Traffic, TrafficSample};
pub use survey::Survey;

use crate::drive_stats::Month;

/// Placeholder in a statement for the month to delete, such as `2017-01`.
const MONTH: &str = "{month}";

/// How a statement is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatementKind {
    /// Reads the whole table and changes nothing.
    Scan,
    /// Deletes a month; needs a fresh copy.
    Delete,
    /// Rewrites the table; runs on the copy left by the deletion, as in the paper.
    Vacuum,
}

/// A timed statement.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// A short name without spaces.
    pub name: String,
    /// The SQL to run; `{month}` in it stands for the data's first full month.
    pub sql: String,
    /// How it is run.
    pub kind: StatementKind,
    /// Its weight in the score.
    pub weight: f64,
    /// How often it runs.
    pub runs: u32,
    /// The paper's averages in seconds, if it has this statement: one share (4 KiB blocks), two shares
    /// striped (1 MiB).
    pub paper_s: Option<[f64; 2]>,
}

impl Statement {
    /// The paper's speedup from two shares.
    pub fn paper_speedup(&self) -> Option<f64> {
        self.paper_s.map(|[one, two]| one / two)
    }

    /// The same statement with this number of runs.
    #[must_use]
    pub fn repeated(self, runs: u32) -> Statement {
        Statement { runs, ..self }
    }

    /// The same for data whose first full month is `month`.
    pub(crate) fn of_month(self, month: Month) -> Statement {
        let sql = self.sql.replace(MONTH, &month.to_string());
        Statement { sql, ..self }
    }
}

/// The five statements in the paper's order, run as often as in the paper. `VACUUM` replaces
/// `OPTIMIZE TABLE`: both rewrite the table without its holes.
pub fn statements() -> [Statement; 5] {
    let statement = |name: &str, sql: &str, kind, weight, paper_s| Statement {
        name: name.into(),
        sql: sql.into(),
        kind,
        weight,
        runs: if kind == StatementKind::Scan { 4 } else { 1 },
        paper_s: Some(paper_s),
    };
    [
        statement(
            "count-serials",
            "SELECT DISTINCT count(serial_number) FROM drive_stats;",
            StatementKind::Scan,
            0.25,
            [41.2525, 31.0],
        ),
        statement(
            "failed-drives",
            "SELECT serial_number FROM drive_stats WHERE failure = 1;",
            StatementKind::Scan,
            0.25,
            // Printed as 40.8825; the paper's weighted average and total fit only this.
            [40.6825, 30.6725],
        ),
        statement(
            "delete-month",
            "DELETE FROM drive_stats WHERE date LIKE '{month}-%';",
            StatementKind::Delete,
            0.2,
            [174.6, 158.8],
        ),
        statement(
            "vacuum",
            "VACUUM;",
            StatementKind::Vacuum,
            0.05,
            [779.4, 632.5],
        ),
        statement(
            "largest-capacities",
            "SELECT capacity_bytes FROM drive_stats ORDER BY capacity_bytes DESC LIMIT 3;",
            StatementKind::Scan,
            0.4,
            [28.565, 19.2475],
        ),
    ]
}

/// The score: the mean of the weighted averages, in seconds; less is better. As in the paper, the weights do
/// not add up to one, so the deletion and the rewrite, which take longest, count most.
pub fn score_s(weights_and_averages_s: impl IntoIterator<Item = (f64, f64)>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for (weight, average_s) in weights_and_averages_s {
        sum += weight * average_s;
        count += 1.0;
    }
    if count == 0.0 { 0.0 } else { sum / count }
}

/// The paper's scores in seconds: one share, two shares striped.
pub fn paper_scores_s() -> [f64; 2] {
    [0, 1].map(|column| {
        let of_paper = statements().map(|s| (s.weight, s.paper_s.map_or(0.0, |s| s[column])));
        score_s(of_paper)
    })
}
