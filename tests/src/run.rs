//! Runs third-party programs with a time limit: a client that hangs is killed with all its children, and a failure
//! shows what it had printed.

use crate::process::signal;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The result of a program.
#[derive(Debug)]
pub struct Ran {
    /// The command line, for messages.
    pub line: String,
    /// How it ended; `None` if it was killed at the time limit.
    pub status: Option<ExitStatus>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// How long it ran.
    pub took: Duration,
}

impl Ran {
    /// The exit code; `None` if a signal or the time limit ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    /// Returns itself if the program ended with exit code 0.
    ///
    /// # Panics
    /// If it did not, with everything that it printed.
    #[track_caller]
    pub fn success(self) -> Ran {
        assert!(self.code() == Some(0), "{self}");
        self
    }

    /// Standard output followed by standard error.
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = match self.status {
            Some(status) => status.to_string(),
            None => "killed at its time limit".to_owned(),
        };
        writeln!(
            f,
            "{}\n{end} after {:.1} s",
            self.line,
            self.took.as_secs_f64()
        )?;
        write!(
            f,
            "--- stdout\n{}\n--- stderr\n{}",
            self.stdout, self.stderr
        )
    }
}

/// Runs a program to its end, or kills its whole process group after `limit`.
///
/// # Panics
/// If it cannot be started.
#[track_caller]
pub fn run(command: &mut Command, limit: Duration) -> Ran {
    run_while(command, |started, _| started.elapsed() < limit)
}

/// Runs a program and kills its process group once it has printed nothing for `silence`, or after `limit` in all: for a
/// suite in which single tests may hang.
///
/// # Panics
/// If it cannot be started.
#[track_caller]
pub fn run_unless_silent(command: &mut Command, silence: Duration, limit: Duration) -> Ran {
    run_while(command, |started, heard| {
        heard.elapsed() < silence && started.elapsed() < limit
    })
}

#[track_caller]
fn run_while(command: &mut Command, go_on: impl Fn(Instant, Instant) -> bool) -> Ran {
    let line = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ");
    let started = Instant::now();
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {line}: {error}"));
    let (sender, chunks) = mpsc::channel();
    let readers = [
        read_all(
            child.stdout.take().expect("stdout is piped"),
            false,
            sender.clone(),
        ),
        read_all(child.stderr.take().expect("stderr is piped"), true, sender),
    ];
    let (mut stdout, mut stderr, mut heard) = (Vec::new(), Vec::new(), Instant::now());
    let mut take = |(is_stderr, bytes): (bool, Vec<u8>)| {
        if is_stderr {
            stderr.extend(bytes)
        } else {
            stdout.extend(bytes)
        }
    };
    let status = loop {
        match chunks.recv_timeout(Duration::from_millis(10)) {
            Ok(chunk) => {
                heard = Instant::now();
                take(chunk);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            // Both pipes are closed and only the exit status is missing: sleep instead of spinning.
            Err(mpsc::RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(2)),
        }
        if let Some(status) = child.try_wait().expect("a child of ours can be waited for") {
            break Some(status);
        }
        if !go_on(started, heard) {
            signal(-i64::from(child.id()), "KILL");
            let _ = child.wait();
            break None;
        }
    };
    let took = started.elapsed();
    // Background processes it left behind would keep its pipes open for ever.
    signal(-i64::from(child.id()), "KILL");
    for reader in readers {
        reader.join().expect("a reader does not panic");
    }
    chunks.iter().for_each(&mut take);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran {
        line,
        status,
        stdout: text(stdout),
        stderr: text(stderr),
        took,
    }
}

fn read_all(
    mut pipe: impl Read + Send + 'static,
    is_stderr: bool,
    chunks: mpsc::Sender<(bool, Vec<u8>)>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(length @ 1..) = pipe.read(&mut buffer) {
            if chunks.send((is_stderr, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_outputs_and_the_exit_code_are_kept() {
        let ran = run(
            &mut shell("echo out; echo err >&2; exit 3"),
            Duration::from_secs(10),
        );
        assert_eq!(
            (ran.code(), &*ran.stdout, &*ran.stderr),
            (Some(3), "out\n", "err\n")
        );
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        let ran = run(
            &mut shell("echo begun; sleep 600 & sleep 600"),
            Duration::from_secs(5),
        );
        assert_eq!((ran.status, &*ran.stdout), (None, "begun\n"));
        assert!(ran.took < Duration::from_secs(300), "{ran}");
    }

    #[test]
    fn a_child_left_in_the_background_does_not_hold_the_test() {
        let ran = run(
            &mut shell("sleep 600 & echo begun"),
            Duration::from_secs(300),
        )
        .success();
        assert!(ran.took < Duration::from_secs(300), "{ran}");
    }

    #[test]
    fn only_silence_counts_against_a_suite() {
        // Talks for longer than the allowed silence, then stays silent.
        let talk = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.5; done; sleep 600";
        let silence = Duration::from_millis(3500);
        // Retried, because a pause of this machine also counts as silence.
        let whole = (0..5).any(|_| {
            let ran = run_unless_silent(&mut shell(talk), silence, Duration::from_secs(300));
            assert!(ran.status.is_none(), "{ran}");
            ran.stdout == "1\n2\n3\n4\n5\n6\n7\n8\n"
        });
        assert!(whole);
    }
}
