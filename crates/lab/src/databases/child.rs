//! A process that is started for a measurement, with its output in a log file.

use std::{
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{self, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::programs::last_lines;
use crate::{Error, Result};

/// How often its state is polled.
const POLL: Duration = Duration::from_millis(10);
/// How long it may take to exit after it was told to.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A running process; dropping it ends it.
pub(super) struct Child {
    name: String,
    process: process::Child,
    log: PathBuf,
}

/// A command that is killed when this program dies and, if it must not run as root, runs as the user
/// `nobody`.
pub(super) fn dying_with_us(mut before: Command, program: &Path, as_nobody: bool) -> Command {
    before.arg("setpriv");
    if as_nobody {
        before.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    before.args(["--pdeathsig", "KILL", "--"]).arg(program);
    before
}

impl Child {
    /// Starts it in a process group of its own, so that a signal from the terminal reaches only us.
    pub(super) fn start(name: &str, command: &mut Command, log: &Path) -> Result<Child> {
        Child::start_with(name, command, log, Stdio::null())
    }

    /// The same for a process whose standard input we write.
    pub(super) fn start_fed(name: &str, command: &mut Command, log: &Path) -> Result<Child> {
        Child::start_with(name, command, log, Stdio::piped())
    }

    fn start_with(name: &str, command: &mut Command, log: &Path, input: Stdio) -> Result<Child> {
        let failed = |source: io::Error| Error::File {
            path: log.to_owned(),
            source,
        };
        let out = File::create(log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        let started = command
            .process_group(0)
            .stdin(input)
            .stdout(out)
            .stderr(err)
            .spawn();
        Ok(Child {
            name: name.to_owned(),
            process: started.map_err(|error| Error::Target(format!("{name}: {error}")))?,
            log: log.to_owned(),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Takes its standard input, if we write it; works once.
    pub(super) fn input(&mut self) -> Option<process::ChildStdin> {
        self.process.stdin.take()
    }

    /// What it has written so far.
    pub(super) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until `is_there`; fails if it exits first or `limit` passes.
    pub(super) fn wait_until(
        &mut self,
        limit: Duration,
        is_there: impl Fn(&Child) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !is_there(self) {
            if let Some(status) = self.ended() {
                return Err(self.failed(&format!("it exited ({status})")));
            }
            if Instant::now() > deadline {
                return Err(self.failed(&format!("it was not ready within {} s", limit.as_secs())));
            }
            sleep(POLL);
        }
        Ok(())
    }

    /// Waits for it to exit, or until `is_over`, which ends it. `None`: we ended it.
    pub(super) fn wait(&mut self, is_over: impl Fn() -> bool) -> Option<ExitStatus> {
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if is_over() {
                let _ = self.process.kill();
                let _ = self.process.wait();
                return None;
            }
            sleep(POLL);
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        // Do not signal a process that has already exited.
        if let Some(pid) = Pid::from_raw(self.pid() as i32) {
            let _ = kill_process(pid, signal);
        }
    }

    /// An error that says why it is of no use.
    pub(super) fn failed(&self, what: &str) -> Error {
        let said = last_lines(&self.said());
        Error::Target(format!("{}: {what}: {said}", self.name))
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.ended().is_some() {
            return;
        }
        self.signal(Signal::CONT);
        self.signal(Signal::TERM);
        let deadline = Instant::now() + END_LIMIT;
        self.wait(|| Instant::now() > deadline);
    }
}
