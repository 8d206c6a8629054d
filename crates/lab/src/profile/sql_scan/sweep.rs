//! Runs the statements with one page size and one cache, alternating between all disks. The database is
//! loaded anew for each, because an existing database cannot change its page size.

use std::{
    cell::Cell,
    io,
    rc::Rc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use volume::{
    SharedVolume,
    cache::{Cache, CacheConfig},
    config::{Size, Time},
};

use crate::{
    IN_FLIGHT_BYTES, LabError, LabResult, VolumeDisk,
    databases::ServerKind,
    drive_stats::RowSource,
    load::{Stop, mark_as_ours},
    machine::Watch,
    nameless::nameless_file,
    others::Others,
    profile::Runner,
    progress::ProgressOutput,
    report::short,
    speed::Speed,
    sqlite::{DatabaseDisk, Settings},
    statements::{
        Experiment, ExperimentReport, MeasuredShare, SetUp, Statement, StatementReport, Survey,
        Traffic, score_s,
    },
};

/// The statements with one page size and one cache.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    /// The server and a survey of its data; `None` for SQLite.
    pub(super) server: Option<(ServerKind, Survey)>,
    pub(super) page: Size,
    pub(super) cache: Size,
    pub(super) settings: Settings,
    pub(super) source: RowSource,
    pub(super) statements: Vec<Statement>,
    pub(super) time: Time,
}

/// The measurements with one page size and one cache.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct SweepPoint {
    pub(super) name: String,
    pub(super) page: String,
    pub(super) cache: String,
    pub(super) rows: u64,
    pub(super) table_bytes: u64,
    /// The disks, in the order the user named them.
    pub(super) sets: Vec<MeasuredSet>,
    /// What other programs used of the processors.
    #[serde(default)]
    pub(super) others: Others,
}

/// The measurements on one disk.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct MeasuredSet {
    pub(super) name: String,
    /// `None` if some statement did not run.
    pub(super) score_s: Option<f64>,
    pub(super) statements: Vec<MeasuredStatement>,
}

impl MeasuredSet {
    /// Whether a configured cache applies to this disk: with a server, only volumes have one in front of
    /// them.
    pub(super) fn can_have_cache(&self) -> bool {
        let is_volume = |of: &Processors| of.attach_s.is_some();
        let mut served = self.statements.iter().flat_map(|s| &s.processors);
        served.all(is_volume)
    }
}

/// One statement on one disk.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct MeasuredStatement {
    pub(super) name: String,
    pub(super) sql: String,
    pub(super) weight: f64,
    pub(super) runs_s: Vec<f64>,
    pub(super) average_s: f64,
    pub(super) read_megabytes_per_s: f64,
    pub(super) written_megabytes_per_s: f64,
    pub(super) paper_s: Option<[f64; 2]>,
    /// Average over the runs; only with a server.
    #[serde(default)]
    pub(super) processors: Option<Processors>,
}

/// Processor time of a run, in seconds.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Processors {
    /// The whole machine.
    pub(super) machine_s: f64,
    pub(super) server_s: f64,
    /// The process that attaches the volume.
    pub(super) attach_s: Option<f64>,
}

impl Processors {
    fn with(self, other: Processors, of: fn(f64, f64) -> f64) -> Processors {
        let attach = self.attach_s.zip(other.attach_s);
        Processors {
            machine_s: of(self.machine_s, other.machine_s),
            server_s: of(self.server_s, other.server_s),
            attach_s: attach.map(|(this, other)| of(this, other)),
        }
    }

    pub(super) fn since(self, earlier: Processors) -> Processors {
        self.with(earlier, |now, then| (now - then).max(0.0))
    }

    pub(super) fn plus(self, other: Processors) -> Processors {
        self.with(other, |this, other| this + other)
    }

    pub(super) fn divided_by(self, count: f64) -> Processors {
        let each = |seconds: f64| seconds / count;
        Processors {
            machine_s: each(self.machine_s),
            server_s: each(self.server_s),
            attach_s: self.attach_s.map(each),
        }
    }
}

impl Sweep {
    /// Its page size and cache in words.
    pub(super) fn name(&self) -> String {
        let cache = match self.cache.bytes() {
            0 => "no cache".into(),
            _ => format!("a cache of {}", self.cache),
        };
        format!("pages of {}, {cache}", self.page)
    }

    /// The same with a single run of each statement.
    pub(super) fn once(self) -> Sweep {
        let statements = self.statements.into_iter().map(|s| s.repeated(1));
        Sweep {
            statements: statements.collect(),
            ..self
        }
    }

    /// Measures it on all disks. `None`: the user asked to stop before anything was measured.
    pub(super) fn measure(&self, runner: &mut Runner<'_>) -> LabResult<Option<SweepPoint>> {
        // A partial result is reported but not recorded, so a resumed run measures it again.
        let mut partial = None;
        let name = self.name();
        let complete = runner.once(&name, |runner| {
            let watch = Watch::begin(runner.pid);
            let mut measured = self.measure_now(runner)?;
            if let Some(measured) = &mut measured {
                measured.others = watch.others();
            }
            let is_complete = !runner.is_stopped();
            partial.clone_from(&measured);
            Ok(measured.filter(|_| is_complete))
        })?;
        let measured = complete.or(partial);
        if let Some(measured) = &measured {
            runner.beside(&name, measured.others);
        }
        Ok(measured)
    }

    fn measure_now(&self, runner: &mut Runner<'_>) -> LabResult<Option<SweepPoint>> {
        if runner.is_stopped() {
            return Ok(None);
        }
        let targets: Vec<usize> = (0..runner.targets.len()).collect();
        let (tell, name) = (runner.stage.teller(), self.name());
        let tell = move |what: &str| tell(&format!("{name}: {what}"));
        let measured = match &self.server {
            None => self.run(runner, &targets, Box::new(tell))?,
            Some((kind, survey)) => self.serve(runner, *kind, survey, &tell)?,
        };
        if let Some(measured) = &measured {
            let scores = measured.sets.iter().map(|set| match set.score_s {
                Some(score_s) => format!("{} {} s", set.name, short(score_s)),
                None => format!("{} has no score", set.name),
            });
            let scores: Vec<String> = scores.collect();
            runner
                .stage
                .tell(&format!("{}: {}", self.name(), scores.join(", ")));
        }
        Ok(measured)
    }

    /// The speed on one disk, for a comparison.
    pub(crate) fn sample(&self, runner: &Runner<'_>, target: usize) -> LabResult<Option<Speed>> {
        let watch = Watch::begin(runner.pid);
        let measured = self.run(runner, &[target], Box::new(|_| ()))?;
        let name = format!("{} on {}", self.name(), runner.targets[target].name);
        runner.beside(&name, watch.others());
        runner.stage.step();
        let Some(set) = measured.as_ref().and_then(|measured| measured.sets.first()) else {
            return Ok(None);
        };
        let slowest = set.statements.iter().map(|s| s.average_s);
        let slowest = slowest.fold(0.0, f64::max);
        Ok(set.score_s.map(|score_s| Speed {
            per_s: 1.0 / score_s,
            p50_us: score_s * 1e6,
            p99_us: slowest * 1e6,
            ..Speed::default()
        }))
    }

    fn run(
        &self,
        runner: &Runner<'_>,
        targets: &[usize],
        told: Box<dyn Fn(&str)>,
    ) -> LabResult<Option<SweepPoint>> {
        let (mut set_ups, mut shares, mut flushed) = (Vec::new(), Vec::new(), Vec::new());
        for (index, target) in targets.iter().enumerate() {
            let target = &runner.targets[*target];
            let failed =
                |error: volume::Error| LabError::Target(format!("{}: {error}", target.name));
            let volume = self.cached(target.volume()).map_err(failed)?;
            let disk = VolumeDisk::new(runner.lane.clone(), volume, IN_FLIGHT_BYTES);
            let traffic = Rc::new(Cell::new(Traffic::default()));
            let disk = CountedDisk {
                disk: disk.map_err(failed)?,
                traffic: traffic.clone(),
                stop: runner.stop.clone(),
            };
            set_ups.push(SetUp {
                name: target.name.clone(),
                disk: Rc::new(disk),
                shares: vec![index],
            });
            shares.push(MeasuredShare {
                name: target.name.clone(),
                traffic: Box::new(move || traffic.get()),
            });
            flushed.push(target.volume().clone());
        }
        let deadline = Instant::now() + self.time.duration();
        let stop = runner.stop.clone();
        let experiment = Experiment {
            set_ups,
            shares,
            link_bits_per_s: None,
            source: self.source.clone(),
            settings: self.settings,
            statements: self.statements.clone(),
            image: nameless_file(&std::env::temp_dir())?,
            settle: Box::new(settle(runner)),
            is_over: Box::new(move || stop.is_asked() || Instant::now() >= deadline),
            told,
            notes: Vec::new(),
        };
        let report = experiment.run(ProgressOutput::Silent);
        for volume in &flushed {
            // Marks the disk, so that a later run knows that it holds nobody's data.
            let marked = runner.lane.block_on(mark_as_ours(&**volume));
            marked.map_err(|error| LabError::Target(error.to_string()))?;
        }
        match report {
            Ok(report) => Ok(Some(self.measured(&report))),
            Err(_) if runner.is_stopped() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn cached(&self, volume: &SharedVolume) -> volume::Result<SharedVolume> {
        if self.cache.bytes() == 0 {
            return Ok(volume.clone());
        }
        let config = CacheConfig {
            size_bytes: self.cache.bytes(),
            ..CacheConfig::default()
        };
        Ok(Rc::new(Cache::new(volume.clone(), &config)?))
    }

    fn measured(&self, report: &ExperimentReport) -> SweepPoint {
        let statement = |share: usize, statement: &StatementReport| {
            let (read, written) = statement.throughput(share);
            MeasuredStatement {
                name: statement.statement.name.clone(),
                sql: statement.statement.sql.clone(),
                weight: statement.statement.weight,
                runs_s: statement.runs.iter().map(|run| run.seconds).collect(),
                average_s: statement.average_s(),
                read_megabytes_per_s: read / 1e6,
                written_megabytes_per_s: written / 1e6,
                paper_s: statement.statement.paper_s,
                processors: None,
            }
        };
        let sets = report.sets.iter().enumerate().map(|(share, set)| {
            let statements = set.statements.iter().map(|s| statement(share, s));
            let statements: Vec<MeasuredStatement> = statements.collect();
            let all_ran = statements.iter().all(|s| !s.runs_s.is_empty());
            let score = || score_s(statements.iter().map(|s| (s.weight, s.average_s)));
            MeasuredSet {
                name: set.name.clone(),
                score_s: all_ran.then(score),
                statements,
            }
        });
        SweepPoint {
            name: self.name(),
            page: self.page.to_string(),
            cache: self.cache.to_string(),
            rows: report.data.rows,
            table_bytes: report.data.table_bytes,
            sets: sets.collect(),
            others: Others::default(),
        }
    }
}

/// Gives unused read-ahead of the last statement time to finish, so that it does not slow down the next.
fn settle(runner: &Runner<'_>) -> impl Fn() + 'static {
    const QUIET: Duration = Duration::from_millis(15);
    let lane = runner.lane.clone();
    move || lane.block_on(async { engine::time::sleep(QUIET).await })
}

/// A disk that counts what SQLite transfers, and fails once the user has asked to stop, because a statement
/// may take minutes.
struct CountedDisk {
    disk: VolumeDisk,
    traffic: Rc<Cell<Traffic>>,
    stop: Stop,
}

impl CountedDisk {
    fn goes_on(&self, read_bytes: usize, written_bytes: usize) -> io::Result<()> {
        if self.stop.is_asked() {
            return Err(io::Error::other("the user has asked to end"));
        }
        self.traffic.set(self.traffic.get().plus(Traffic {
            read_bytes: read_bytes as u64,
            written_bytes: written_bytes as u64,
        }));
        Ok(())
    }
}

impl DatabaseDisk for CountedDisk {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.goes_on(buffer.len(), 0)?;
        self.disk.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.goes_on(0, bytes.len())?;
        self.disk.write_at(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.goes_on(0, 0)?;
        self.disk.flush()
    }
}
