//! The interface of databases used by tests and measurements.

use crate::process::{Daemon, signal};
use crate::run::run;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);

/// A database server with its data in one directory. Its processes run as `nobody`.
pub trait Database: Sized {
    /// Creates an empty database in `data`, which is on the volume; `run` is a separate directory for sockets and logs.
    fn create(data: &Path, run: &Path) -> Self;

    /// Starts it and waits until it answers: after a crash, until it has recovered.
    fn start(&mut self);

    /// Its main process.
    fn pid(&self) -> u32;

    /// Kills it with all its processes, without warning.
    fn kill(&mut self);

    /// A client that reads SQL from its standard input and prints the rows of each result, one per line, as soon as it
    /// has them; it exits at the first error.
    fn client(&self) -> Command;

    /// The options with which sysbench connects to it.
    fn sysbench(&self) -> Vec<String>;

    /// Checks every table and index with the database's own checker.
    fn check(&self);
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

/// Kills a server and what it has started: PostgreSQL's processes outlive their parent for a moment; they are found by
/// their working directory `data`.
pub fn kill_with_children(server: &mut Daemon, data: &Path) {
    server.signal("KILL");
    let ended = server.wait(LIMIT);
    ended.expect("who is killed ends, also in the middle of an I/O");
    let deadline = Instant::now() + LIMIT;
    loop {
        let left = who_works_in(data);
        if left.is_empty() {
            return;
        }
        for pid in &left {
            signal(*pid, "KILL");
        }
        assert!(Instant::now() < deadline, "{left:?} do not end");
        sleep(Duration::from_millis(20));
    }
}

fn who_works_in(data: &Path) -> Vec<i64> {
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
