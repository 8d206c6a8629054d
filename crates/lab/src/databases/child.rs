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

use crate::{
    LabError, LabResult,
    load::Stop,
    programs::{POLL, kill_group, last_lines},
};

/// How long it may take to exit after it was told to.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A running process; dropping it ends it.
pub(super) struct Child {
    name: String,
    process: process::Child,
    log: PathBuf,
}

impl Child {
    /// Starts it in a process group of its own, so that a signal from the terminal reaches only us.
    pub(super) fn start(name: &str, command: &mut Command, log: &Path) -> LabResult<Child> {
        Child::start_with(name, command.stdin(Stdio::null()), log)
    }

    /// The same for a process whose standard input we write.
    pub(super) fn start_fed(name: &str, command: &mut Command, log: &Path) -> LabResult<Child> {
        Child::start_with(name, command.stdin(Stdio::piped()), log)
    }

    /// The same for a process whose standard output we read, too; the log has what it says on standard error.
    pub(super) fn start_asked(name: &str, command: &mut Command, log: &Path) -> LabResult<Child> {
        let err = log_file(log)?;
        Child::spawn(
            name,
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(err),
            log,
        )
    }

    fn start_with(name: &str, command: &mut Command, log: &Path) -> LabResult<Child> {
        let out = log_file(log)?;
        let err = out.try_clone().map_err(|source| LabError::File {
            path: log.to_owned(),
            source,
        })?;
        Child::spawn(name, command.stdout(out).stderr(err), log)
    }

    fn spawn(name: &str, command: &mut Command, log: &Path) -> LabResult<Child> {
        let started = command.process_group(0).spawn();
        Ok(Child {
            name: name.to_owned(),
            process: started.map_err(|error| LabError::Target(format!("{name}: {error}")))?,
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

    /// Takes its standard output, if we read it; works once.
    pub(super) fn output(&mut self) -> Option<process::ChildStdout> {
        self.process.stdout.take()
    }

    /// What its log has so far.
    pub(super) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until `is_there`; fails if it exits first, `limit` passes or the user asks to stop.
    pub(super) fn wait_until(
        &mut self,
        limit: Duration,
        stop: &Stop,
        is_there: impl Fn(&Child) -> bool,
    ) -> LabResult<()> {
        let deadline = Instant::now() + limit;
        while !is_there(self) {
            if stop.is_asked() {
                return Err(LabError::Stopped);
            }
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
                kill_group(self.pid());
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
    pub(super) fn failed(&self, what: &str) -> LabError {
        let said = last_lines(&self.said());
        LabError::Target(format!("{}: {what}: {said}", self.name))
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }
}

fn log_file(log: &Path) -> LabResult<File> {
    File::create(log).map_err(|source: io::Error| LabError::File {
        path: log.to_owned(),
        source,
    })
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
