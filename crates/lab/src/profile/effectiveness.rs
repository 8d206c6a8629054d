//! `effectiveness`: I/Os per percent of a processor, for reads and for writes, at full speed and at given
//! rates. At full speed a faster disk may simply have got more processor time; at a given rate all do the
//! same work.

use serde::{Deserialize, Serialize};
use serde_json::json;
use volume::config::{Size, Time};

use super::{
    Case, Experiment, Needs, OUTSTANDING_MAX, Runner, SESSIONS_MAX, Work, check_time, poisson,
    runner::Figures, within, workload,
};
use crate::{
    Result,
    load::{Arrivals, Operation, Order, Spacing, Workload},
    report::{Axis, Findings, Marks, Plot, Score, Table, short},
};

/// A rate above this fraction of the maximum cannot be held reliably.
const HELD_MAX: f64 = 0.95;

/// The settings of an `effectiveness` profile.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Effectiveness {
    about: String,
    size: Size,
    block: Size,
    #[serde(default)]
    order: Order,
    sessions: usize,
    outstanding: usize,
    rates: Vec<f64>,
    #[serde(default = "poisson")]
    spacing: Spacing,
    time: Time,
    #[serde(default)]
    verify: bool,
}

/// One load.
#[derive(Clone, Debug, Serialize)]
struct Run {
    operation: Operation,
    /// `None`: at full speed.
    rate_per_s: Option<f64>,
    /// I/Os per second for each percent of a processor.
    ios_per_percent: f64,
    figures: Figures,
}

impl Effectiveness {
    fn workload(&self, operation: Operation, rate_per_s: Option<f64>) -> Workload {
        let read_percent = match operation {
            Operation::Read => 100,
            Operation::Write => 0,
        };
        let arrivals = match rate_per_s {
            None => Arrivals::Closed {
                outstanding: self.sessions * self.outstanding,
            },
            Some(rate_per_s) => Arrivals::Open {
                rate_per_s,
                spacing: self.spacing,
            },
        };
        Workload {
            order: self.order,
            arrivals,
            // It measures processor time, so do not spend any on polling the clock.
            is_prompt: false,
            ..workload(self.block, read_percent, self.size)
        }
    }
}

impl Experiment for Effectiveness {
    fn about(&self) -> &str {
        &self.about
    }

    fn needs(&self) -> Needs {
        Needs {
            sessions: self.sessions,
            size_bytes: self.size.bytes(),
            writes: true,
            is_spread: true,
        }
    }

    fn steps(&self) -> usize {
        2 * (1 + self.rates.len())
    }

    fn run(&self, runner: &mut Runner<'_>) -> Result<Findings> {
        let luns = runner.luns(self.sessions)?;
        let time = self.time.duration();
        let mut runs = Vec::new();
        let mut notes = Vec::new();
        for operation in [Operation::Write, Operation::Read] {
            let mut most = f64::INFINITY;
            let rates = self.rates.iter().copied().map(Some);
            for rate_per_s in std::iter::once(None).chain(rates) {
                let name = name(operation, rate_per_s);
                if rate_per_s.is_some_and(|rate| rate > HELD_MAX * most) {
                    notes.push(format!(
                        "{name}: left out, because at most {} a second are possible",
                        short(most)
                    ));
                    continue;
                }
                let workload = self.workload(operation, rate_per_s);
                let Some(step) = runner.load(&name, &luns, &workload, time)? else {
                    continue;
                };
                let cpu = &step.figures.cpu;
                let percent = cpu.pid_percent.unwrap_or(cpu.own_percent);
                if rate_per_s.is_none() {
                    most = step.figures.iops;
                }
                runs.push(Run {
                    operation,
                    rate_per_s,
                    ios_per_percent: step.figures.iops / percent.max(1e-9),
                    figures: step.figures,
                });
            }
        }
        let whose = match runner.pid {
            Some(pid) => format!("process {pid}"),
            None => "this program, including the load generator".into(),
        };
        notes.extend(
            runner
                .pid
                .is_none()
                .then(|| "name the target's process with --pid to see its cost alone".into()),
        );
        Ok(Findings {
            answer: answer(&runs, &whose),
            advice: advice(&runs).into_iter().collect(),
            tables: vec![table(&runs, &whose)],
            plots: vec![plot(&runs)],
            scores: runs.iter().map(score).collect(),
            figures: json!({ "runs": runs, "cpu_of": whose }),
            notes,
            ..Findings::default()
        })
    }

    fn cases(&self) -> Vec<Case> {
        let case = |operation| Case {
            name: name(operation, None),
            work: Work::Load(self.workload(operation, None)),
            time: self.time,
        };
        [Operation::Read, Operation::Write].map(case).into()
    }

    fn verifies(&self) -> bool {
        self.verify
    }

    fn check(&self) -> std::result::Result<(), String> {
        within("sessions", self.sessions, 1..=SESSIONS_MAX)?;
        within("outstanding", self.outstanding, 1..=OUTSTANDING_MAX)?;
        for rate in &self.rates {
            within("rates", *rate, 1.0..=1e7)?;
        }
        check_time(self.time)
    }
}

fn name(operation: Operation, rate_per_s: Option<f64>) -> String {
    let what = match operation {
        Operation::Read => "reads",
        Operation::Write => "writes",
    };
    match rate_per_s {
        None => format!("{what}, as many as it can do"),
        Some(rate_per_s) => format!("{what}, {} a second", short(rate_per_s)),
    }
}

/// The figure that a history tracks.
fn score(run: &Run) -> Score {
    let name = name(run.operation, run.rate_per_s);
    Score::more(
        format!("I/Os a second for 1 % of a processor, {name}"),
        run.ios_per_percent,
    )
}

fn answer(runs: &[Run], whose: &str) -> String {
    let at_most = |operation| {
        let of = |run: &&Run| run.operation == operation && run.rate_per_s.is_none();
        runs.iter().find(of)
    };
    let told = |run: &Run, what: &str| {
        format!(
            "{} {what} a second ({} in all)",
            short(run.ios_per_percent),
            short(run.figures.iops)
        )
    };
    let reads = at_most(Operation::Read).map(|run| told(run, "reads"));
    let writes = at_most(Operation::Write).map(|run| told(run, "writes"));
    let both: Vec<String> = reads.into_iter().chain(writes).collect();
    match both.is_empty() {
        true => "Nothing was measured.".into(),
        false => format!(
            "Each percent of a processor does {}; the processor time is that of {whose}.",
            both.join(" and ")
        ),
    }
}

fn advice(runs: &[Run]) -> Option<String> {
    let at_most = runs.iter().filter(|run| run.rate_per_s.is_none());
    let run = at_most.max_by_key(|run| run.figures.cpu.busy_cores)?;
    let cpu = &run.figures.cpu;
    (cpu.busy_cores > 0).then(|| {
        format!(
            "{} of {} cores were busy for more than 90 % of the time at {} I/Os a second: the \
             processor is the bottleneck there, and faster disks would not help; give the target more \
             `lanes`, on cores of their own (one run: run it again before you act on it)",
            cpu.busy_cores,
            cpu.cores,
            short(run.figures.iops)
        )
    })
}

/// A field plot with a row for each direction and a column for each rate.
fn plot(runs: &[Run]) -> Plot {
    let rate = |run: &Run| run.rate_per_s.map_or("as many as it can do".into(), short);
    let mut columns: Vec<String> = Vec::new();
    for run in runs {
        if !columns.contains(&rate(run)) {
            columns.push(rate(run));
        }
    }
    let row = |(operation, name): (Operation, &str)| -> (String, Vec<Option<f64>>) {
        let value = |column: &String| {
            let is_it = |run: &&Run| run.operation == operation && rate(run) == *column;
            runs.iter().find(is_it).map(|run| run.ios_per_percent)
        };
        (name.to_owned(), columns.iter().map(value).collect())
    };
    let rows = [(Operation::Write, "writes"), (Operation::Read, "reads")].map(row);
    let axis = |label: &str| Axis {
        label: label.into(),
        is_logarithmic: false,
    };
    Plot {
        title: "I/Os a second for 1 % of a processor".into(),
        about: "The stronger the colour, the more.".into(),
        x: axis("I/Os a second"),
        y: axis(""),
        marks: Marks::Field {
            rows: rows.into(),
            columns,
            unit: "I/Os a second for 1 %".into(),
        },
    }
}

fn table(runs: &[Run], whose: &str) -> Table {
    let mut table = Table::new(
        "I/Os for each percent of a processor",
        &format!(
            "100 % is one fully busy core. The processor time is that of {whose}. The last column \
             counts cores of this machine that were busy for more than 90 %. Times in microseconds."
        ),
        &[
            "load",
            "I/Os/s",
            "processor",
            "I/Os/s for 1 %",
            "median µs",
            "99 % µs",
            "cores > 90 %",
        ],
    );
    for run in runs {
        let Figures {
            iops,
            p50_us,
            p99_us,
            cpu,
            ..
        } = &run.figures;
        table.rows.push(vec![
            name(run.operation, run.rate_per_s),
            short(*iops),
            format!("{:.1} %", cpu.pid_percent.unwrap_or(cpu.own_percent)),
            short(run.ios_per_percent),
            short(*p50_us),
            short(*p99_us),
            format!("{} of {}", cpu.busy_cores, cpu.cores),
        ]);
    }
    table
}
