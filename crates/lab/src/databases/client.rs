//! Runs SQL through the server's own client program. Each call is a new connection and is timed by the
//! server's clock, so that neither starting the client nor reaching the server counts.

use std::{
    io::{self, Write},
    process::Command,
};

use super::{
    child::{Child, dying_with_us},
    server::{Kind, Server},
    stack::Stack,
};
use crate::{Error, Result, load::Stop};

/// The result of a statement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answered {
    /// Elapsed time by the server's clock.
    pub(crate) seconds: f64,
    /// The rows it returned, columns separated by tabs.
    pub(crate) rows: Vec<String>,
}

impl Kind {
    /// A statement that returns the server's clock, in seconds.
    fn clock(self) -> &'static str {
        match self {
            // NOW() does not advance within a statement's text, but SYSDATE does.
            Kind::Mariadb => "SELECT UNIX_TIMESTAMP(SYSDATE(6))",
            Kind::Postgresql => "SELECT extract(epoch FROM clock_timestamp())",
        }
    }

    /// A statement that fills a table with rows of tab-separated columns from the client's standard input.
    fn fill(self, table: &str) -> String {
        match self {
            Kind::Mariadb => format!("LOAD DATA LOCAL INFILE '/dev/stdin' INTO TABLE {table}"),
            Kind::Postgresql => format!("COPY {table} FROM STDIN"),
        }
    }
}

impl Server {
    /// Runs statements one after the other, each in a transaction of its own, and returns all their rows.
    /// `None`: the user asked to stop.
    pub(crate) fn execute(
        &self,
        stack: &Stack,
        statements: &[&str],
        stop: &Stop,
    ) -> Result<Option<Vec<String>>> {
        let log = stack.directory().join("client.log");
        let mut child = Child::start("its client", &mut self.client(statements)?, &log)?;
        self.ended(&mut child, stop)
    }

    /// Runs one statement and times it.
    pub(crate) fn timed(
        &self,
        stack: &Stack,
        statement: &str,
        stop: &Stop,
    ) -> Result<Option<Answered>> {
        let clock = self.kind().clock();
        let rows = self.execute(stack, &[clock, statement, clock], stop)?;
        let Some(mut rows) = rows else {
            return Ok(None);
        };
        let at = |row: Option<String>| row.and_then(|row| row.trim().parse::<f64>().ok());
        let ended = at(rows.pop());
        let began = (!rows.is_empty()).then(|| rows.remove(0));
        match (at(began), ended) {
            (Some(began), Some(ended)) => Ok(Some(Answered {
                seconds: (ended - began).max(0.0),
                rows,
            })),
            _ => Err(self.failed(&Error::Target(format!(
                "it did not return the time: {rows:?}"
            )))),
        }
    }

    /// Fills a table with what `write` writes: rows of tab-separated columns, `\N` for NULL. `None`: the user
    /// asked to stop.
    pub(crate) fn fill(
        &self,
        stack: &Stack,
        table: &str,
        stop: &Stop,
        write: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<Option<()>> {
        let log = stack.directory().join("client.log");
        let mut command = self.client(&[&self.kind().fill(table)])?;
        let mut child = Child::start_fed("its client", &mut command, &log)?;
        let written = match child.input() {
            Some(input) => {
                let mut input = io::BufWriter::with_capacity(1 << 20, input);
                write(&mut input).and_then(|()| {
                    let flushed = input.flush();
                    flushed.map_err(|error| Error::Target(format!("its client: {error}")))
                })
            }
            None => Ok(()),
        };
        // If the client has exited early, its output says why.
        let ended = self.ended(&mut child, stop)?;
        match (written, ended) {
            (Err(error), Some(_)) => Err(error),
            (_, ended) => Ok(ended.map(|_| ())),
        }
    }

    fn ended(&self, child: &mut Child, stop: &Stop) -> Result<Option<Vec<String>>> {
        match child.wait(|| stop.is_asked()) {
            None => Ok(None),
            Some(status) if status.success() => {
                Ok(Some(child.said().lines().map(str::to_owned).collect()))
            }
            Some(status) => Err(self.failed(&child.failed(&status.to_string()))),
        }
    }

    /// The client, set to print bare rows.
    fn client(&self, statements: &[&str]) -> Result<Command> {
        let mut env = Command::new("env");
        // Keeps settings of the user's account from interfering.
        env.args(["-u", "MYSQL_HOST", "-u", "PGHOST", "-u", "PGOPTIONS"]);
        let mut command = dying_with_us(env, &self.kind().client()?, false);
        let run_in = self.run_in().display();
        match self.kind() {
            Kind::Mariadb => {
                command.args(["--no-defaults", "--user=root", "--local-infile=1"]);
                command.arg(format!("--socket={run_in}/socket"));
                command.args(["--batch", "--skip-column-names", "--quick", "bench"]);
                command.arg("-e").arg(statements.join(";\n"));
            }
            Kind::Postgresql => {
                command.args(["-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1"]);
                command.arg("-h").arg(self.run_in());
                command.args(["-U", "postgres"]);
                for statement in statements {
                    command.arg("-c").arg(statement);
                }
                command.arg("bench");
            }
        }
        Ok(command)
    }
}

/// Escapes a value for the servers' text format, so that it cannot end a column or a row.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '\t' => escaped.push_str("\\t"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_a_column_or_a_row_is_escaped() {
        assert_eq!(escaped("ST4000DM000"), "ST4000DM000");
        assert_eq!(escaped("a\tb\nc\\N"), "a\\tb\\nc\\\\N");
    }
}
