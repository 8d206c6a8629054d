//! Runs SQL through the server's own client program. Each call is a new connection, which first shows that it leads to
//! the server that we started. Statements are timed here, from handing one to the client until the last of its answer:
//! neither starting the client nor connecting counts, and no clock that somebody may set.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{ChildStdin, ChildStdout},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Instant,
};

use super::{
    child::Child,
    server::{DatabaseServer, ServerKind},
    stack::Stack,
};
use crate::{
    LabError, LabResult,
    load::Stop,
    programs::{POLL, killed_on_stop},
};

/// The result of a statement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answered {
    /// Elapsed time.
    pub(crate) seconds: f64,
    /// The rows it returned, columns separated by tabs.
    pub(crate) rows: Vec<String>,
}

/// The row that follows all rows of a statement.
const END: &str = "sanstone-lab-end";

impl ServerKind {
    /// A statement that returns the directory of the server's files.
    fn place(self) -> &'static str {
        match self {
            ServerKind::Mariadb => "SELECT @@datadir",
            ServerKind::Postgresql => "SHOW data_directory",
        }
    }

    /// A statement that fills a table with rows of tab-separated columns from the client's standard input.
    fn fill(self, table: &str) -> [String; 2] {
        match self {
            ServerKind::Mariadb => [
                "-e".into(),
                format!("LOAD DATA LOCAL INFILE '/dev/stdin' INTO TABLE {table}"),
            ],
            ServerKind::Postgresql => ["-c".into(), format!("COPY {table} FROM STDIN")],
        }
    }
}

/// A connection to the server.
struct ClientSession<'a> {
    server: &'a DatabaseServer,
    child: Child,
    input: ChildStdin,
    /// Lines that the client has printed, and when.
    lines: Receiver<(Instant, String)>,
}

impl<'a> ClientSession<'a> {
    /// Connects. `None`: the user asked to stop.
    ///
    /// # Errors
    /// There is no connection, or it leads to another server than ours.
    fn open(
        server: &'a DatabaseServer,
        stack: &Stack,
        stop: &Stop,
    ) -> LabResult<Option<ClientSession<'a>>> {
        let log = stack.directory().join("client.log");
        let mut command = server.client(Some("bench"))?;
        let mut child = Child::start_asked("its client", &mut command, &log)?;
        let (Some(input), Some(output)) = (child.input(), child.output()) else {
            return Err(child.failed("it has no pipes"));
        };
        let mut session = ClientSession {
            server,
            child,
            input,
            lines: reading(output),
        };
        let Some(place) = session.ask(server.kind().place(), stop)? else {
            return Ok(None);
        };
        match &place.rows[..] {
            [place] if server.is_ours(place) => Ok(Some(session)),
            rows => Err(LabError::Target(format!(
                "its client reached another server than the one that was started: its files are in {rows:?}"
            ))),
        }
    }

    /// Runs a statement. `None`: the user asked to stop.
    fn ask(&mut self, statement: &str, stop: &Stop) -> LabResult<Option<Answered>> {
        let text = format!("{statement};\nSELECT '{END}';\n");
        let began = Instant::now();
        // If the client has exited, its output ends, and its log says why.
        let _ = self.input.write_all(text.as_bytes());
        let mut rows = Vec::new();
        loop {
            match self.lines.recv_timeout(POLL) {
                Ok((at, line)) if line == END => {
                    let seconds = (at - began).as_secs_f64();
                    return Ok(Some(Answered { seconds, rows }));
                }
                Ok((_, line)) => rows.push(line),
                Err(RecvTimeoutError::Timeout) if stop.is_asked() => {
                    self.child.wait(|| true);
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = self.child.wait(|| stop.is_asked());
                    let Some(status) = ended else {
                        return Ok(None);
                    };
                    return Err(self.server.failed(&self.child.failed(&status.to_string())));
                }
            }
        }
    }

    /// Disconnects.
    fn close(mut self) {
        drop(self.input);
        self.child.wait(|| false);
    }
}

fn reading(output: ChildStdout) -> Receiver<(Instant, String)> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while matches!(output.read_until(b'\n', &mut line), Ok(1..)) {
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches('\n').to_owned();
            if sender.send((Instant::now(), text)).is_err() {
                break;
            }
            line.clear();
        }
    });
    lines
}

impl DatabaseServer {
    /// Runs statements one after the other, each in a transaction of its own, and returns all their rows.
    /// `None`: the user asked to stop.
    pub(crate) fn execute(
        &self,
        stack: &Stack,
        statements: &[&str],
        stop: &Stop,
    ) -> LabResult<Option<Vec<String>>> {
        let Some(mut session) = ClientSession::open(self, stack, stop)? else {
            return Ok(None);
        };
        let mut rows = Vec::new();
        for statement in statements {
            let Some(answered) = session.ask(statement, stop)? else {
                return Ok(None);
            };
            rows.extend(answered.rows);
        }
        session.close();
        Ok(Some(rows))
    }

    /// Runs one statement and times it. `None`: the user asked to stop.
    pub(crate) fn timed(
        &self,
        stack: &Stack,
        statement: &str,
        stop: &Stop,
    ) -> LabResult<Option<Answered>> {
        let Some(mut session) = ClientSession::open(self, stack, stop)? else {
            return Ok(None);
        };
        let answered = session.ask(statement, stop)?;
        if answered.is_some() {
            session.close();
        }
        Ok(answered)
    }

    /// Fills a table with what `write` writes: rows of tab-separated columns, `\N` for NULL. `None`: the user
    /// asked to stop.
    pub(crate) fn fill(
        &self,
        stack: &Stack,
        table: &str,
        stop: &Stop,
        write: impl FnOnce(&mut dyn Write) -> LabResult<()>,
    ) -> LabResult<Option<()>> {
        // The rows take the client's standard input, so another connection looks whose server it is.
        match ClientSession::open(self, stack, stop)? {
            Some(session) => session.close(),
            None => return Ok(None),
        }
        let log = stack.directory().join("client.log");
        let mut command = self.client(Some("bench"))?;
        command.args(self.kind().fill(table));
        let mut child = Child::start_fed("its client", &mut command, &log)?;
        let written = match child.input() {
            Some(input) => {
                let mut input = io::BufWriter::with_capacity(1 << 20, input);
                // A server that hangs takes no rows.
                killed_on_stop(child.pid(), stop, || {
                    write(&mut input)?;
                    let flushed = input.flush();
                    flushed.map_err(|error| LabError::Target(format!("its client: {error}")))
                })
            }
            None => Ok(()),
        };
        // If the client has exited early, its output says why.
        let ended = match child.wait(|| stop.is_asked()) {
            None => return Ok(None),
            Some(status) if status.success() => Ok(Some(())),
            Some(status) => Err(self.failed(&child.failed(&status.to_string()))),
        };
        match (written, ended) {
            (Err(error), Ok(_)) => Err(error),
            (_, ended) => ended,
        }
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
