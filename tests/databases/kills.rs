//! What is killed under load, and what has to hold afterwards.

use crate::attached::{Attached, FileSystem, Reads, can_attach};
use crate::ledger::Ledger;
use crate::load::{self, Evictor};
use crate::shares::Shares;
use harness::database::{Database, Extent};
use harness::directory::Directory;
use harness::forwarder::Forwarder;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(600);
/// How long the clients may take for their rows after one of two paths is known to be lost.
const WITHOUT_A_PATH: Duration = Duration::from_secs(60);
/// Rows that each client commits before and after a kill.
const ROWS: usize = 25;

/// How often everything is killed in turn.
pub(crate) struct Rounds {
    until: Option<Instant>,
}

impl Rounds {
    /// Once.
    pub(crate) fn once() -> Rounds {
        Rounds { until: None }
    }

    /// For as long as that.
    pub(crate) fn minutes(count: u64) -> Rounds {
        Rounds {
            until: Some(Instant::now() + Duration::from_secs(60 * count)),
        }
    }

    pub(crate) fn has_more(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

/// What the load must at least have read through the cache around each kill, so that a wrong block in it would show.
const LEAST_READS: Reads = Reads {
    hits: 100,
    misses: 50,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kill {
    /// The connections of every path are reset, and for a second there are no new ones.
    Paths,
    /// One of two paths delivers nothing, and nobody is told; the other one the next time.
    BlackHole,
    Target,
    Database,
    Attachment,
}

const KILLS: [Kill; 5] = [
    Kill::Paths,
    Kill::BlackHole,
    Kill::Target,
    Kill::Database,
    Kill::Attachment,
];

impl Kill {
    /// Whether the database must not feel it.
    fn is_hidden(self) -> bool {
        !matches!(self, Kill::Database | Kill::Attachment)
    }
}

/// A database on a volume, with clients.
struct Scene<D> {
    shares: Shares,
    attached: Attached,
    database: D,
    ledger: Ledger,
    /// Which of two paths becomes a black hole next.
    next_way: usize,
    /// For the logs of the load.
    directory: Directory,
}

impl<D: Database> Scene<D> {
    fn create(file_system: FileSystem) -> Scene<D> {
        let shares = Shares::serve();
        let attached = Attached::create(&shares.volumes(), "stripe", file_system);
        let (directory, database, ledger) = load::prepared(&attached.data());
        Scene {
            shares,
            attached,
            database,
            ledger,
            next_way: 0,
            directory,
        }
    }

    /// Kills something under load, and checks that the database has lost nothing.
    fn survives(&mut self, kill: Kill) {
        let losses = self.ledger.losses();
        let mut before = self.attached.reads();
        let evictor = Evictor::start(self.attached.data());
        let clients = self.ledger.begin(&self.database);
        let mut load = load::start(&self.database, &self.directory);
        self.ledger.wait_for(ROWS, LIMIT);
        assert!(load.ended().is_none(), "sysbench: {}", load.log());
        match kill {
            Kill::Paths => {
                self.shares.ways().for_each(Forwarder::break_all);
                sleep(Duration::from_secs(1));
                self.shares.ways().for_each(Forwarder::mend);
            }
            Kill::BlackHole => self.black_hole(),
            Kill::Target => self.shares.kill_one(),
            Kill::Database => {
                self.database.kill();
                self.database.start();
            }
            Kill::Attachment => {
                self.attached.kill();
                // An open file would keep the dead file system mounted.
                drop(evictor);
                self.database.kill();
                self.attached.again();
                self.database.start();
                before = Reads::default();
            }
        }
        self.ledger.wait_for(ROWS, LIMIT);
        if kill.is_hidden() {
            let (lost, log) = (self.ledger.losses() - losses, self.attached.log());
            assert_eq!(lost, 0, "{kill:?}: the database felt it\n{log}");
            assert!(load.ended().is_none(), "{kill:?}: {}", load.log());
            assert!(!log.contains(" ERROR "), "{kill:?}:\n{log}");
        }
        let reads = self.attached.reads();
        clients.stop();
        drop(load);
        let rows = self.ledger.check(&self.database);
        self.database.check(Extent::Structure);
        let (hits, misses) = (reads.hits - before.hits, reads.misses - before.misses);
        println!(
            "{kill:?}: {rows} rows were committed, and are there; {hits} reads hit the cache, {misses} missed it"
        );
        assert!(
            hits >= LEAST_READS.hits && misses >= LEAST_READS.misses,
            "{kill:?}: the load hardly reads the volume: {hits} hits, {misses} misses"
        );
    }

    /// Loses one of two paths in silence. Clients must get on without it, before it comes back.
    fn black_hole(&mut self) {
        let [lost, back] = ["session lost", "logged in again"];
        let sessions = self.shares.sessions_each_way();
        let expected = |what| self.attached.has_logged(what) + sessions;
        let (losses, logins) = (expected(lost), expected(back));
        self.shares.one_of_two_ways(self.next_way).stall();
        self.attached.wait_for_log(lost, losses);
        self.ledger.wait_for(ROWS, WITHOUT_A_PATH);
        self.shares.one_of_two_ways(self.next_way).mend();
        self.attached.wait_for_log(back, logins);
        self.next_way = 1 - self.next_way;
    }
}

/// A database of kind `D` on a volume loses nothing that it has acknowledged, whatever is killed.
pub(crate) fn survives<D: Database>(file_system: FileSystem, rounds: Rounds) {
    if !can_attach() {
        return;
    }
    let mut scene = Scene::<D>::create(file_system);
    loop {
        for kill in KILLS {
            scene.survives(kill);
        }
        scene.database.check(Extent::All);
        if !rounds.has_more() {
            break;
        }
    }
    scene.database.kill();
    scene.attached.check_and_end();
}
