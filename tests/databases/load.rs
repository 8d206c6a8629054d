//! A load beside the ledger: sysbench's OLTP transactions, on tables that fit neither into the memory of the database
//! nor into the cache of the volume.

use crate::ledger::Ledger;
use harness::database::Database;
use harness::directory::Directory;
use harness::process::{Daemon, program};
use harness::run::run;
use rustix::fs::{Advice, fadvise};
use std::fs::{File, read_dir};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);
/// Rows of each of the two tables; a row with its share of the index takes 220 to 280 bytes.
const TABLE_ROWS: u32 = 20_000;

fn sysbench(database: &impl Database, verb: &str) -> Command {
    let mut command = Command::new(program("sysbench", "sysbench"));
    command.arg("oltp_read_write").args(database.sysbench());
    command.args(["--tables=2", "--threads=4", "--time=0"]);
    command.arg(format!("--table-size={TABLE_ROWS}"));
    command.args(["--rand-type=uniform", verb]);
    command
}

/// A new database in `data`, with the tables of the load and an empty ledger. The directory has its socket and the logs.
pub(crate) fn prepared<D: Database>(data: &Path) -> (Directory, D, Ledger) {
    let directory = Directory::new();
    let own = directory.join("run");
    std::fs::create_dir(&own).expect("a fresh directory");
    let database = D::create(data, &own);
    run(&mut sysbench(&database, "prepare"), LIMIT).success();
    let ledger = Ledger::create(&database);
    (directory, database, ledger)
}

/// Starts transactions, until it is dropped or the database is gone.
pub(crate) fn start(database: &impl Database, directory: &Directory) -> Daemon {
    Daemon::start(&sysbench(database, "run"), directory.join("sysbench.log"))
}

/// Keeps the files of a database out of the page cache until dropped, so that what the database does not hold in its
/// own memory is read from the volume. PostgreSQL has no direct I/O.
pub(crate) struct Evictor {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Evictor {
    /// Evicts the files in `data` and its subdirectories.
    pub(crate) fn start(data: PathBuf) -> Evictor {
        let is_over = Arc::new(AtomicBool::new(false));
        let of_thread = is_over.clone();
        let thread = thread::spawn(move || {
            while !of_thread.load(Ordering::Relaxed) {
                evict(&data);
                sleep(Duration::from_millis(50));
            }
        });
        Evictor {
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Evictor {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it is dropped once");
        thread.join().expect("it does not panic");
    }
}

/// Files may go away meanwhile, and after the attachment's death nothing can be opened, so errors are ignored. Small
/// files hold no table of the load.
fn evict(directory: &Path) {
    for entry in read_dir(directory).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => evict(&entry.path()),
            Ok(metadata) if metadata.len() >= 1 << 20 => {
                let file = File::open(entry.path());
                let _ = file.map(|file| fadvise(file, 0, None, Advice::DontNeed));
            }
            _ => {}
        }
    }
}
