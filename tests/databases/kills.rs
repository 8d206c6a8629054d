//! What is killed under load, and what has to hold afterwards.

use crate::attached::{Attached, FileSystem, can_attach};
use crate::ledger::Ledger;
use crate::load;
use crate::shares::Shares;
use harness::database::Database;
use harness::directory::Directory;
use std::thread::sleep;
use std::time::{Duration, Instant};

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

    fn has_more(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

#[derive(Clone, Copy, Debug)]
enum Kill {
    Path,
    Target,
    Database,
    Attachment,
}

/// A database of kind `D` on a volume loses nothing that it has acknowledged, whatever is killed.
pub(crate) fn survives<D: Database>(file_system: FileSystem, rounds: Rounds) {
    if !can_attach() {
        return;
    }
    let mut shares = Shares::serve();
    let mut attached = Attached::create(&shares.volumes(), file_system);
    let directory = Directory::new();
    let run = directory.join("run");
    std::fs::create_dir(&run).expect("a fresh directory");
    let mut database = D::create(&attached.data(), &run);
    load::prepare(&database);
    let ledger = Ledger::create(&database);
    loop {
        for kill in [Kill::Path, Kill::Target, Kill::Database, Kill::Attachment] {
            let losses = ledger.losses();
            let clients = ledger.begin(&database);
            let mut load = load::start(&database, &directory);
            ledger.wait_for(ROWS);
            assert!(load.ended().is_none(), "sysbench: {}", load.log());
            match kill {
                Kill::Path => {
                    shares.way.break_all();
                    sleep(Duration::from_secs(1));
                    shares.way.mend();
                }
                Kill::Target => shares.kill_one(),
                Kill::Database => {
                    database.kill();
                    database.start();
                }
                Kill::Attachment => {
                    attached.kill();
                    database.kill();
                    attached.again();
                    database.start();
                }
            }
            ledger.wait_for(ROWS);
            if matches!(kill, Kill::Path | Kill::Target) {
                let lost = ledger.losses() - losses;
                assert_eq!(
                    lost,
                    0,
                    "{kill:?}: the database felt it\n{}",
                    attached.log()
                );
                assert!(load.ended().is_none(), "{kill:?}: {}", load.log());
            }
            clients.stop();
            drop(load);
            let rows = ledger.check(&database);
            database.check();
            println!("{kill:?}: {rows} rows were committed, and are there");
        }
        if !rounds.has_more() {
            break;
        }
    }
    database.kill();
    attached.check_and_end(file_system);
}
