//! Runs a profile's loads one after the other on what is open, shows progress, and records what the
//! processors did meanwhile. After an interruption, the remaining loads are skipped and everything measured
//! so far is kept.

use std::{cell::RefCell, ops::Range, rc::Rc, time::Duration};

use engine::Lane;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Case, CaseWork, Journal, seen::LoadLayers};
use crate::{
    LabError, LabResult,
    databases::Bed,
    fio,
    load::{self, Done, Lun, Point, Stop, Workload},
    machine::{Cpu, Watch},
    others::{Others, told},
    progress::Stage,
    report::{Findings, FindingsTable, short},
    speed::Speed,
    target::MeasuredDisk,
};

/// The uncounted warm-up takes one part in this many of a load's time; it fills caches and windows.
const SETTLE: u32 = 10;

/// Each measurement has so many seeds of its own: its loads are the same if earlier measurements are recalled.
const SEEDS: u64 = 1 << 16;

/// Runs loads.
pub(crate) struct Runner<'a> {
    pub(crate) lane: &'a Rc<Lane>,
    pub(crate) targets: Vec<MeasuredDisk>,
    pub(crate) stop: Stop,
    pub(crate) stage: Stage,
    /// A process whose processor time is measured as well.
    pub(crate) pid: Option<u32>,
    /// Whether fio also runs each load.
    pub(crate) with_fio: bool,
    /// Reads are verified within this many bytes at the start.
    pub(crate) verified: Option<u64>,
    /// The storage by name, for a profile that does not have it opened as volumes.
    pub(crate) beds: Vec<(String, Bed)>,
    /// What has been measured so far.
    pub(crate) journal: Journal,
    /// Called with everything measured so far after each step.
    pub(crate) keeper: Option<Box<dyn Fn(Value) + 'a>>,
    /// The seed of the next load. Each load raises it, so that no load finds in a cache what an earlier one has read
    /// at the same places.
    pub(crate) seed: u64,
    beside: Vec<(String, Figures, Speed)>,
    /// What other programs did during each measurement.
    others: RefCell<Vec<(String, Others)>>,
}

/// The figures of a load.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Figures {
    pub(crate) iops: f64,
    pub(crate) megabytes_per_s: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// The mean service time: from when an I/O was sent, where an open loop's latency counts from when it was due.
    pub(crate) service_us: f64,
    /// Quantiles of the service time.
    pub(crate) service_p50_us: f64,
    pub(crate) service_p99_us: f64,
    /// Mean number of I/Os that had arrived and not completed, from periodic samples.
    pub(crate) queue: f64,
    /// The same by Little's law.
    pub(crate) queue_by_little: f64,
    /// How late the generator was at the 99th percentile, in an open loop.
    pub(crate) generator_late_p99_us: f64,
    /// Arrivals that had not started when the time was over.
    pub(crate) not_begun: u64,
    /// The latency histogram: pairs of a lower bound in microseconds and a number of I/Os.
    #[serde(default)]
    pub(crate) latencies_us: Vec<(f64, u64)>,
    /// The same for the service time.
    #[serde(default)]
    pub(crate) service_times_us: Vec<(f64, u64)>,
    /// The same for the generator's lateness.
    #[serde(default)]
    pub(crate) generator_late_us: Vec<(f64, u64)>,
    pub(crate) cpu: Cpu,
}

#[cfg(test)]
impl Figures {
    /// Of a load with so many I/Os outstanding, on two cores of which none was busy.
    pub(crate) fn example(outstanding: f64, iops: f64) -> Figures {
        let mean_us = outstanding / iops * 1e6;
        Figures {
            iops,
            megabytes_per_s: iops * 0.008,
            mean_us,
            p50_us: mean_us,
            p99_us: 2.0 * mean_us,
            service_us: mean_us,
            service_p50_us: mean_us,
            service_p99_us: 2.0 * mean_us,
            queue: outstanding,
            queue_by_little: outstanding,
            generator_late_p99_us: 0.0,
            not_begun: 0,
            latencies_us: Vec::new(),
            service_times_us: Vec::new(),
            generator_late_us: Vec::new(),
            cpu: Cpu {
                own_percent: 50.0,
                pid_percent: None,
                others: 0.0,
                busy_cores: 0,
                cores: 2,
            },
        }
    }
}

/// A completed load.
pub(crate) struct LoadRun {
    pub(crate) done: Done,
    pub(crate) figures: Figures,
    /// Where the time of its I/Os went, if it was watched.
    pub(super) seen: Option<LoadLayers>,
}

/// The form kept in the journal: without single I/Os, which the figures already summarise.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Recorded {
    figures: Figures,
    elapsed_ns: u64,
    ios: u64,
    bytes: u64,
    series: Vec<Point>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen: Option<LoadLayers>,
}

impl From<&LoadRun> for Recorded {
    fn from(step: &LoadRun) -> Recorded {
        Recorded {
            figures: step.figures.clone(),
            elapsed_ns: step.done.elapsed.as_nanos() as u64,
            ios: step.done.ios,
            bytes: step.done.bytes,
            series: step.done.series.clone(),
            seen: step.seen.clone(),
        }
    }
}

impl From<Recorded> for LoadRun {
    fn from(recorded: Recorded) -> LoadRun {
        let elapsed = Duration::from_nanos(recorded.elapsed_ns);
        LoadRun {
            done: Done {
                ios: recorded.ios,
                bytes: recorded.bytes,
                series: recorded.series,
                ..Done::without_times(elapsed)
            },
            figures: recorded.figures,
            seen: recorded.seen,
        }
    }
}

impl From<&Figures> for Speed {
    fn from(figures: &Figures) -> Speed {
        Speed {
            per_s: figures.iops,
            p50_us: figures.p50_us,
            p99_us: figures.p99_us,
            service_mean_us: Some(figures.service_us),
            service_p50_us: Some(figures.service_p50_us),
            service_p99_us: Some(figures.service_p99_us),
            not_begun: Some(figures.not_begun),
            per_percent: figures
                .cpu
                .pid_percent
                .filter(|percent| *percent > 0.0)
                .map(|percent| figures.iops / percent),
        }
    }
}

impl<'a> Runner<'a> {
    pub(crate) fn new(
        lane: &'a Rc<Lane>,
        targets: Vec<MeasuredDisk>,
        stop: Stop,
        stage: Stage,
    ) -> Runner<'a> {
        Runner {
            lane,
            targets,
            stop,
            stage,
            pid: None,
            with_fio: false,
            verified: None,
            beds: Vec::new(),
            journal: Journal::default(),
            keeper: None,
            seed: 0,
            beside: Vec::new(),
            others: RefCell::default(),
        }
    }

    /// `count` sessions, distributed over all targets in rotation.
    pub(crate) fn luns(&self, count: usize) -> LabResult<Vec<Lun>> {
        let each = count.max(self.targets.len()).div_ceil(self.targets.len());
        let of_target = |target: &MeasuredDisk| target.luns(each, self.verified);
        let all: Vec<Vec<Lun>> = self
            .targets
            .iter()
            .map(of_target)
            .collect::<LabResult<_>>()?;
        let in_turn =
            (0..each).flat_map(|session| all.iter().map(move |luns| luns[session].clone()));
        Ok(in_turn.take(count.max(self.targets.len())).collect())
    }

    /// Whether some measurements may be those of an earlier run.
    pub(super) fn is_resumed(&self) -> bool {
        self.journal.is_resumed()
    }

    /// Whether the user asked to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_asked()
    }

    /// Runs a load after a short warm-up. `None`: the user asked to stop.
    pub(crate) fn load(
        &mut self,
        name: &str,
        luns: &[Lun],
        workload: &Workload,
        time: Duration,
    ) -> LabResult<Option<LoadRun>> {
        self.recorded(name, |runner| {
            if workload.ios_max.is_none() && !runner.is_stopped() {
                runner.generate(luns, workload, time / SETTLE)?;
            }
            runner.measure(name, luns, workload, time)
        })
    }

    /// The same without a warm-up: the first I/O counts.
    pub(crate) fn load_at_once(
        &mut self,
        name: &str,
        luns: &[Lun],
        workload: &Workload,
        time: Duration,
    ) -> LabResult<Option<LoadRun>> {
        self.recorded(name, |runner| runner.measure(name, luns, workload, time))
    }

    fn recorded(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut Self) -> LabResult<Option<LoadRun>>,
    ) -> LabResult<Option<LoadRun>> {
        let mut fresh = None;
        let recorded = self.once(name, |runner| {
            fresh = work(runner)?;
            Ok(fresh.as_ref().map(Recorded::from))
        })?;
        let step = fresh.or_else(|| recorded.map(LoadRun::from));
        if let Some(LoadRun { done, figures, .. }) = &step {
            let cpu = &figures.cpu;
            let seconds = done.elapsed.as_secs_f64();
            self.beside(name, Others::new(cpu.others, seconds, cpu.cores));
        }
        Ok(step)
    }

    /// Notes what other programs did during the measurement called `name`.
    pub(crate) fn beside(&self, name: &str, others: Others) {
        self.others.borrow_mut().push((name.to_owned(), others));
    }

    /// The measurement called `name`: from an earlier run's journal, or else by running `work`.
    pub(crate) fn once<T: DeserializeOwned + Serialize>(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut Self) -> LabResult<Option<T>>,
    ) -> LabResult<Option<T>> {
        if self.journal.is_within {
            return work(self);
        }
        let key = self.journal.key(name);
        let next_seed = self.seed + SEEDS;
        if let Some(known) = self.journal.recall(&key) {
            self.stage.step();
            self.seed = next_seed;
            return Ok(Some(known));
        }
        self.journal.is_within = true;
        let made = work(self);
        self.journal.is_within = false;
        self.seed = next_seed;
        let made = made?;
        if let Some(made) = &made {
            self.journal.keep(&key, made);
            if let Some(keeper) = &self.keeper {
                keeper(self.journal.steps());
            }
        }
        Ok(made)
    }

    fn measure(
        &mut self,
        name: &str,
        luns: &[Lun],
        workload: &Workload,
        time: Duration,
    ) -> LabResult<Option<LoadRun>> {
        if self.is_stopped() {
            return Ok(None);
        }
        self.stage.say(name);
        let watch = Watch::begin(self.pid);
        let done = self.generate(luns, workload, time)?;
        let figures = figures(&done, watch.end());
        self.stage.step();
        if self.is_stopped() && done.elapsed < time / 2 {
            // Too short to be meaningful.
            return Ok(None);
        }
        if self.with_fio {
            let sample = self.fio(0, workload, time)?;
            let beside = sample.map(|sample| (name.to_owned(), figures.clone(), sample));
            self.beside.extend(beside);
        }
        let seen = LoadLayers::of_load(&done);
        Ok(Some(LoadRun {
            done,
            figures,
            seen,
        }))
    }

    /// Runs a case on target number `target`, whose sessions are `luns`, and returns its speed.
    pub(crate) fn sample(
        &mut self,
        case: &Case,
        target: usize,
        luns: &[Lun],
    ) -> LabResult<Option<Speed>> {
        let name = self.name_of(case, target);
        match &case.work {
            CaseWork::Load(workload) => {
                let step = self.load(&name, luns, workload, case.time.duration())?;
                Ok(step.map(|step| Speed::from(&step.figures)))
            }
            CaseWork::Commits(inserts) => {
                self.stage.say(&name);
                inserts.sample(self, target)
            }
            CaseWork::Statements(sweep) => {
                self.stage.say(&name);
                sweep.sample(self, target)
            }
        }
    }

    /// The same with fio, on the file or device of target number `target`.
    pub(crate) fn sample_of_fio(&mut self, case: &Case, target: usize) -> LabResult<Option<Speed>> {
        let CaseWork::Load(workload) = &case.work else {
            return Ok(None);
        };
        self.stage
            .say(&format!("{}, by fio", self.name_of(case, target)));
        let sample = self.fio(target, workload, case.time.duration())?;
        self.stage.step();
        Ok(sample.filter(|_| !self.is_stopped()))
    }

    fn name_of(&self, case: &Case, target: usize) -> String {
        format!("{}: {}", self.targets[target].name, case.name)
    }

    fn fio(&self, target: usize, workload: &Workload, time: Duration) -> LabResult<Option<Speed>> {
        let target = &self.targets[target];
        match &target.path {
            Some(path) if !self.is_stopped() => {
                let (len_bytes, stop) = (target.len_bytes(), &self.stop);
                fio::run(path, workload, len_bytes, time, stop)
            }
            _ => Ok(None),
        }
    }

    fn generate(&mut self, luns: &[Lun], workload: &Workload, time: Duration) -> LabResult<Done> {
        let workload = Workload {
            seed: self.seed,
            ..workload.clone()
        };
        self.seed += 1;
        let done = load::generate(luns, &workload, time, &self.stop);
        self.lane
            .block_on(done)
            .map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &volume::Error) -> LabError {
        let names: Vec<&str> = self.targets.iter().map(|t| t.name.as_str()).collect();
        LabError::Target(format!("{}: {error}", names.join(", ")))
    }

    /// Writes `range` of every LUN, in bytes, unmeasured, and flushes it.
    pub(crate) fn fill(&self, luns: &[Lun], range: Range<u64>) -> LabResult<()> {
        for lun in luns {
            let filled = load::fill_range(lun, range.clone(), &self.stop);
            let filled = self.lane.block_on(filled);
            filled.map_err(|error| self.failed(&error))?;
        }
        self.flush()
    }

    /// Flushes every target.
    pub(crate) fn flush(&self) -> LabResult<()> {
        for target in &self.targets {
            let flushed = self.lane.block_on(async { target.volume().flush().await });
            flushed.map_err(|error| LabError::Target(format!("{}: {error}", target.name)))?;
        }
        Ok(())
    }

    /// Discards the first `len` bytes of every target that supports it, as if nothing had been written there.
    pub(crate) fn discard(&self, len: u64) {
        for target in &self.targets {
            let len = len.min(target.len_bytes());
            // Discarding is only a hint, so errors do not matter.
            let discarded = async { target.volume().discard(0, len).await };
            let _ = self.lane.block_on(discarded);
        }
    }

    /// Adds to a profile's findings what all of them share.
    pub(crate) fn finish(&mut self, findings: &mut Findings) {
        findings
            .notes
            .extend(told(&self.others.borrow(), self.pid.is_some()));
        findings.steps = self.journal.steps();
        findings.is_interrupted = self.is_stopped();
        if self.is_stopped() {
            let note = "interrupted: the results are those measured by then";
            findings.notes.push(note.into());
        }
        if self.beside.is_empty() {
            return;
        }
        let mut table = FindingsTable::new(
            "Beside fio",
            "The same loads with fio on the same file, each after ours; I/Os a second, and times \
             from when an I/O was sent, as fio measures them. In a closed loop the mean is the number \
             outstanding divided by the throughput: where the means agree and the median or the 99th \
             percentile do not, the times are distributed otherwise, and neither is faster. The last two columns are ours from when the \
             I/O was due, which in an open loop is earlier and which fio does not know.",
            &[
                "load",
                "I/Os/s",
                "fio I/Os/s",
                "ratio",
                "mean µs",
                "fio µs",
                "ratio",
                "median µs",
                "fio µs",
                "ratio",
                "99 % µs",
                "fio µs",
                "ratio",
                "median from due µs",
                "99 % from due µs",
            ],
        );
        for (name, ours, fio) in &self.beside {
            let mut row = vec![name.clone()];
            for (ours, fio) in [
                (ours.iops, fio.per_s),
                (ours.service_us, fio.service_mean_us.unwrap_or(f64::NAN)),
                (ours.service_p50_us, fio.p50_us),
                (ours.service_p99_us, fio.p99_us),
            ] {
                row.extend([short(ours), short(fio), format!("{:.2}", ours / fio)]);
            }
            row.extend([short(ours.p50_us), short(ours.p99_us)]);
            table.rows.push(row);
        }
        findings.tables.push(table);
        let beside = self.beside.iter().map(|(name, ours, fio)| {
            let fio = json!({
                "iops": fio.per_s,
                "mean_us": fio.service_mean_us,
                "p50_us": fio.p50_us,
                "p99_us": fio.p99_us,
            });
            json!({ "load": name, "ours": ours, "fio": fio })
        });
        findings.figures["fio"] = Value::Array(beside.collect());
    }
}

fn figures(done: &Done, cpu: Cpu) -> Figures {
    Figures {
        iops: done.iops(),
        megabytes_per_s: done.megabytes_per_s(),
        mean_us: done.mean_us(),
        p50_us: done.quantile_us(0.5),
        p99_us: done.quantile_us(0.99),
        service_us: done.service_ns.mean() / 1e3,
        service_p50_us: load::quantile_us(&done.service_ns, 0.5),
        service_p99_us: load::quantile_us(&done.service_ns, 0.99),
        queue: done.mean_queue(),
        queue_by_little: done.queue_by_little(),
        generator_late_p99_us: load::quantile_us(&done.late_ns, 0.99),
        not_begun: done.not_begun,
        latencies_us: load::buckets_us(&done.latency_ns),
        service_times_us: load::buckets_us(&done.service_ns),
        generator_late_us: load::buckets_us(&done.late_ns),
        cpu,
    }
}
