//! `queue`: throughput, latency and queue length by the number of outstanding I/Os and by arrival rate. It
//! finds the knee, beyond which more outstanding I/Os only wait, checks the counted queue against Little's
//! law, and shows the effect of an adapter's limits.

mod advice;
mod doubts;
mod shown;

use std::collections::{BTreeMap, BTreeSet};

use advice::{Advice, beyond_knee, of_adapters, of_knee};
use doubts::{faster_apart, late, little};
use serde::{Deserialize, Serialize};
use serde_json::json;
use shown::{adapters_table, plots_over_time, rates_table, sweep_plots, sweep_table};
use volume::config::{Size, Time};

use super::{
    Block, Case, CaseWork, Experiment, Needs, OUTSTANDING_MAX, Runner, SESSIONS_MAX, check_time,
    poisson,
    runner::{Figures, LoadRun},
    seen::LoadLayers,
    split::StripeBelow,
    within, workload,
};
use crate::{
    LabResult,
    load::{Adapter, Arrivals, Lun, Order, Spacing, Workload},
    report::{Findings, OperationTimes, Score, short, time_us},
    statistics::Median,
};

/// Throughput within this fraction of the maximum counts as equally good.
const AS_GOOD: f64 = 0.95;

/// The settings of a `queue` profile.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueSettings {
    about: String,
    size: Size,
    block: Block,
    #[serde(default = "all")]
    read_percent: u64,
    #[serde(default)]
    order: Order,
    luns: usize,
    outstanding: Vec<usize>,
    #[serde(default = "one")]
    rounds: usize,
    time: Time,
    #[serde(default)]
    rates_percent: Vec<u64>,
    /// Arrivals per second.
    #[serde(default)]
    rates: Vec<f64>,
    #[serde(default = "poisson")]
    spacing: Spacing,
    #[serde(default)]
    adapter_outstanding: usize,
    #[serde(default)]
    adapters: Vec<NamedAdapter>,
    #[serde(default)]
    verify: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct NamedAdapter {
    name: String,
    per_lun: usize,
    total: usize,
}

fn all() -> u64 {
    100
}

fn one() -> usize {
    1
}

/// The point beyond which more outstanding I/Os do not help.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Knee {
    outstanding: usize,
    iops: f64,
    mean_us: f64,
    /// Whether larger numbers were tried.
    is_passed: bool,
}

/// All runs, by the number outstanding.
type Sweep = BTreeMap<usize, Vec<Figures>>;

/// Where the time of I/Os went, by the number outstanding; from the first run of each.
type Ways = BTreeMap<usize, LoadLayers>;

/// The most numbers that are tried again.
const AGAIN_MAX: usize = 5;

/// What was measured in a closed loop.
#[derive(Default)]
struct Swept {
    all: Sweep,
    /// Those of the runs that decide: the numbers about the knee and the largest, in turn once more.
    again: Sweep,
    ways: Ways,
}

impl Swept {
    fn add(&mut self, outstanding: usize, run: Option<Figures>) {
        if let Some(run) = run {
            self.all.entry(outstanding).or_default().push(run);
        }
    }

    fn add_again(&mut self, outstanding: usize, run: Option<Figures>) {
        if let Some(run) = &run {
            self.again.entry(outstanding).or_default().push(run.clone());
        }
        self.add(outstanding, run);
    }

    /// The runs to compare: only those that took turns with each other.
    fn compared(&self) -> &Sweep {
        match self.again.is_empty() {
            true => &self.all,
            false => &self.again,
        }
    }
}

/// The numbers to try again, in ascending order: the knee of a sweep, its neighbours, the largest, and one between the
/// knee and its lower neighbour, because powers of two are far apart.
fn again(sweep: &Sweep) -> Vec<usize> {
    let Some(found) = knee(sweep).filter(|knee| knee.is_passed) else {
        return Vec::new();
    };
    let at = found.outstanding;
    let below = sweep.range(..at).next_back().map(|(number, _)| *number);
    let above = sweep.range(at + 1..).next().map(|(number, _)| *number);
    let between = (at >= 4 && below.is_some_and(|below| below < at * 3 / 4)).then_some(at * 3 / 4);
    let largest = sweep.keys().next_back().copied();
    let all = [below, between, Some(at), above, largest];
    let all: BTreeSet<usize> = all.into_iter().flatten().collect();
    all.into_iter().collect()
}

/// All runs at an arrival rate.
struct AtRate {
    /// Of the knee's rate.
    percent: u64,
    rate_per_s: f64,
    steps: Vec<LoadRun>,
}

impl AtRate {
    fn median(&self, of: fn(&Figures) -> f64) -> f64 {
        median_of(&self.steps, of)
    }
}

/// All runs behind an adapter.
struct Behind<'a> {
    adapter: &'a NamedAdapter,
    steps: Vec<LoadRun>,
}

impl Behind<'_> {
    fn of_each(&self, of: fn(&Figures) -> f64) -> Vec<f64> {
        self.steps.iter().map(|step| of(&step.figures)).collect()
    }

    fn median(&self, of: fn(&Figures) -> f64) -> f64 {
        median_of(&self.steps, of)
    }
}

fn median_of(steps: &[LoadRun], of: fn(&Figures) -> f64) -> f64 {
    Median::of_each(steps, |step| of(&step.figures)).median
}

fn median(runs: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    Median::of_each(runs, of).median
}

/// The smallest number that performs as well as the best.
fn knee(sweep: &Sweep) -> Option<Knee> {
    let points = sweep.iter().map(|(outstanding, runs)| Knee {
        outstanding: *outstanding,
        iops: median(runs, |run| run.iops),
        mean_us: median(runs, |run| run.mean_us),
        is_passed: false,
    });
    let points: Vec<Knee> = points.collect();
    let most = points.iter().map(|point| point.iops).fold(0.0, f64::max);
    let last = points.last()?.outstanding;
    let found = points.iter().find(|point| point.iops >= AS_GOOD * most)?;
    Some(Knee {
        is_passed: found.outstanding < last,
        ..*found
    })
}

impl QueueSettings {
    fn closed(&self, outstanding: usize) -> Workload {
        Workload {
            order: self.order,
            arrivals: Arrivals::Closed { outstanding },
            ..workload(&self.block, self.read_percent, self.size)
        }
    }

    fn sweep(&self, runner: &mut Runner<'_>, luns: &[Lun]) -> LabResult<Swept> {
        let mut swept = Swept::default();
        for _ in 0..self.rounds.max(1) {
            for outstanding in &self.outstanding {
                let run = self.try_number(runner, luns, *outstanding, &mut swept.ways)?;
                swept.add(*outstanding, run);
            }
        }
        let numbers = again(&swept.all);
        for _ in 0..self.rounds.max(1) {
            for outstanding in &numbers {
                let run = self.try_number(runner, luns, *outstanding, &mut swept.ways)?;
                swept.add_again(*outstanding, run);
            }
        }
        if swept.again.len() < numbers.len() {
            // Interrupted before all of them had a turn.
            swept.again.clear();
        }
        Ok(swept)
    }

    fn try_number(
        &self,
        runner: &mut Runner<'_>,
        luns: &[Lun],
        outstanding: usize,
        ways: &mut Ways,
    ) -> LabResult<Option<Figures>> {
        let name = format!("{outstanding} outstanding");
        let workload = Workload {
            is_watched: true,
            ..self.closed(outstanding)
        };
        let step = runner.load(&name, luns, &workload, self.time.duration())?;
        Ok(step.map(|step| {
            if let Some(seen) = step.seen {
                ways.entry(outstanding).or_insert(seen);
            }
            step.figures
        }))
    }

    fn open(&self, rate_per_s: f64) -> Workload {
        Workload {
            arrivals: Arrivals::Open {
                rate_per_s,
                spacing: self.spacing,
            },
            ..self.closed(1)
        }
    }

    /// Runs at fractions of the knee's rate, which is `most`, and at given rates, in turn.
    fn rates(&self, runner: &mut Runner<'_>, luns: &[Lun], most: f64) -> LabResult<Vec<AtRate>> {
        let of_most = |percent: &u64| (*percent, (most * *percent as f64 / 100.0).max(1.0));
        let given = |rate_per_s: &f64| ((100.0 * rate_per_s / most).round() as u64, *rate_per_s);
        let of_most = self.rates_percent.iter().map(of_most);
        let rates = of_most.chain(self.rates.iter().map(given));
        let mut all: Vec<AtRate> = rates
            .map(|(percent, rate_per_s)| AtRate {
                percent,
                rate_per_s,
                steps: Vec::new(),
            })
            .collect();
        for _ in 0..self.rounds.max(1) {
            for at_rate in &mut all {
                let name = arrivals(at_rate.rate_per_s);
                let workload = self.open(at_rate.rate_per_s);
                let step = runner.load(&name, luns, &workload, self.time.duration())?;
                at_rate.steps.extend(step);
            }
        }
        all.retain(|at_rate| !at_rate.steps.is_empty());
        Ok(all)
    }

    /// Alternates between the adapters, so that each round is a pair.
    fn behind_adapters<'a>(
        &'a self,
        runner: &mut Runner<'_>,
        luns: &[Lun],
    ) -> LabResult<Vec<Behind<'a>>> {
        let behind = |adapter| Behind {
            adapter,
            steps: Vec::new(),
        };
        let mut all: Vec<Behind<'_>> = self.adapters.iter().map(behind).collect();
        for _ in 0..self.rounds {
            for Behind { adapter, steps } in &mut all {
                let workload = Workload {
                    adapter: Some(Adapter {
                        per_lun: adapter.per_lun,
                        total: adapter.total,
                    }),
                    ..self.closed(self.adapter_outstanding)
                };
                let step = runner.load(&adapter.name, luns, &workload, self.time.duration())?;
                steps.extend(step);
            }
        }
        all.retain(|behind| !behind.steps.is_empty());
        Ok(all)
    }
}

impl Experiment for QueueSettings {
    fn about(&self) -> &str {
        &self.about
    }

    fn needs(&self) -> Needs {
        Needs {
            sessions: self.luns,
            size_bytes: self.size.bytes(),
            writes: self.read_percent < 100,
            is_spread: true,
        }
    }

    fn steps(&self) -> usize {
        let again = AGAIN_MAX.min(self.outstanding.len() + 1);
        let rates = self.rates_percent.len() + self.rates.len();
        (self.outstanding.len() + again + rates + self.adapters.len()) * self.rounds.max(1)
    }

    fn run(&self, runner: &mut Runner<'_>) -> LabResult<Findings> {
        let luns = runner.luns(self.luns)?;
        let swept = self.sweep(runner, &luns)?;
        let sweep = &swept.all;
        let knee = knee(swept.compared());
        let rates = match &knee {
            Some(knee) => self.rates(runner, &luns, knee.iops)?,
            None => Vec::new(),
        };
        let adapters = self.behind_adapters(runner, &luns)?;
        let mut findings = Findings {
            answer: answer(knee.as_ref(), swept.compared(), sweep.len()),
            tables: vec![sweep_table(sweep)],
            plots: sweep_plots(sweep),
            figures: json!({
                "outstanding": sweep.iter().map(|(outstanding, runs)| {
                    // So many of the last runs.
                    let again = swept.again.get(outstanding).map_or(0, Vec::len);
                    json!({ "outstanding": outstanding, "runs": runs, "again": again })
                }).collect::<Vec<_>>(),
                "knee": knee,
                "rates": rates.iter().map(|AtRate { percent, rate_per_s, steps }| json!({
                    "percent": percent,
                    "rate_per_s": rate_per_s,
                    "run": steps[0].figures,
                    "runs": steps.iter().map(|step| &step.figures).collect::<Vec<_>>(),
                    "series": steps[0].done.series,
                })).collect::<Vec<_>>(),
                "adapters": adapters.iter().map(|Behind { adapter, steps }| json!({
                    "adapter": adapter,
                    "run": steps[0].figures,
                    "runs": steps.iter().map(|step| &step.figures).collect::<Vec<_>>(),
                    "series": steps[0].done.series,
                })).collect::<Vec<_>>(),
            }),
            scores: knee.iter().map(score).collect(),
            ..Findings::default()
        };
        if !rates.is_empty() {
            findings.tables.push(rates_table(&rates));
            findings.plots.extend(plots_over_time(&rates));
        }
        if !adapters.is_empty() {
            findings.tables.push(adapters_table(&adapters));
        }
        // Beyond the knee only the waiting grows.
        let at = knee.map_or(0, |knee| knee.outstanding);
        let seen = swept
            .ways
            .get(&at)
            .cloned()
            .map(|seen| seen.of(total_of(sweep, at)));
        add_layers(&mut findings, at, seen.as_ref(), runner.is_resumed());
        findings.notes.extend(little(sweep));
        findings
            .notes
            .extend(knee.and_then(|knee| faster_apart(&knee, &swept)));
        findings.notes.extend(late(&rates));
        let adapters: Vec<_> = adapters
            .iter()
            .map(|behind| {
                let name = behind.adapter.name.as_str();
                (name, behind.of_each(|run| run.iops))
            })
            .collect();
        for advice in [
            of_knee(knee.as_ref(), swept.compared()),
            of_adapters(&adapters),
        ] {
            match advice {
                Some(Advice::Change(text)) => findings.advice.push(text),
                Some(Advice::Nothing(text)) => findings.notes.push(text),
                None => {}
            }
        }
        let view = runner.targets.first().and_then(|target| target.view());
        let stripe = view.as_ref().and_then(StripeBelow::of);
        let split = stripe.and_then(|stripe| stripe.advice(&self.block, self.order, at));
        findings
            .advice
            .extend(split.filter(|_| runner.targets.len() == 1));
        Ok(findings)
    }

    fn cases(&self) -> Vec<Case> {
        let case = |outstanding: &usize| Case {
            name: format!("{outstanding} outstanding"),
            work: CaseWork::Load(self.closed(*outstanding)),
            time: self.time,
        };
        let at_rate = |rate_per_s: &f64| Case {
            name: arrivals(*rate_per_s),
            work: CaseWork::Load(self.open(*rate_per_s)),
            time: self.time,
        };
        // For a comparison, every third number tells as much as all of them.
        let closed = self.outstanding.iter().step_by(3).map(case);
        closed.chain(self.rates.iter().map(at_rate)).collect()
    }

    fn verifies(&self) -> bool {
        self.verify
    }

    fn check(&self) -> std::result::Result<(), String> {
        within(
            "the number of numbers outstanding",
            self.outstanding.len(),
            1..=64,
        )?;
        for outstanding in &self.outstanding {
            within("outstanding", *outstanding, 1..=OUTSTANDING_MAX)?;
        }
        self.block.check(self.size)?;
        within("luns", self.luns, 1..=SESSIONS_MAX)?;
        within("rounds", self.rounds, 1..=1000)?;
        within("read_percent", self.read_percent, 0..=100)?;
        for percent in &self.rates_percent {
            within("rates_percent", *percent, 1..=1000)?;
        }
        for rate in &self.rates {
            within("rates", *rate, 1.0..=1e7)?;
        }
        for (index, adapter) in self.adapters.iter().enumerate() {
            let name = |key: &str| format!("adapters[{index}].{key}");
            within(&name("per_lun"), adapter.per_lun, 1..=OUTSTANDING_MAX)?;
            within(&name("total"), adapter.total, 1..=OUTSTANDING_MAX)?;
        }
        if !self.adapters.is_empty() {
            let outstanding = self.adapter_outstanding;
            within("adapter_outstanding", outstanding, 1..=OUTSTANDING_MAX)?;
        }
        check_time(self.time)
    }
}

fn arrivals(rate_per_s: f64) -> String {
    format!("{} arrivals a second", short(rate_per_s))
}

/// The times that the table has for so many outstanding.
fn total_of(sweep: &Sweep, outstanding: usize) -> OperationTimes {
    let runs = sweep.get(&outstanding).map_or(&[][..], Vec::as_slice);
    OperationTimes {
        mean_us: median(runs, |run| run.mean_us),
        p50_us: median(runs, |run| run.p50_us),
        p99_us: median(runs, |run| run.p99_us),
    }
}

/// Shows where the time of the I/Os went with so many outstanding, or says why it is not known.
fn add_layers(findings: &mut Findings, at: usize, seen: Option<&LoadLayers>, is_resumed: bool) {
    let note = match seen {
        Some(LoadLayers { layers, notes }) => {
            findings.tables.insert(0, layers.table());
            findings.layers = Some(layers.clone());
            findings.notes.extend(notes.clone());
            format!("where the time went is shown for {at} outstanding")
        }
        None if is_resumed && at > 0 => format!(
            "where the time went is not shown: this run was resumed, and what it continues did not keep that of \
             {at} outstanding"
        ),
        None => return,
    };
    findings.notes.push(note);
}

/// What `lab history` tracks. The layers are those of the knee, whose place changes, so they cannot be compared.
fn score(knee: &Knee) -> Score {
    Score::more("I/Os a second at the knee".into(), knee.iops)
}

/// From the runs that decided about the knee, and from how many numbers were tried.
fn answer(knee: Option<&Knee>, compared: &Sweep, tried: usize) -> String {
    let Some(knee) = knee else {
        return "Nothing was measured.".into();
    };
    let (outstanding, iops, time) = (knee.outstanding, short(knee.iops), time_us(knee.mean_us));
    match beyond_knee(knee, compared) {
        Some(beyond) => format!(
            "The knee is at {outstanding} outstanding: {iops} I/Os a second at {time} each, at least 95 % of what any \
             number compared with it does; {beyond}."
        ),
        None if tried < 2 => format!(
            "Only {outstanding} outstanding was tried: {iops} I/Os a second at {time} each; whether \
             more would bring more is not known."
        ),
        None => format!(
            "Throughput still grows at {outstanding} outstanding, the most that was tried: {iops} I/Os a \
             second at {time} each; the knee is not reached."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        load::Point,
        report::{Marks, Plot},
    };

    /// A disk that takes a millisecond per I/O and completes at most `most` per second.
    pub(super) fn sweep(most: f64) -> Sweep {
        let numbers = (0..=10).map(|power| 1_usize << power).chain([48]);
        numbers
            .map(|n| {
                (
                    n,
                    vec![Figures::example(n as f64, (1000.0 * n as f64).min(most))],
                )
            })
            .collect()
    }

    #[test]
    fn latency_over_time_stands_beside_the_queue_without_the_moments_when_nothing_ended() {
        let point = |at_ms, queue, latency_us| Point {
            at_ms,
            queue,
            at_volume: queue,
            iops: 1000.0,
            latency_us,
        };
        let mut done = crate::load::Done::without_times(std::time::Duration::from_millis(30));
        done.series = vec![
            point(10.0, 3, 700.0),
            point(20.0, 9, 0.0),
            point(30.0, 5, 900.0),
        ];
        let figures = Figures::example(1.0, 1000.0);
        let plots = plots_over_time(&[AtRate {
            percent: 110,
            rate_per_s: 2000.0,
            steps: vec![LoadRun {
                done,
                figures,
                seen: None,
            }],
        }]);
        let points = |plot: &Plot| match &plot.marks {
            Marks::Lines(lines) => lines[0].points.clone(),
            _ => panic!("it has lines"),
        };
        assert_eq!(points(&plots[0]), [(10.0, 3.0), (20.0, 9.0), (30.0, 5.0)]);
        assert_eq!(points(&plots[1]), [(10.0, 700.0), (30.0, 900.0)]);
        assert_eq!(plots[0].x.label, plots[1].x.label);
    }

    #[test]
    fn the_knee_is_the_least_number_that_does_as_well_as_the_most() {
        let found = knee(&sweep(48_000.0)).expect("a knee");
        assert_eq!((found.outstanding, found.is_passed), (48, true));
        let told = answer(Some(&found), &sweep(48_000.0), 12);
        assert!(told.contains("48 outstanding: 48,000 I/Os"), "{told}");
        let beyond = "at least 95 % of what any number compared with it does; with 1024 outstanding throughput is 1.00× that.";
        assert!(told.ends_with(beyond), "{told}");
    }

    #[test]
    fn a_disk_that_grows_to_the_end_has_no_knee() {
        let sweep = sweep(f64::INFINITY);
        let found = knee(&sweep).expect("a point");
        assert_eq!((found.outstanding, found.is_passed), (1024, false));
        assert!(answer(Some(&found), &sweep, 12).contains("the knee is not reached"));
        assert!(answer(Some(&found), &sweep, 1).contains("is not known"));
        assert_eq!(knee(&Sweep::new()), None);
    }

    /// So many runs of each number, on a disk that completes at most `most` a second.
    fn add_rounds(swept: &mut Swept, numbers: &[usize], most: f64, is_again: bool) {
        for outstanding in numbers {
            let figures = Figures::example(
                *outstanding as f64,
                (1000.0 * *outstanding as f64).min(most),
            );
            match is_again {
                true => swept.add_again(*outstanding, Some(figures)),
                false => swept.add(*outstanding, Some(figures)),
            }
        }
    }

    #[test]
    fn the_knee_is_found_among_numbers_that_took_turns() {
        let mut swept = Swept::default();
        let numbers: Vec<usize> = (0..=10).map(|power| 1 << power).collect();
        add_rounds(&mut swept, &numbers, 60_000.0, false);
        assert_eq!(
            knee(swept.compared()).map(|knee| knee.outstanding),
            Some(64)
        );
        let numbers = again(&swept.all);
        assert_eq!(numbers, [32, 48, 64, 128, 1024]);
        // Since then, the disk has become faster for all of them.
        add_rounds(&mut swept, &numbers, 120_000.0, true);
        let found = knee(swept.compared()).expect("a knee");
        assert_eq!((found.outstanding, found.is_passed), (128, true));
        assert_eq!(found.iops, 120_000.0, "of those runs alone");
        assert_eq!(swept.all[&1024].len(), 2, "all runs are shown");
        assert_eq!(swept.all[&48].len(), 1);
    }

    #[test]
    fn the_numbers_to_try_again_are_about_the_knee() {
        let numbers = |most| again(&sweep(most));
        assert_eq!(numbers(f64::INFINITY), [0_usize; 0], "none was reached");
        assert_eq!(numbers(1000.0), [1, 2, 1024], "nothing is below one");
        assert_eq!(numbers(2000.0), [1, 2, 4, 1024], "nothing is between");
        assert_eq!(numbers(512_000.0), [256, 384, 512, 1024]);
    }
}
