//! Generates the load with sysbench's `oltp_read_write`: a fixed number of transactions.

use std::{path::PathBuf, process::Command};

use super::{child::Child, server::DatabaseServer, stack::Stack};
use crate::{
    LabResult,
    load::Stop,
    programs::{dying_with_us, program},
};

/// How to call it.
#[derive(Clone, Debug)]
pub(crate) struct Sysbench {
    program: PathBuf,
    /// Tables, rows in each, connections.
    tables: u32,
    rows: u64,
    threads: u32,
}

/// The figures it reported for a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ran {
    pub(crate) transactions: u64,
    pub(crate) seconds: f64,
    pub(crate) p99_ms: f64,
}

impl Sysbench {
    pub(crate) fn new(tables: u32, rows: u64, threads: u32) -> LabResult<Sysbench> {
        Ok(Sysbench {
            program: program("sysbench", "sysbench", "the profile oltp")?,
            tables,
            rows,
            threads,
        })
    }

    fn command(&self, server: &DatabaseServer) -> LabResult<Command> {
        let mut command = dying_with_us(&self.program)?;
        command.arg("oltp_read_write").args(server.sysbench());
        command.arg(format!("--tables={}", self.tables));
        command.arg(format!("--table-size={}", self.rows));
        command.args(["--rand-type=uniform", "--percentile=99"]);
        command.arg(format!("--threads={}", self.threads));
        Ok(command)
    }

    /// Creates the tables, stopping early if the user asks to.
    pub(crate) fn prepare(
        &self,
        server: &DatabaseServer,
        stack: &Stack,
        stop: &Stop,
    ) -> LabResult<()> {
        let log = stack.directory().join("prepare.log");
        let mut child = Child::start("sysbench", self.command(server)?.arg("prepare"), &log)?;
        match child.wait(|| stop.is_asked()) {
            Some(status) if !status.success() => {
                Err(server.failed(&child.failed(&status.to_string())))
            }
            _ => Ok(()),
        }
    }

    /// Runs a number of transactions. `None`: the user asked to stop.
    pub(crate) fn run(
        &self,
        server: &DatabaseServer,
        stack: &Stack,
        transactions: u64,
        stop: &Stop,
    ) -> LabResult<Option<Ran>> {
        let mut command = self.command(server)?;
        command
            .arg(format!("--events={transactions}"))
            .args(["--time=0", "run"]);
        let log = stack.directory().join("sysbench.log");
        let mut child = Child::start("sysbench", &mut command, &log)?;
        let Some(status) = child.wait(|| stop.is_asked()) else {
            return Ok(None);
        };
        match (status.success(), figures(&child.said())) {
            (true, Some(ran)) => Ok(Some(ran)),
            _ => Err(server.failed(&child.failed(&status.to_string()))),
        }
    }
}

/// Parses the figures at the end of its output.
fn figures(said: &str) -> Option<Ran> {
    let value = |name: &str| -> Option<f64> {
        let line = said
            .lines()
            .find_map(|line| line.trim().strip_prefix(name))?;
        let number = line.split_whitespace().next()?.trim_end_matches('s');
        number.parse().ok()
    };
    Some(Ran {
        transactions: value("transactions:")? as u64,
        seconds: value("total time:")?,
        p99_ms: value("99th percentile:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_what_sysbench_says() {
        let said = "SQL statistics:\n    queries performed:\n        read: 4200\n    transactions:                        \
                    300    (118.57 per sec.)\nGeneral statistics:\n    total time:                          \
                    2.5288s\n    total number of events:              300\n\nLatency (ms):\n         99th percentile: \
                    96.89\n";
        let ran = Ran {
            transactions: 300,
            seconds: 2.5288,
            p99_ms: 96.89,
        };
        assert_eq!(figures(said), Some(ran));
        assert_eq!(figures("FATAL: unable to connect"), None);
    }
}
