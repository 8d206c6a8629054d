//! Clients that commit one row at a time and keep a ledger of what the database has acknowledged. Every row in the
//! ledger must be in the database, whatever happened to it.

use harness::database::Database;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

const CLIENTS: usize = 4;

/// What the clients know, across all their runs.
#[derive(Clone, Debug)]
pub(crate) struct Ledger(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The rows of each client that were acknowledged.
    committed: [BTreeSet<u64>; CLIENTS],
    /// The next row of each client: an unacknowledged row may be there, so no row is sent twice.
    next: [u64; CLIENTS],
    is_over: bool,
    /// Connections that ended before they were told to.
    losses: usize,
    /// The longest that a commit has taken.
    longest: Duration,
}

/// Running clients, until [`Clients::stop`].
pub(crate) struct Clients {
    ledger: Ledger,
    threads: Vec<JoinHandle<()>>,
}

impl Ledger {
    /// Makes the table.
    pub(crate) fn create(database: &impl Database) -> Ledger {
        let table = "CREATE TABLE ledger (client INT, number BIGINT, filler CHAR(200), \
                     PRIMARY KEY (client, number));";
        ask(database, table);
        Ledger(Arc::default())
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().expect("no client panics"))
    }

    /// How many rows were acknowledged to the client that has the fewest.
    fn fewest(&self) -> usize {
        let counts = |state: &mut State| state.committed.iter().map(BTreeSet::len).min();
        self.with(counts).unwrap_or_default()
    }

    /// How often a client lost its connection.
    pub(crate) fn losses(&self) -> usize {
        self.with(|state| state.losses)
    }

    /// The longest that a commit has taken since this was asked before, those of connections that were lost included.
    pub(crate) fn longest_commit(&self) -> Duration {
        self.with(|state| std::mem::take(&mut state.longest))
    }

    /// Waits until `more` rows of each client have been acknowledged, for this long at most.
    pub(crate) fn wait_for(&self, more: usize, limit: Duration) {
        let start: Vec<usize> = self.counts();
        let deadline = Instant::now() + limit;
        let mut now = start.clone();
        while now
            .iter()
            .zip(&start)
            .any(|(now, start)| *now < start + more)
        {
            assert!(
                Instant::now() < deadline,
                "the clients got from {start:?} rows to {now:?} and no further"
            );
            sleep(Duration::from_millis(20));
            now = self.counts();
        }
    }

    fn counts(&self) -> Vec<usize> {
        self.with(|state| state.committed.iter().map(BTreeSet::len).collect())
    }

    /// Lets the clients begin; they connect again whenever the database goes away.
    pub(crate) fn begin(&self, database: &impl Database) -> Clients {
        self.with(|state| state.is_over = false);
        let threads = (0..CLIENTS).map(|client| {
            let (ledger, command) = (self.clone(), database.client());
            thread::spawn(move || ledger.commit_rows(client, command))
        });
        Clients {
            ledger: self.clone(),
            threads: threads.collect(),
        }
    }

    fn is_over(&self) -> bool {
        self.with(|state| state.is_over)
    }

    fn commit_rows(&self, client: usize, mut command: Command) {
        while !self.is_over() {
            let Some(mut connection) = Connection::open(&mut command) else {
                continue;
            };
            while !self.is_over() {
                let number = self.with(|state| {
                    state.next[client] += 1;
                    state.next[client]
                });
                let begun = Instant::now();
                let is_committed = connection.commits(client, number);
                self.with(|state| state.longest = state.longest.max(begun.elapsed()));
                if !is_committed {
                    self.with(|state| state.losses += 1);
                    // A database that is down stays down for a moment at least.
                    sleep(Duration::from_millis(50));
                    break;
                }
                self.with(|state| state.committed[client].insert(number));
            }
        }
    }

    /// Checks that every acknowledged row is there; returns the number of rows.
    pub(crate) fn check(&self, database: &impl Database) -> usize {
        let mut there: [BTreeSet<u64>; CLIENTS] = Default::default();
        let rows = ask(database, "SELECT client, number FROM ledger;");
        for row in rows.lines() {
            let numbers = row.split(['\t', '|']).map(str::parse::<u64>);
            let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().expect("two numbers");
            there[numbers[0] as usize].insert(numbers[1]);
        }
        self.with(|state| {
            for (client, committed) in state.committed.iter().enumerate() {
                let missing: Vec<_> = committed.difference(&there[client]).collect();
                assert!(
                    missing.is_empty(),
                    "client {client}: {} rows were committed, and these are missing: {missing:?}",
                    committed.len()
                );
            }
            state.committed.iter().map(BTreeSet::len).sum()
        })
    }
}

impl Clients {
    /// Lets the clients finish their current row and end.
    pub(crate) fn stop(self) {
        self.ledger.with(|state| state.is_over = true);
        for thread in self.threads {
            thread.join().expect("a client does not panic");
        }
        assert!(self.ledger.fewest() > 0, "a client committed nothing");
    }
}

/// What the database answers to some SQL.
fn ask(database: &impl Database, sql: &str) -> String {
    let mut client = database.client();
    let client = client.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = client.spawn().expect("the client is installed");
    let mut input = client.stdin.take().expect("it is piped");
    writeln!(input, "{sql}").expect("the client listens");
    drop(input);
    let output = client.wait_with_output().expect("a child of ours");
    assert!(output.status.success(), "{sql}: {}", output.status);
    String::from_utf8(output.stdout).expect("SQL is text")
}

/// A client program that is connected.
struct Connection {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Connection {
    fn open(command: &mut Command) -> Option<Connection> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.stderr(Stdio::null()).spawn().ok()?;
        let input = process.stdin.take()?;
        let output = BufReader::new(process.stdout.take()?);
        Some(Connection {
            process,
            input,
            output,
        })
    }

    /// Commits one row in its own transaction; returns whether that was acknowledged.
    fn commits(&mut self, client: usize, number: u64) -> bool {
        let insert = format!("INSERT INTO ledger VALUES ({client}, {number}, '{number}');");
        // The second statement runs only if the first succeeded, because the client exits at an error.
        let sent = writeln!(self.input, "{insert}\nSELECT {number};");
        let mut line = String::new();
        let read = sent.and_then(|()| self.output.read_line(&mut line));
        read.is_ok() && line.trim_end() == number.to_string()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
