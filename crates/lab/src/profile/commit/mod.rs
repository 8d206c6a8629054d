//! `commit`: single-row inserts with a commit each, as a naive application makes them, and a breakdown of the
//! time of each commit. SQLite runs directly on the volume, and its waits are measured between the two, by
//! one clock. Some commits are also traced for the page.

mod advice;
mod draw;
mod layer;
mod log;
mod nodes;
mod own;
mod trace;

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::json;
use volume::{
    config::{Size, Time},
    layers::Watch,
};

use self::{
    log::Log,
    nodes::Nodes,
    trace::{Clock, DiskWait, KeptCommits, Traced, works},
};
use super::{
    Case, CaseWork, Experiment, Needs, Runner, check_time,
    layers::{self, LayerRow, TimeSpent},
    within,
};
use crate::{
    IN_FLIGHT_BYTES, LabError, LabResult, VolumeDisk,
    load::{Sampler, mark_as_ours},
    machine,
    report::{Axis, Findings, FindingsTable, Layers, Marks, Plot, PlotLine, short, time_us},
    speed::Speed,
    sqlite::{DatabaseDisk, DatabaseStore, Settings},
    target::FILE,
};

/// Fewer commits give no meaningful 99th percentile.
const COMMITS_MIN: usize = 200;

/// Commits are not watched more often than this, at the pace of the first ones: it costs the target an eighth more
/// instructions for each command. If commits are so slow that most of them are watched, the target has time to spare.
const SEEN_EVERY: Duration = Duration::from_millis(20);
/// So many commits show the pace. They do not count.
const PACED: u32 = 4;

/// The log that a database would have is measured for this part of the time.
const LOG_PART: u32 = 4;

/// The published time of each of our rows, in microseconds: an insert of 385 µs.
const PUBLISHED: [(&str, f64); 4] = [
    ("SQL and its code", 84.7),
    ("operating system", 42.3),
    ("path to the storage", 94.0),
    ("replicated write", 164.0),
];

/// The settings of a `commit` profile.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Commit {
    about: String,
    size: Size,
    page: Size,
    /// Statements to run after creating the table: a trigger, an index.
    #[serde(default)]
    setup: Vec<String>,
    commits: usize,
    time: Time,
}

/// What to insert.
#[derive(Clone, Debug)]
pub(crate) struct Inserts {
    page: Size,
    setup: Vec<String>,
    commits: usize,
    time: Time,
}

/// Breakdown of the time of one commit, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spent {
    total_ns: u64,
    read_ns: u64,
    write_ns: u64,
    flush_ns: u64,
    /// Where it waited, all three kinds of waits together; only for watched commits.
    way: Option<TimeSpent>,
}

impl Spent {
    fn waited_ns(&self) -> u64 {
        self.read_ns + self.write_ns + self.flush_ns
    }
}

const DATABASE: &str = "SQLite and its files";
const READS: &str = "waiting for reads";
const DURABLE: &str = "waiting until they are durable";

/// The time spent in SQLite itself.
const OWN: LayerRow<Spent> = (DATABASE, |spent| spent.total_ns - spent.waited_ns());

/// The parts of a commit as SQLite sees them; they add up to all of it.
const PARTS: [LayerRow<Spent>; 4] = [
    OWN,
    (READS, |spent| spent.read_ns),
    ("handing over writes", |spent| spent.write_ns),
    (DURABLE, |spent| spent.flush_ns),
];

/// The breakdown of all commits, and the spans of those that are kept.
#[derive(Default)]
struct Inserted {
    spent: Vec<Spent>,
    kept: KeptCommits,
    nodes: Nodes,
}

/// A disk that records when and how long SQLite waits for it.
struct TimedDisk {
    disk: VolumeDisk,
    noted: Rc<Noted>,
}

/// What it recorded about the current commit.
#[derive(Default)]
struct Noted {
    began: Cell<Option<Instant>>,
    spent: Cell<Spent>,
    calls: RefCell<Vec<DiskWait>>,
}

impl TimedDisk {
    fn timed<T>(
        &self,
        (kind, len): (&'static str, usize),
        work: impl FnOnce(&VolumeDisk) -> io::Result<T>,
        part: fn(&mut Spent) -> &mut u64,
    ) -> io::Result<T> {
        let began = Instant::now();
        let done = work(&self.disk);
        let took_ns = began.elapsed().as_nanos() as u64;
        let mut spent = self.noted.spent.get();
        *part(&mut spent) += took_ns;
        self.noted.spent.set(spent);
        if let Some(commit_began) = self.noted.began.get() {
            let from_ns = began.duration_since(commit_began).as_nanos() as u64;
            self.noted.calls.borrow_mut().push(DiskWait {
                kind,
                len_bytes: len as u64,
                from_ns,
                to_ns: from_ns + took_ns,
            });
        }
        done
    }
}

impl DatabaseDisk for TimedDisk {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.timed(
            ("read", buffer.len()),
            |disk| disk.read_at(offset, buffer),
            |spent| &mut spent.read_ns,
        )
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.timed(
            ("write", bytes.len()),
            |disk| disk.write_at(offset, bytes),
            |spent| &mut spent.write_ns,
        )
    }

    fn flush(&self) -> io::Result<()> {
        self.timed(("flush", 0), DatabaseDisk::flush, |spent| {
            &mut spent.flush_ns
        })
    }
}

impl Inserts {
    /// Inserts rows into a new database on target number `target`, until the user asks to stop.
    fn run(&self, runner: &Runner<'_>, target: usize) -> LabResult<Inserted> {
        let target = &runner.targets[target];
        let volume = target.volume().clone();
        let lane = runner.lane.clone();
        let failed = |error: volume::Error| LabError::Target(format!("{}: {error}", target.name));
        let disk =
            VolumeDisk::new(lane.clone(), volume.clone(), IN_FLIGHT_BYTES).map_err(failed)?;
        let noted = Rc::new(Noted::default());
        let disk = TimedDisk {
            disk,
            noted: noted.clone(),
        };
        let view = target.view();
        let nodes = view.map_or_else(
            || Nodes::file(FILE, &target.place()),
            |view| Nodes::of(&view),
        );
        let watch = machine::Watch::begin(runner.pid);
        let inserted = self.insert(Rc::new(disk), &noted, nodes, runner);
        runner.beside(&format!("the commits on {}", target.name), watch.others());
        // Marks the disk, so that a later run knows that it holds nobody's data.
        lane.block_on(mark_as_ours(&*volume)).map_err(failed)?;
        inserted
    }

    fn insert(
        &self,
        disk: Rc<dyn DatabaseDisk>,
        noted: &Noted,
        nodes: Nodes,
        runner: &Runner<'_>,
    ) -> LabResult<Inserted> {
        let store = DatabaseStore::format(disk)?;
        let settings = Settings {
            page_bytes: u32::try_from(self.page.bytes()).unwrap_or(u32::MAX),
            ..Settings::default()
        };
        let database = store.database(&settings)?;
        database.execute("CREATE TABLE table1 (col1 TEXT, col2 INTEGER)")?;
        for statement in &self.setup {
            database.execute(statement)?;
        }
        let doing = "INSERT INTO table1 (col1, col2) VALUES ('logmydata', ?1)";
        let mut statement = database.run(doing, |connection| connection.prepare(doing))?;
        let clock = Clock::of(runner.lane);
        let value = |number: usize| number as i64 % 5 + 5;
        let began = Instant::now();
        for number in 0..PACED {
            database.run(doing, |_| statement.execute([value(number as usize)]))?;
        }
        let pace = began.elapsed() / PACED;
        let time = self.time.duration();
        let expected = (time.as_secs_f64() / pace.as_secs_f64().max(1e-9)).min(self.commits as f64);
        let mut sampler = Sampler::new(pace, SEEN_EVERY, expected, runner.seed);
        let deadline = Instant::now() + time;
        let mut inserted = Inserted {
            nodes,
            ..Inserted::default()
        };
        while inserted.spent.len() < self.commits && !runner.is_stopped() {
            noted.spent.take();
            noted.calls.take();
            let began = Instant::now();
            if began >= deadline {
                break;
            }
            let watch = sampler.is_next().then(Watch::tracing);
            noted.began.set(watch.is_some().then_some(began));
            let value = value(inserted.spent.len());
            // All I/Os of this thread until then belong to the commit.
            let watched = watch.as_ref().map(Watch::enter);
            database.run(doing, |_| statement.execute([value]))?;
            drop(watched);
            let total = began.elapsed();
            let spent = noted.spent.get();
            let way = watch
                .as_ref()
                .map(|watch| TimeSpent::new(spent.waited_ns(), &watch.layers()));
            inserted.spent.push(Spent {
                total_ns: total.as_nanos() as u64,
                way,
                ..spent
            });
            if let Some(watch) = watch {
                let (spans, left_out) = watch.take_spans();
                let number = inserted.spent.len();
                inserted.kept.add(|place| Traced {
                    place,
                    number,
                    total_ns: total.as_nanos() as u64,
                    calls: noted.calls.take(),
                    works: works(spans, &inserted.nodes, &clock, (began, total)),
                    left_out,
                });
            }
        }
        noted.began.set(None);
        Ok(inserted)
    }

    /// The insert rate, for a comparison.
    pub(crate) fn sample(&self, runner: &Runner<'_>, target: usize) -> LabResult<Option<Speed>> {
        let all = self.run(runner, target)?.spent;
        runner.stage.step();
        if all.len() < 2 || runner.is_stopped() {
            return Ok(None);
        }
        let total = waits(&all).total;
        Ok(Some(Speed {
            per_s: 1e6 / total.mean_us,
            p50_us: total.p50_us,
            p99_us: total.p99_us,
            ..Speed::default()
        }))
    }
}

/// The breakdown from the database to the medium. The total and the database's own time, whose row is the first of
/// `waits`, are those of all commits; only how the waiting divides is that of the watched ones.
fn across(all: &[Spent], waits: &Layers) -> Layers {
    let seen = all.iter().filter(|spent| spent.way.is_some());
    let seen: Vec<Spent> = seen.copied().collect();
    let Some(own) = waits.layers.first().filter(|_| !seen.is_empty()) else {
        return waits.clone();
    };
    let way = |spent: &Spent| spent.way.unwrap_or_default();
    let ways = layers::layers(&seen, |spent| spent.total_ns, &[], way);
    let ways = ways.of_total(waits.total.minus(own.times));
    Layers {
        total: waits.total,
        layers: [own.clone()].into_iter().chain(ways.layers).collect(),
    }
}

/// The same from the database's point of view.
fn waits(all: &[Spent]) -> Layers {
    layers::layers(
        all,
        |spent| spent.total_ns,
        &PARTS,
        |_| TimeSpent::default(),
    )
}

impl Commit {
    fn inserts(&self) -> Inserts {
        Inserts {
            page: self.page,
            commits: self.commits,
            time: self.time,
            setup: self.setup.clone(),
        }
    }
}

impl Experiment for Commit {
    fn about(&self) -> &str {
        &self.about
    }

    fn needs(&self) -> Needs {
        Needs::of_database(self.size.bytes())
    }

    fn steps(&self) -> usize {
        1
    }

    fn run(&self, runner: &mut Runner<'_>) -> LabResult<Findings> {
        let Inserted {
            spent: all,
            kept,
            nodes,
        } = self.inserts().run(runner, 0)?;
        runner.stage.step();
        if all.is_empty() {
            return Ok(Findings {
                answer: "Nothing was measured.".into(),
                figures: json!({ "commits_us": [] }),
                ..Findings::default()
            });
        }
        let waits = waits(&all);
        let across = across(&all, &waits);
        let time = self.time.duration() / LOG_PART;
        let log = match runner.is_stopped() {
            true => None,
            false => Log::measure(runner, 0, self.commits, time)?,
        };
        let mut notes = layers::notes(all.iter().filter_map(|spent| spent.way));
        let seen = all.iter().filter(|spent| spent.way.is_some()).count();
        notes.push(format!(
            "how the waiting divides into layers was sampled from {seen} of {} commits, because reporting it slows a \
             target down; all other figures are of all commits",
            all.len()
        ));
        if all.len() < COMMITS_MIN {
            notes.push(format!(
                "{} commits say little about the 99th percentile: run longer (raise `time` and \
                 `commits`)",
                all.len()
            ));
        }
        if runner.targets.len() > 1 {
            notes.push("a database is on one disk: only the first --on was used".into());
        }
        let totals = all.iter().map(|spent| spent.total_ns as f64 / 1e3);
        let totals: Vec<f64> = totals.collect();
        let (by_node, json_by_node) = draw::by_node(&kept, &across, &nodes);
        let mut plots = vec![draw::flames(&kept, &across, &nodes)];
        plots.extend(draw::waterfalls(&kept, &across, &nodes));
        plots.push(plot(&totals));
        let advice = advice::of_calls(&all).into_iter();
        let advice = advice.chain(advice::of_nodes(&kept, &nodes));
        let mut tables = vec![across.table(), waited_for(&waits), by_node, published()];
        let mut answer = answer(&waits, all.len());
        if let Some(log) = &log {
            answer = format!("{answer} {}", log.sentence());
            tables.insert(2, log.table());
        }
        Ok(Findings {
            answer,
            advice: advice.collect(),
            notes,
            tables,
            plots,
            figures: json!({
                "commits": all.len(),
                "commits_us": totals,
                "waits": waits,
                "log": log.as_ref().map(Log::json),
                "nodes": json_by_node,
                "traced": draw::traced(&kept, &across, &nodes),
            }),
            layers: Some(across),
            ..Findings::default()
        })
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case {
            name: "commits".into(),
            work: CaseWork::Commits(self.inserts()),
            time: self.time,
        }]
    }

    fn verifies(&self) -> bool {
        false
    }

    fn check(&self) -> std::result::Result<(), String> {
        let page = self.page.bytes();
        if !page.is_power_of_two() || !(512..=65536).contains(&page) {
            return Err(format!(
                "page = \"{}\" is not a page size of SQLite: write a power of two from 512B to 64KiB",
                self.page
            ));
        }
        within("commits", self.commits, 1..=10_000_000)?;
        check_time(self.time)
    }
}

fn answer(layers: &Layers, commits: usize) -> String {
    let total = layers.total;
    format!(
        "A commit of SQLite takes {} at the median and {} at the 99th percentile ({} a second over {commits} commits).",
        time_us(total.p50_us),
        time_us(total.p99_us),
        short(1e6 / total.mean_us),
    )
}

fn waited_for(waits: &Layers) -> FindingsTable {
    FindingsTable {
        title: "What the database waited for".into(),
        ..waits.table()
    }
}

fn published() -> FindingsTable {
    let mut table = FindingsTable::new(
        "Beside a published result",
        "An insert into SQL Server on a cluster that writes each block to two nodes, as estimated in a \
         published study. Other software on other hardware: compare the parts, not the times.",
        &["layer", "time", "of the total"],
    );
    let total: f64 = PUBLISHED.iter().map(|(_, us)| us).sum();
    for (name, us) in PUBLISHED {
        let percent = format!("{:.0} %", 100.0 * us / total);
        table.rows.push(vec![name.into(), time_us(us), percent]);
    }
    table
}

/// Commits in order; if there are many, the median of each small group.
fn plot(totals: &[f64]) -> Plot {
    const POINTS: usize = 400;
    let few = totals.len().div_ceil(POINTS).max(1);
    let median = |chunk: &[f64]| {
        let mut sorted = chunk.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let points = totals.chunks(few).enumerate();
    let points = points.map(|(index, chunk)| ((index * few) as f64, median(chunk)));
    let axis = |label: &str, is_logarithmic| Axis {
        label: label.into(),
        is_logarithmic,
    };
    Plot {
        title: "Every commit".into(),
        about: format!("In order; each point is the median of {few}."),
        x: axis("commits", false),
        y: axis("microseconds", true),
        marks: Marks::Lines(vec![PlotLine {
            name: "time of a commit".into(),
            points: points.collect(),
        }]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::OperationTimes;

    pub(super) fn spent(total_us: u64, flush_us: u64) -> Spent {
        Spent {
            total_ns: total_us * 1000,
            read_ns: 1000,
            write_ns: 2000,
            flush_ns: flush_us * 1000,
            way: None,
        }
    }

    #[test]
    fn the_first_table_has_the_totals_of_all_commits() {
        let watched = |total_us| Spent {
            way: Some(TimeSpent::new(63_000, &volume::layers::Layers::default())),
            ..spent(total_us, 60)
        };
        let all = [watched(100), spent(1000, 60), spent(1000, 60), watched(200)];
        let waits = waits(&all);
        let across = across(&all, &waits);
        assert_eq!(across.total, waits.total);
        assert_eq!(across.layers[0].times, waits.layers[0].times);
        let parts = across.layers.iter().map(|layer| layer.times.mean_us);
        assert!(
            (parts.sum::<f64>() - waits.total.mean_us).abs() < 1e-9,
            "{across:?}"
        );
        assert!((waits.total.mean_us - 575.0).abs() < 1e-9, "{waits:?}");
        assert!(answer(&waits, 4).contains("1,739 a second"));
    }

    #[test]
    fn the_parts_add_up_at_the_mean_the_median_and_the_99th_percentile() {
        // Slow commits spend their extra time in a different part than the others.
        let quick = (0..950).map(|n| spent(100 + n % 7, 60));
        let slow = (0..50).map(|n| spent(1000 + n, 60));
        let all: Vec<Spent> = quick.chain(slow).collect();
        let layers = waits(&all);
        for of in [
            |times: &OperationTimes| times.mean_us,
            |times: &OperationTimes| times.p50_us,
            |times: &OperationTimes| times.p99_us,
        ] {
            let parts: f64 = layers.layers.iter().map(|layer| of(&layer.times)).sum();
            let total = of(&layers.total);
            assert!((parts / total - 1.0).abs() < 1e-9, "{parts} of {total}");
        }
        assert!((layers.total.p50_us - 103.0).abs() < 1.0, "{layers:?}");
        assert!(layers.total.p99_us > 1000.0, "{layers:?}");
        let files = &layers.layers[0].times;
        assert!(files.p50_us < 45.0 && files.p99_us > 900.0, "{files:?}");
        assert!(layers.layers[3].times.p99_us < 61.0, "{layers:?}");
    }
}
