//! The interface of databases used by tests and measurements.

use crate::process::{Daemon, signal};
use crate::run::run;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);

/// What a database's own checker looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Each page of each table and index.
    Structure,
    /// Also whether each row is in each index, and each entry of an index leads to a row: many times as slow.
    All,
}

/// A database server with its data in one directory. Its processes run as `nobody`.
pub trait Database: Sized {
    /// Creates an empty database in `data`, which is on the volume; `run` is a separate directory for sockets and logs.
    fn create(data: &Path, run: &Path) -> Self;

    /// Starts it and waits until it answers: after a crash, until it has recovered.
    fn start(&mut self);

    /// Its server.
    fn server(&mut self) -> &mut Server;

    /// Its main process.
    fn pid(&mut self) -> u32 {
        self.server().running().pid()
    }

    /// Kills it with all its processes, without warning.
    fn kill(&mut self) {
        self.server().kill();
    }

    /// A client that reads SQL from its standard input and prints the rows of each result, one per line, as soon as it
    /// has them; it exits at the first error.
    fn client(&self) -> Command;

    /// The options with which sysbench connects to it.
    fn sysbench(&self) -> Vec<String>;

    /// Checks every table and index with the database's own checker.
    fn check(&self, extent: Extent);
}

/// The server of a database, which may be started and killed several times.
#[derive(Debug)]
pub struct Server {
    /// Its data, and the working directory of its processes.
    pub data: PathBuf,
    process: Option<Daemon>,
}

impl Server {
    /// A server that has not been started yet.
    pub fn of(data: PathBuf) -> Server {
        Server {
            data,
            process: None,
        }
    }

    /// Notes that it was started as `process`.
    pub fn has_started(&mut self, process: Daemon) {
        self.process = Some(process);
    }

    fn running(&mut self) -> &mut Daemon {
        self.process.as_mut().expect("the server was started")
    }

    /// PostgreSQL's processes outlive their parent for a moment; they are found by their working directory.
    fn kill(&mut self) {
        let mut main = self.process.take().expect("the server was started");
        main.signal("KILL");
        let ended = main.wait(LIMIT);
        ended.expect("a killed process ends, even in the middle of an I/O");
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = processes_in(&self.data);
            if left.is_empty() {
                return;
            }
            for pid in &left {
                signal(*pid, "KILL");
            }
            assert!(Instant::now() < deadline, "processes {left:?} do not end");
            sleep(Duration::from_millis(20));
        }
    }
}

/// The command, as `nobody`.
pub fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    // Changing the user clears the parent-death signal, so it has to be set again.
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["--pdeathsig", "KILL", "--"]);
    command.arg(program);
    command
}

/// Gives the directory and what is in it to `nobody`.
pub fn give_to_nobody(path: &Path) {
    let mut command = Command::new("chown");
    run(command.args(["-R", "65534:65534"]).arg(path), LIMIT).success();
}

/// The processes whose working directory is `data`.
fn processes_in(data: &Path) -> Vec<i64> {
    let processes = std::fs::read_dir("/proc").expect("it is mounted").flatten();
    let works_there = processes.filter(|process| {
        let at = std::fs::read_link(process.path().join("cwd"));
        at.is_ok_and(|at| at == data)
    });
    let names = works_there.map(|process| process.file_name());
    names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect()
}
