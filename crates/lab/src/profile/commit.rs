//! `commit`: single-row inserts with a commit each, as an application makes them that knows no better, and
//! where the time of each goes. SQLite runs straight on the volume; what it waits for is measured
//! between the two, by one clock.

use std::{
    cell::Cell,
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

use super::{
    Case, Experiment, Needs, Runner, Sample, Work, check_time,
    layers::{self, Row, Way},
    within,
};
use crate::{
    Error, IN_FLIGHT_BYTES, Result, VolumeDisk,
    load::{SEEN_ONE_OF, mark_as_ours},
    report::{Axis, Findings, Layer, Layers, Line, Marks, Plot, Table, short},
    sqlite::{Disk, Settings, Store},
};

/// Fewer commits say nothing about a 99th percentile.
const COMMITS_MIN: usize = 200;

/// A commit that comes so long after the last whose I/Os were watched has its own watched, besides one of
/// [`SEEN_ONE_OF`]: a target that tells where the time of a command went takes an eighth more instructions for
/// it. Where commits are slow, so that it is most of them, it has nothing else to do.
const SEEN_AFTER: Duration = Duration::from_millis(20);

/// A part of more than this of the mean is worth a word.
const LARGE: f64 = 0.5;

/// What the published table has for each row of ours, in microseconds: an insert of 385 µs.
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
    commits: usize,
    time: Time,
}

/// What is inserted.
#[derive(Clone, Debug)]
pub(crate) struct Inserts {
    page: Size,
    commits: usize,
    time: Time,
}

/// Where the time of one commit went, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spent {
    total_ns: u64,
    read_ns: u64,
    write_ns: u64,
    flush_ns: u64,
    /// Where it waited, all three together; of those that were watched.
    way: Option<Way>,
}

impl Spent {
    fn waited_ns(&self) -> u64 {
        self.read_ns + self.write_ns + self.flush_ns
    }
}

/// What SQLite does itself.
const OWN: Row<Spent> = ("SQLite and its files", |spent| {
    spent.total_ns - spent.waited_ns()
});

/// What a commit is made of, as SQLite sees it: all of it.
const PARTS: [Row<Spent>; 4] = [
    OWN,
    ("waiting for reads", |spent| spent.read_ns),
    ("handing over writes", |spent| spent.write_ns),
    ("waiting until they are durable", |spent| spent.flush_ns),
];

/// A disk that notes how long SQLite waits for it.
struct TimedDisk {
    disk: VolumeDisk,
    spent: Rc<Cell<Spent>>,
}

impl TimedDisk {
    fn timed<T>(
        &self,
        work: impl FnOnce(&VolumeDisk) -> io::Result<T>,
        part: fn(&mut Spent) -> &mut u64,
    ) -> io::Result<T> {
        let began = Instant::now();
        let done = work(&self.disk);
        let mut spent = self.spent.get();
        *part(&mut spent) += began.elapsed().as_nanos() as u64;
        self.spent.set(spent);
        done
    }
}

impl Disk for TimedDisk {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.timed(
            |disk| disk.read_at(offset, buffer),
            |spent| &mut spent.read_ns,
        )
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.timed(
            |disk| disk.write_at(offset, bytes),
            |spent| &mut spent.write_ns,
        )
    }

    fn flush(&self) -> io::Result<()> {
        self.timed(Disk::flush, |spent| &mut spent.flush_ns)
    }
}

impl Inserts {
    /// Inserts rows into a new database on target number `target`, until the user asks to end.
    fn run(&self, runner: &Runner<'_>, target: usize) -> Result<Vec<Spent>> {
        let volume = runner.targets[target].volume().clone();
        let lane = runner.lane.clone();
        let failed = |error: volume::Error| {
            Error::Target(format!("{}: {error}", runner.targets[target].name))
        };
        let disk =
            VolumeDisk::new(lane.clone(), volume.clone(), IN_FLIGHT_BYTES).map_err(failed)?;
        let spent = Rc::new(Cell::default());
        let disk = TimedDisk {
            disk,
            spent: spent.clone(),
        };
        let inserted = self.insert(Rc::new(disk), &spent, runner);
        // A later run may know by it that this was nobody's data.
        lane.block_on(mark_as_ours(&*volume)).map_err(failed)?;
        inserted
    }

    fn insert(
        &self,
        disk: Rc<dyn Disk>,
        spent: &Cell<Spent>,
        runner: &Runner<'_>,
    ) -> Result<Vec<Spent>> {
        let store = Store::format(disk)?;
        let settings = Settings {
            page_bytes: u32::try_from(self.page.bytes()).unwrap_or(u32::MAX),
            ..Settings::default()
        };
        let database = store.database(&settings)?;
        database.execute("CREATE TABLE table1 (col1 TEXT, col2 INTEGER)")?;
        let doing = "INSERT INTO table1 (col1, col2) VALUES ('logmydata', ?1)";
        let mut statement = database.run(doing, |connection| connection.prepare(doing))?;
        let deadline = Instant::now() + self.time.duration();
        let mut all: Vec<Spent> = Vec::new();
        let mut seen_at = Instant::now();
        while all.len() < self.commits && !runner.is_stopped() {
            spent.set(Spent::default());
            let began = Instant::now();
            let is_one = all.len() as u64 % SEEN_ONE_OF == 0 || began - seen_at > SEEN_AFTER;
            let watch = is_one.then(Watch::new);
            if began >= deadline {
                break;
            }
            if is_one {
                seen_at = began;
            }
            let value = all.len() as i64 % 5 + 5;
            // All of this thread's I/Os until then are the commit's.
            let watched = watch.as_ref().map(Watch::enter);
            database.run(doing, |_| statement.execute([value]))?;
            drop(watched);
            let spent = spent.get();
            all.push(Spent {
                total_ns: began.elapsed().as_nanos() as u64,
                way: watch.map(|watch| Way::new(spent.waited_ns(), &watch.layers())),
                ..spent
            });
        }
        Ok(all)
    }

    /// How fast it went, for a comparison.
    pub(crate) fn sample(&self, runner: &Runner<'_>, target: usize) -> Result<Option<Sample>> {
        let all = self.run(runner, target)?;
        runner.stage.step();
        if all.len() < 2 || runner.is_stopped() {
            return Ok(None);
        }
        let total = waits(&all).total;
        Ok(Some(Sample {
            per_s: 1e6 / total.mean_us,
            p50_us: total.p50_us,
            p99_us: total.p99_us,
        }))
    }
}

/// Where the time of those that were watched went, from the database to the medium. Its total is theirs, too,
/// so that the rows add up to it.
fn across(all: &[Spent]) -> Layers {
    let seen = all.iter().filter(|spent| spent.way.is_some());
    let seen: Vec<Spent> = seen.copied().collect();
    let way = |spent: &Spent| spent.way.unwrap_or_default();
    layers::layers(&seen, |spent| spent.total_ns, &[OWN], way)
}

/// The same as the database sees it.
fn waits(all: &[Spent]) -> Layers {
    layers::layers(all, |spent| spent.total_ns, &PARTS, |_| Way::default())
}

impl Commit {
    fn inserts(&self) -> Inserts {
        Inserts {
            page: self.page,
            commits: self.commits,
            time: self.time,
        }
    }
}

impl Experiment for Commit {
    fn about(&self) -> &str {
        &self.about
    }

    fn needs(&self) -> Needs {
        Needs {
            sessions: 1,
            size_bytes: self.size.bytes(),
            writes: true,
            is_spread: false,
        }
    }

    fn steps(&self) -> usize {
        1
    }

    fn run(&self, runner: &mut Runner<'_>) -> Result<Findings> {
        let all = self.inserts().run(runner, 0)?;
        runner.stage.step();
        if all.is_empty() {
            return Ok(Findings {
                answer: "Nothing was measured.".into(),
                figures: json!({ "commits_us": [] }),
                ..Findings::default()
            });
        }
        let (across, waits) = (across(&all), waits(&all));
        let mut notes = layers::notes(all.iter().filter_map(|spent| spent.way));
        let seen = all.iter().filter(|spent| spent.way.is_some()).count();
        notes.push(format!(
            "where the time went is that of {seen} of {} commits, as to tell it takes a target longer; all else is \
             of all of them",
            all.len()
        ));
        if all.len() < COMMITS_MIN {
            notes.push(format!(
                "{} commits say little about the slowest of a hundred: let it run longer (time, commits)",
                all.len()
            ));
        }
        if runner.targets.len() > 1 {
            notes.push("one database is on one disk: only the first --on was used".into());
        }
        let totals = all.iter().map(|spent| spent.total_ns as f64 / 1e3);
        let totals: Vec<f64> = totals.collect();
        Ok(Findings {
            answer: answer(&waits, all.len()),
            advice: advice(&waits).into_iter().collect(),
            notes,
            tables: vec![waited_for(&waits), published()],
            plots: vec![plot(&totals)],
            figures: json!({
                "commits": all.len(),
                "commits_us": totals,
                "waits": waits,
            }),
            layers: Some(across),
            ..Findings::default()
        })
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case {
            name: "commits".into(),
            work: Work::Commits(self.inserts()),
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
                "page = \"{}\" is no page of SQLite: write a power of two from 512B to 64KiB",
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
        "A commit takes {} µs at the median and {} µs at the 99th percentile ({} a second over {commits} \
         commits).",
        short(total.p50_us),
        short(total.p99_us),
        short(1e6 / total.mean_us),
    )
}

/// Says what most of the time goes to, if one part has most of it.
fn advice(layers: &Layers) -> Option<String> {
    let total_us = layers.total.mean_us;
    let part = |layer: &&Layer| layer.times.mean_us > LARGE * total_us;
    let largest = layers.layers.iter().find(part)?;
    let percent = 100.0 * largest.times.mean_us / total_us;
    let mend = match largest.name.as_str() {
        name if name == PARTS[3].0 => {
            "let several inserts share a commit, or give the log a medium with a faster flush"
        }
        name if name == PARTS[0].0 => {
            "a faster disk would not help, a faster core or fewer commits would"
        }
        name if name == PARTS[1].0 => "give the database more memory for its pages",
        _ => "more writes are under way than the disk takes: let fewer be outstanding",
    };
    Some(format!(
        "{percent:.0} % of a commit is {}: {mend}",
        largest.name
    ))
}

fn waited_for(waits: &Layers) -> Table {
    Table {
        title: "What the database waited for".into(),
        ..waits.table()
    }
}

fn published() -> Table {
    let mut table = Table::new(
        "Beside a published one",
        "An insert into SQL Server on a cluster that writes each block to two nodes, as a published study has \
         estimated it. Other software on other hardware: the parts compare, the times do not.",
        &["layer", "µs", "of the total"],
    );
    let total: f64 = PUBLISHED.iter().map(|(_, us)| us).sum();
    for (name, us) in PUBLISHED {
        let percent = format!("{:.0} %", 100.0 * us / total);
        table.rows.push(vec![name.into(), short(us), percent]);
    }
    table
}

/// Commits in their order; of many, the median of each few.
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
        about: format!("In their order; each point is the median of {few}."),
        x: axis("commits", false),
        y: axis("microseconds", true),
        marks: Marks::Lines(vec![Line {
            name: "time of a commit".into(),
            points: points.collect(),
        }]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Times;

    fn spent(total_us: u64, flush_us: u64) -> Spent {
        Spent {
            total_ns: total_us * 1000,
            read_ns: 1000,
            write_ns: 2000,
            flush_ns: flush_us * 1000,
            way: None,
        }
    }

    #[test]
    fn where_the_time_went_is_of_those_alone_that_were_watched() {
        let watched = |total_us| Spent {
            way: Some(Way::default()),
            ..spent(total_us, 60)
        };
        let all = [watched(100), spent(1000, 60), spent(1000, 60), watched(200)];
        let (across, waits) = (across(&all), waits(&all));
        assert!((across.total.mean_us - 150.0).abs() < 1e-9, "{across:?}");
        assert!((waits.total.mean_us - 575.0).abs() < 1e-9, "{waits:?}");
        assert!(answer(&waits, 4).contains("1,739 a second"));
    }

    #[test]
    fn the_parts_add_up_at_the_mean_the_median_and_the_99th_percentile() {
        // Slow commits are slow in another part than the others.
        let quick = (0..950).map(|n| spent(100 + n % 7, 60));
        let slow = (0..50).map(|n| spent(1000 + n, 60));
        let all: Vec<Spent> = quick.chain(slow).collect();
        let layers = waits(&all);
        for of in [
            |times: &Times| times.mean_us,
            |times: &Times| times.p50_us,
            |times: &Times| times.p99_us,
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

    #[test]
    fn advice_needs_a_part_that_has_most_of_it() {
        let told = advice(&waits(&[spent(100, 70)])).expect("most of it");
        assert!(
            told.starts_with("70 % of a commit is waiting until"),
            "{told}"
        );
        assert_eq!(advice(&waits(&[spent(100, 50)])), None);
    }
}
