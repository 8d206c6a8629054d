//! The reference experiment: five SQL statements over `drive_stats`, each with a weight, timed on
//! several set-ups in turn, and one score for each set-up. Statements, weights and score are those
//! of "An Investigation in to iSCSI performance optimization for Virtualized Sequential SQL
//! Database operations", whose figures are kept here to stand beside ours.

mod experiment;
mod load;
mod sampling;
mod survey;
#[cfg(test)]
mod tests;

pub use experiment::{Experiment, SetUp, Share};
pub use sampling::{Sample, Traffic};
pub use survey::Survey;

use crate::drive_stats::Month;

/// How a statement is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads the whole table and changes nothing.
    Scan,
    /// Deletes a month; needs a fresh copy.
    Delete,
    /// Rewrites the table; runs on the copy that the deletion left, as the paper did.
    Vacuum,
}

/// One of the five statements.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// A short name without spaces.
    pub name: &'static str,
    /// What SQLite runs.
    pub sql: String,
    /// How it is run.
    pub kind: Kind,
    /// Its weight in the score.
    pub weight: f64,
    /// The paper's averages in seconds: one share (4 KiB blocks), two shares striped (1 MiB).
    pub paper_s: [f64; 2],
}

impl Statement {
    /// What the paper gained with two shares.
    pub fn paper_speedup(&self) -> f64 {
        self.paper_s[0] / self.paper_s[1]
    }
}

/// The five statements in the paper's order; `month` is the one that is deleted. `VACUUM` stands
/// for `OPTIMIZE TABLE`: both rewrite the table without its holes.
pub fn statements(month: Month) -> [Statement; 5] {
    let statement = |name, sql: &str, kind, weight, paper_s| Statement {
        name,
        sql: sql.into(),
        kind,
        weight,
        paper_s,
    };
    [
        statement(
            "count-serials",
            "SELECT DISTINCT count(serial_number) FROM drive_stats;",
            Kind::Scan,
            0.25,
            [41.2525, 31.0],
        ),
        statement(
            "failed-drives",
            "SELECT serial_number FROM drive_stats WHERE failure = 1;",
            Kind::Scan,
            0.25,
            // Printed as 40.8825; the paper's weighted average and total fit only this.
            [40.6825, 30.6725],
        ),
        statement(
            "delete-month",
            &format!("DELETE FROM drive_stats WHERE date LIKE '{month}-%';"),
            Kind::Delete,
            0.2,
            [174.6, 158.8],
        ),
        statement("vacuum", "VACUUM;", Kind::Vacuum, 0.05, [779.4, 632.5]),
        statement(
            "largest-capacities",
            "SELECT capacity_bytes FROM drive_stats ORDER BY capacity_bytes DESC LIMIT 3;",
            Kind::Scan,
            0.4,
            [28.565, 19.2475],
        ),
    ]
}

/// The score: the mean of the weighted averages, in seconds; less is better. As in the paper the
/// weights do not add up to one, so the deletion and the rewrite, which take longest, count most.
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
    let month = Month::of(2017, 1);
    [0, 1].map(|column| {
        score_s(
            statements(month)
                .iter()
                .map(|s| (s.weight, s.paper_s[column])),
        )
    })
}
