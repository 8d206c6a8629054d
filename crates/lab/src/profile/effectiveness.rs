//! `effectiveness`: I/Os per percent of a processor, for reads and for writes, at full speed and at given
//! rates. At full speed a faster disk may simply have got more processor time; at a given rate all do the
//! same work.

use serde::{Deserialize, Serialize};
use serde_json::json;
use volume::config::{Size, Time};

use super::{
    Block, Case, CaseWork, Experiment, Needs, OUTSTANDING_MAX, Runner, SESSIONS_MAX, check_time,
    poisson, runner::Figures, too_few, within, workload,
};
use crate::{
    LabResult,
    load::{Arrivals, Operation, Order, Spacing, Workload},
    report::{Axis, Findings, FindingsTable, Marks, Plot, Score, short},
    statistics::Median,
};

/// A rate above this fraction of the maximum cannot be held reliably.
const HELD_MAX: f64 = 0.95;

/// The settings of an `effectiveness` profile.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Effectiveness {
    about: String,
    size: Size,
    block: Block,
    #[serde(default)]
    order: Order,
    sessions: usize,
    outstanding: usize,
    rates: Vec<f64>,
    #[serde(default = "poisson")]
    spacing: Spacing,
    time: Time,
    #[serde(default = "one")]
    rounds: usize,
    #[serde(default)]
    verify: bool,
}

fn one() -> usize {
    1
}

/// All rounds of a load.
#[derive(Clone, Debug, Serialize)]
struct Rounds {
    operation: Operation,
    /// `None`: at full speed.
    rate_per_s: Option<f64>,
    /// I/Os per second for each percent of a processor; the median of the rounds.
    ios_per_percent: f64,
    /// The first round.
    figures: Figures,
    rounds: Vec<Figures>,
}

/// A load that was left out of a round, because the disk could not have held its rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct LeftOut {
    load: String,
    /// From 1.
    round: usize,
    /// What was possible in that round.
    most_per_s: f64,
}

impl Rounds {
    fn of(operation: Operation, rate_per_s: Option<f64>, rounds: Vec<Figures>) -> Option<Rounds> {
        Some(Rounds {
            operation,
            rate_per_s,
            ios_per_percent: Median::of_each(&rounds, ios_per_percent).median,
            figures: rounds.first()?.clone(),
            rounds,
        })
    }

    fn median(&self, of: impl Fn(&Figures) -> f64) -> Median {
        Median::of_each(&self.rounds, of)
    }
}

fn ios_per_percent(figures: &Figures) -> f64 {
    figures.iops / percent(figures).max(1e-9)
}

/// Processor time, of the process given by the user if there is one.
fn percent(figures: &Figures) -> f64 {
    figures.cpu.pid_percent.unwrap_or(figures.cpu.own_percent)
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
            ..workload(&self.block, read_percent, self.size)
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
        2 * (1 + self.rates.len()) * self.rounds
    }

    fn run(&self, runner: &mut Runner<'_>) -> LabResult<Findings> {
        let luns = runner.luns(self.sessions)?;
        let time = self.time.duration();
        let mut left_out = Vec::new();
        let rates = || std::iter::once(None).chain(self.rates.iter().copied().map(Some));
        let loads = [Operation::Write, Operation::Read].into_iter();
        let loads = loads.flat_map(|operation| rates().map(move |rate| (operation, rate)));
        let mut all: Vec<(Operation, Option<f64>, Vec<Figures>)> = loads
            .map(|(operation, rate)| (operation, rate, Vec::new()))
            .collect();
        for number in 0..self.rounds {
            let mut most = f64::INFINITY;
            for (operation, rate_per_s, rounds) in &mut all {
                let name = name(*operation, *rate_per_s);
                if rate_per_s.is_some_and(|rate| rate > HELD_MAX * most) {
                    left_out.push(LeftOut {
                        load: name,
                        round: number + 1,
                        most_per_s: most,
                    });
                    continue;
                }
                let workload = self.workload(*operation, *rate_per_s);
                let Some(step) = runner.load(&name, &luns, &workload, time)? else {
                    continue;
                };
                if rate_per_s.is_none() {
                    most = step.figures.iops;
                }
                rounds.push(step.figures);
            }
        }
        let runs: Vec<Rounds> = all
            .into_iter()
            .filter_map(|(operation, rate, rounds)| Rounds::of(operation, rate, rounds))
            .collect();
        let whose = match runner.pid {
            Some(pid) => format!("process {pid}"),
            None => "this program, including the load generator".into(),
        };
        let mut notes = omissions(&left_out, self.rounds);
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
            figures: json!({ "runs": runs, "cpu_of": whose, "left_out": left_out }),
            notes,
            ..Findings::default()
        })
    }

    fn cases(&self) -> Vec<Case> {
        let case = |operation| Case {
            name: name(operation, None),
            work: CaseWork::Load(self.workload(operation, None)),
            time: self.time,
        };
        [Operation::Read, Operation::Write].map(case).into()
    }

    fn verifies(&self) -> bool {
        self.verify
    }

    fn check(&self) -> std::result::Result<(), String> {
        self.block.check(self.size)?;
        within("sessions", self.sessions, 1..=SESSIONS_MAX)?;
        within("outstanding", self.outstanding, 1..=OUTSTANDING_MAX)?;
        within("rounds", self.rounds, 1..=1000)?;
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

/// A note for each load that was left out of one round or more.
fn omissions(left_out: &[LeftOut], rounds: usize) -> Vec<String> {
    let mut loads: Vec<&str> = Vec::new();
    for left_out in left_out {
        if !loads.contains(&left_out.load.as_str()) {
            loads.push(&left_out.load);
        }
    }
    let note = |load: &str| {
        let of_load = || left_out.iter().filter(|left_out| left_out.load == load);
        let numbers: Vec<String> = of_load()
            .map(|left_out| left_out.round.to_string())
            .collect();
        let which = match numbers.len() {
            count if count == rounds => "left out".to_owned(),
            count => format!(
                "left out of {count} of {rounds} rounds ({}), so its figures are those of the quicker ones",
                numbers.join(", ")
            ),
        };
        let most = of_load().map(|left_out| left_out.most_per_s);
        let most = most.fold(0.0, f64::max);
        format!(
            "{load}: {which}, because at most {} a second were possible then",
            short(most)
        )
    };
    loads.into_iter().map(note).collect()
}

/// The figure that a history tracks.
fn score(run: &Rounds) -> Score {
    let name = name(run.operation, run.rate_per_s);
    Score::more(
        format!("I/Os a second for 1 % of a processor, {name}"),
        run.ios_per_percent,
    )
}

fn answer(runs: &[Rounds], whose: &str) -> String {
    let at_most = |operation| {
        let of = |run: &&Rounds| run.operation == operation && run.rate_per_s.is_none();
        runs.iter().find(of)
    };
    let told = |run: &Rounds, what: &str| {
        format!(
            "{} {what} a second ({} in all)",
            short(run.ios_per_percent),
            short(run.median(|round| round.iops).median)
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

/// The advice that follows from cores that are busy at full speed, if the interval over the rounds says that at least one
/// is.
fn advice(runs: &[Rounds]) -> Option<String> {
    let busy = |run: &&Rounds| run.median(|round| round.cpu.busy_cores as f64);
    let at_most = runs.iter().filter(|run| run.rate_per_s.is_none());
    let run = at_most.max_by(|a, b| busy(a).median.total_cmp(&busy(b).median))?;
    let found = busy(&run);
    let certain = match (found.interval, run.rounds.len()) {
        (Some((low, _)), _) if low < 1.0 => return None,
        (Some((low, high)), rounds) => {
            format!(" (95 % interval {low:.0}–{high:.0} cores, {rounds} rounds)")
        }
        (None, rounds) => too_few(rounds),
    };
    (found.median >= 1.0).then(|| {
        format!(
            "{:.0} of {} cores were busy for more than 90 % of the time at {} I/Os a second{certain}: the \
             processor is the bottleneck there, and faster disks would not help; give the target more \
             `lanes`, on cores of their own",
            found.median,
            run.figures.cpu.cores,
            short(run.median(|round| round.iops).median)
        )
    })
}

/// A field plot with a row for each direction and a column for each rate.
fn plot(runs: &[Rounds]) -> Plot {
    let rate = |run: &Rounds| run.rate_per_s.map_or("as many as it can do".into(), short);
    let mut columns: Vec<String> = Vec::new();
    for run in runs {
        if !columns.contains(&rate(run)) {
            columns.push(rate(run));
        }
    }
    let row = |(operation, name): (Operation, &str)| -> (String, Vec<Option<f64>>) {
        let value = |column: &String| {
            let is_it = |run: &&Rounds| run.operation == operation && rate(run) == *column;
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

fn table(runs: &[Rounds], whose: &str) -> FindingsTable {
    let mut table = FindingsTable::new(
        "I/Os for each percent of a processor",
        &format!(
            "100 % is one fully busy core. The processor time is that of {whose}. The last column \
             counts cores of this machine that were busy for more than 90 %. Medians of all rounds; times in microseconds."
        ),
        &[
            "load",
            "I/Os/s",
            "processor",
            "I/Os/s for 1 %",
            "95 % interval",
            "median µs",
            "99 % µs",
            "cores > 90 %",
        ],
    );
    for run in runs {
        let figure = |of: fn(&Figures) -> f64| run.median(of).median;
        let interval = run.median(ios_per_percent).interval;
        table.rows.push(vec![
            name(run.operation, run.rate_per_s),
            short(figure(|round| round.iops)),
            format!("{:.1} %", figure(percent)),
            short(run.ios_per_percent),
            interval.map_or("–".into(), |(low, high)| {
                format!("{}–{}", short(low), short(high))
            }),
            short(figure(|round| round.p50_us)),
            short(figure(|round| round.p99_us)),
            format!(
                "{:.0} of {}",
                figure(|round| round.cpu.busy_cores as f64),
                run.figures.cpu.cores
            ),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(busy_cores: &[usize]) -> Rounds {
        let round = |busy_cores: &usize| {
            let mut figures = Figures::example(1.0, 1000.0);
            (figures.cpu.busy_cores, figures.cpu.cores) = (*busy_cores, 4);
            figures
        };
        Rounds::of(
            Operation::Read,
            None,
            busy_cores.iter().map(round).collect(),
        )
        .expect("a round")
    }

    #[test]
    fn every_omission_is_told_with_its_rounds() {
        let left_out = |load: &str, round, most_per_s| LeftOut {
            load: load.into(),
            round,
            most_per_s,
        };
        let all = [
            left_out("reads, 9 a second", 1, 5.0),
            left_out("writes, 9 a second", 2, 7.0),
            left_out("reads, 9 a second", 2, 6.0),
            left_out("reads, 9 a second", 3, 4.0),
        ];
        let expected = [
            "reads, 9 a second: left out, because at most 6 a second were possible then",
            "writes, 9 a second: left out of 1 of 3 rounds (2), so its figures are those of the quicker ones, because at \
             most 7 a second were possible then",
        ];
        assert_eq!(omissions(&all, 3), expected);
        assert_eq!(omissions(&[], 3), [""; 0]);
    }

    #[test]
    fn busy_cores_are_told_with_the_interval_over_rounds() {
        let text = advice(&[run(&[2; 6])]).expect("they are busy");
        assert!(text.starts_with("2 of 4 cores"), "{text}");
        assert!(
            text.contains("(95 % interval 2–2 cores, 6 rounds)"),
            "{text}"
        );
        assert_eq!(advice(&[run(&[2, 2, 2, 2, 2, 0])]), None, "perhaps none is");
        assert_eq!(advice(&[run(&[0; 6])]), None);
        let once = advice(&[run(&[1])]).expect("it is busy");
        assert!(once.contains("one round"), "{once}");
        assert_eq!(run(&[1, 1]).ios_per_percent, 20.0);
    }
}
