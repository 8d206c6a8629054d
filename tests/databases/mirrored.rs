//! A database on a mirror, the copies of which are on two storage machines. They fail one after the other, in every way in
//! which the other lives: the database sees no error, nothing that it has acknowledged is lost, a copy that returns gets
//! what it has missed and no more, and in the end both are equal.

use crate::attached::{Attached, FileSystem, can_attach};
use crate::kills::Rounds;
use crate::ledger::Ledger;
use crate::load;
use crate::storage::{DATA_BYTES, Storage};
use harness::database::{Database, Extent};
use harness::directory::Directory;
use harness::links::Towards;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);
/// Rows that each client commits before, during and after a failure.
const ROWS: usize = 25;
/// What a database without clients may write in ten seconds, in regions of the mirror.
const IDLE_BYTES: u64 = 16 << 20;

/// How a storage machine fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Killed,
    Hangs,
    /// It hears nothing.
    Deaf,
    /// Nobody hears it.
    Mute,
    DiskFull,
}

const FAILURES: [Failure; 5] = [
    Failure::Killed,
    Failure::Hangs,
    Failure::Deaf,
    Failure::Mute,
    Failure::DiskFull,
];

impl Failure {
    fn begin(self, storage: &mut Storage) {
        match self {
            Failure::Killed => storage.kill(),
            Failure::Hangs => storage.hang(),
            Failure::Deaf => storage.cut(Towards::FarEnd),
            Failure::Mute => storage.cut(Towards::NearEnd),
            Failure::DiskFull => storage.fill_up(),
        }
    }

    fn end(self, storage: &mut Storage) {
        match self {
            Failure::Killed => storage.start(),
            Failure::Hangs => storage.go_on(),
            Failure::Deaf | Failure::Mute => storage.mend(),
            Failure::DiskFull => storage.make_room(),
        }
    }
}

/// A database on a mirror, with clients.
struct Scene<D> {
    attached: Attached,
    database: D,
    ledger: Ledger,
    storages: [Storage; 2],
    /// For the logs of the load.
    directory: Directory,
}

impl<D: Database> Scene<D> {
    fn create(storages: [Storage; 2], file_system: FileSystem) -> Scene<D> {
        let of = storages.each_ref().map(|storage| {
            let times = "request_timeout = \"2s\", reconnect_timeout = \"2s\"";
            format!("{{ iscsi = {{ url = \"{}\", {times} }} }}", storage.url())
        });
        let mirror = format!("copy_timeout = \"2s\", of = [{}]", of.join(", "));
        let volumes = format!("[volume.db]\nmirror = {{ {mirror} }}\n");
        let attached = Attached::create(&volumes, "db", file_system);
        let (directory, database, ledger) = load::prepared(&attached.data());
        Scene {
            attached,
            database,
            ledger,
            storages,
            directory,
        }
    }

    /// Waits until `sanstone volume status` ends with this exit code.
    fn is(&self, code: i32) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let ran = self.attached.volume("status");
            if ran.code() == Some(code) {
                return;
            }
            let log = self.attached.log();
            assert!(Instant::now() < deadline, "not {code}: {ran}\n{log}");
            sleep(Duration::from_millis(200));
        }
    }

    /// Waits until no more is marked than an idle database keeps marked.
    fn is_unmarked(&self) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let marked = self.attached.marked_bytes();
            if marked <= IDLE_BYTES {
                return;
            }
            assert!(Instant::now() < deadline, "{marked} bytes stay marked");
            sleep(Duration::from_millis(200));
        }
    }

    /// One machine fails under load, and comes back after `away` and the time in which the clients commit their rows.
    fn outlives(&mut self, failure: Failure, storage: usize, away: Duration) {
        let losses = self.ledger.losses();
        let clients = self.ledger.begin(&self.database);
        let mut load = load::start(&self.database, &self.directory);
        self.ledger.wait_for(ROWS, LIMIT);
        failure.begin(&mut self.storages[storage]);
        self.is(1);
        self.ledger.wait_for(ROWS, LIMIT);
        sleep(away);
        failure.end(&mut self.storages[storage]);
        self.is(0);
        self.ledger.wait_for(ROWS, LIMIT);
        let (lost, log) = (self.ledger.losses() - losses, self.attached.log());
        assert_eq!(lost, 0, "{failure:?}: the database felt it\n{log}");
        assert!(load.ended().is_none(), "{failure:?}: {}", load.log());
        assert!(!log.contains(" ERROR "), "{failure:?}:\n{log}");
        self.attached.volume("compare").success();
        clients.stop();
        drop(load);
        let rows = self.ledger.check(&self.database);
        self.database.check(Extent::Structure);
        println!("{failure:?}: {rows} rows were committed, and are there");
    }

    /// What a copy gets that was away while the clients committed some rows.
    fn costs_a_difference(&mut self) {
        self.is(0);
        // What was written in the seconds before counts as missed, too.
        self.is_unmarked();
        let clients = self.ledger.begin(&self.database);
        self.storages[0].kill();
        self.is(1);
        self.ledger.wait_for(ROWS, LIMIT);
        clients.stop();
        self.storages[0].start();
        self.is(0);
        let written = self.storages[0].written_bytes();
        println!(
            "a copy that was away for {ROWS} rows a client: {written} bytes were written to it"
        );
        assert!(
            (1..DATA_BYTES / 8).contains(&written),
            "{written} of {DATA_BYTES} bytes were written"
        );
    }
}

/// A database of kind `D` on a mirror goes on whichever of its storages fails, and loses nothing.
pub(crate) fn outlives<D: Database>(file_system: FileSystem, rounds: Rounds) {
    if !can_attach() {
        return;
    }
    let (Some(one), Some(other)) = (Storage::new(), Storage::new()) else {
        return harness::skip("a network namespace needs root and iproute2");
    };
    let mut scene = Scene::<D>::create([one, other], file_system);
    scene.is(0);
    let mut away = Duration::ZERO;
    loop {
        for (turn, failure) in FAILURES.into_iter().enumerate() {
            scene.outlives(failure, turn % 2, away);
        }
        if !rounds.has_more() {
            break;
        }
        // In later rounds each is away for longer: two minutes at last.
        away = (away * 2).clamp(Duration::from_secs(10), Duration::from_secs(120));
    }
    scene.costs_a_difference();
    scene.database.check(Extent::All);
    scene.database.kill();
    scene.attached.check_and_end();
    let [one, other] = scene.storages.map(Storage::end);
    assert!(one == other, "the copies differ");
}
