//! The result of the experiment, with all samples and what they amount to.

use super::{Statement, StatementKind, Traffic, TrafficSample, score_s};

/// A finished experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct ExperimentReport {
    /// Introductory lines: what was chosen and why, and facts about this machine.
    pub notes: Vec<String>,
    /// Each link's rate in each direction in bits per second, if it was limited.
    pub link_bits_per_s: Option<u64>,
    /// The database's settings, by name, as SQLite reports them.
    pub settings: Vec<(String, String)>,
    /// The data.
    pub data: DataReport,
    /// The shares.
    pub shares: Vec<ShareReport>,
    /// The set-ups; the others are compared with the first.
    pub sets: Vec<SetReport>,
}

/// The data used for the measurement.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct DataReport {
    /// Rows in the table.
    pub rows: u64,
    /// Its first day.
    pub first_day: String,
    /// Its last day.
    pub last_day: String,
    /// The month that DELETE removed.
    pub deleted_month: String,
    /// Size of the database in bytes.
    pub table_bytes: u64,
}

/// One share.
#[derive(Debug, Clone, PartialEq)]
pub struct ShareReport {
    /// Its name.
    pub name: String,
}

/// One set-up.
#[derive(Debug, Clone, PartialEq)]
pub struct SetReport {
    /// Its name.
    pub name: String,
    /// The shares it uses, by index.
    pub shares: Vec<usize>,
    /// The statements in the paper's order.
    pub statements: Vec<StatementReport>,
}

/// One statement on one set-up.
#[derive(Debug, Clone, PartialEq)]
pub struct StatementReport {
    /// The statement.
    pub statement: Statement,
    /// Its runs in their order.
    pub runs: Vec<RunReport>,
}

/// One timed run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunReport {
    /// Its duration in seconds.
    pub seconds: f64,
    /// What each share of the experiment transferred.
    pub traffic: Vec<Traffic>,
    /// The same over time.
    pub samples: Vec<TrafficSample>,
}

impl StatementReport {
    /// A statement that has not run yet.
    pub fn new(statement: Statement) -> Self {
        Self {
            statement,
            runs: Vec::new(),
        }
    }

    /// The seconds of each run as formatted for tables; empty for runs that did not take place.
    pub(crate) fn cells(&self, runs: usize) -> impl Iterator<Item = String> {
        let cell = |run: &RunReport| format!("{:.2}", run.seconds);
        (0..runs).map(move |run| self.runs.get(run).map(cell).unwrap_or_default())
    }

    /// Mean of the runs in seconds.
    pub fn average_s(&self) -> f64 {
        let sum: f64 = self.runs.iter().map(|run| run.seconds).sum();
        if self.runs.is_empty() {
            0.0
        } else {
            sum / self.runs.len() as f64
        }
    }

    /// The average times the weight, in seconds.
    pub fn weighted_s(&self) -> f64 {
        self.average_s() * self.statement.weight
    }

    /// What `share` read and wrote in bytes per second, over all runs.
    pub fn throughput(&self, share: usize) -> (f64, f64) {
        let seconds: f64 = self.runs.iter().map(|run| run.seconds).sum();
        let traffic = self.runs.iter().filter_map(|run| run.traffic.get(share));
        let sum = traffic.fold(Traffic::default(), |sum, traffic| sum.plus(*traffic));
        if seconds == 0.0 {
            return (0.0, 0.0);
        }
        (
            sum.read_bytes as f64 / seconds,
            sum.written_bytes as f64 / seconds,
        )
    }
}

impl SetReport {
    /// The number of columns that its statements' runs need.
    pub(crate) fn runs_max(&self) -> usize {
        let runs = self.statements.iter().map(|s| s.runs.len());
        runs.max().unwrap_or(0)
    }

    /// Its score in seconds.
    pub fn score_s(&self) -> f64 {
        score_s(
            self.statements
                .iter()
                .map(|s| (s.statement.weight, s.average_s())),
        )
    }
}

impl ExperimentReport {
    /// How many times faster `set` is than the first set-up, by score.
    pub fn speedup(&self, set: &SetReport) -> f64 {
        ratio(
            self.sets.first().map_or(0.0, SetReport::score_s),
            set.score_s(),
        )
    }

    /// How many times faster a statement (by its index) is on `set` than on the first set-up.
    pub fn statement_speedup(&self, set: &SetReport, statement: usize) -> f64 {
        let average = |set: &SetReport| {
            set.statements
                .get(statement)
                .map_or(0.0, StatementReport::average_s)
        };
        ratio(self.sets.first().map_or(0.0, average), average(set))
    }

    /// The capacity of a link in each direction, in bytes per second.
    pub fn link_bytes_per_s(&self) -> Option<f64> {
        self.link_bits_per_s.map(|bits| bits as f64 / 8.0)
    }

    /// The lowest link utilisation, 0 to 1, at which any share of `set` was read in any scan.
    pub fn least_scan_link_use(&self, set: &SetReport) -> Option<f64> {
        let link = self.link_bytes_per_s()?;
        let scans = set
            .statements
            .iter()
            .filter(|s| s.statement.kind == StatementKind::Scan);
        let uses = scans.flat_map(|s| set.shares.iter().map(move |share| s.throughput(*share).0));
        uses.map(|bytes_per_s| bytes_per_s / link).reduce(f64::min)
    }
}

fn ratio(before: f64, after: f64) -> f64 {
    if after > 0.0 { before / after } else { 0.0 }
}
