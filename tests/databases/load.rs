//! A load beside the ledger: sysbench's OLTP transactions.

use harness::database::Database;
use harness::directory::Directory;
use harness::process::{Daemon, program};
use harness::run::run;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

fn sysbench(database: &impl Database, verb: &str) -> Command {
    let mut command = Command::new(program("sysbench", "sysbench"));
    command.arg("oltp_read_write").args(database.sysbench());
    command.args(["--tables=2", "--table-size=2000", "--threads=4", "--time=0"]);
    command.args(["--rand-type=uniform", verb]);
    command
}

/// Makes the tables.
pub(crate) fn prepare(database: &impl Database) {
    run(&mut sysbench(database, "prepare"), LIMIT).success();
}

/// Starts transactions, until it is dropped or the database is gone.
pub(crate) fn start(database: &impl Database, directory: &Directory) -> Daemon {
    Daemon::start(&sysbench(database, "run"), directory.join("sysbench.log"))
}
