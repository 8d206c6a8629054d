//! Finds and runs the programs that measurements need. All of them start here, with an environment that
//! `engine::programs` builds, and die with this program, however it ends.

use std::{
    io::Read,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, JoinHandle, sleep},
    time::Duration,
};

use engine::programs::{command, find};
pub(crate) use engine::programs::{inherit_own, own_command};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{LabError, LabResult, load::Stop};

/// How often a running program is looked at.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// The path of a program, or an error that names the Debian `package` and what the program is `wanted` for.
pub(crate) fn program(name: &str, package: &str, wanted: &str) -> LabResult<PathBuf> {
    find(name).ok_or_else(|| {
        LabError::Call(format!(
            "{wanted} needs {name}, which is not installed: install the package {package}"
        ))
    })
}

/// The path of a program of Debian's util-linux or mount, which every system has.
pub(crate) fn tool(name: &str) -> LabResult<PathBuf> {
    program(name, "util-linux", "this measurement")
}

/// The user and group that database servers run as, if this program is root's: nobody.
pub(crate) const NOBODY: u32 = 65534;

/// A command that runs `program`, found by [`program`], and is killed when this program dies.
pub(crate) fn dying_with_us(program: &Path) -> LabResult<Command> {
    let setpriv = tool("setpriv")?;
    let mut dying = command(&setpriv);
    dying.args(dying_arguments(program, false));
    Ok(dying)
}

/// The arguments with which setpriv (1) does that, as the user nobody if `as_nobody`.
pub(crate) fn dying_arguments(program: &Path, as_nobody: bool) -> Vec<std::ffi::OsString> {
    let ids = [
        format!("--reuid={NOBODY}"),
        format!("--regid={NOBODY}"),
        "--clear-groups".to_owned(),
    ];
    let ids = ids.into_iter().filter(|_| as_nobody);
    let dying = ["--pdeathsig", "KILL", "--"].map(str::to_owned);
    let all = ids.chain(dying).map(Into::into);
    all.chain([program.into()]).collect()
}

/// Runs a program to its end, or until the user asks to stop, which kills it and all that it has started.
///
/// # Errors
/// It cannot be started, or [`LabError::Stopped`].
pub(crate) fn output(command: &mut Command, stop: &Stop) -> LabResult<Output> {
    let named = named(command);
    let failed = |error: std::io::Error| LabError::Target(format!("{named}: {error}"));
    // In its own process group, a signal from the terminal reaches only us.
    command.process_group(0).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let printed = [
        child.stdout.take().map(reading),
        child.stderr.take().map(reading),
    ];
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if stop.is_asked() {
            kill_group(child.id());
            let _ = child.wait();
            return Err(LabError::Stopped);
        }
        sleep(POLL);
    };
    let [stdout, stderr] = printed.map(|reader| {
        let read = reader.map(JoinHandle::join);
        read.and_then(std::result::Result::ok).unwrap_or_default()
    });
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}

fn reading(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        // What was read before an error still says something.
        let _ = from.read_to_end(&mut all);
        all
    })
}

/// Kills a process that was started in a group of its own, and all others of that group.
pub(crate) fn kill_group(pid: u32) {
    if let Some(group) = Pid::from_raw(pid as i32) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Runs `work`, which may wait for the program with this id; if the user asks to stop, the program is killed.
pub(crate) fn killed_on_stop<T>(pid: u32, stop: &Stop, work: impl FnOnce() -> T) -> T {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if stop.is_asked() {
                    return kill_group(pid);
                }
                sleep(POLL);
            }
        });
        work()
    })
}

/// The same as [`output`], for a program that must succeed; returns its standard output.
///
/// # Errors
/// It fails, with what it has said; or as [`output`].
pub(crate) fn run(command: &mut Command, stop: &Stop) -> LabResult<String> {
    let output = output(command, stop)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = last_lines(&String::from_utf8_lossy(&output.stderr));
    Err(LabError::Target(format!("{}: {said}", named(command))))
}

/// The command as a user would type it, without the variables that it gets.
fn named(command: &Command) -> String {
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// The last lines of a log, which usually contain the reason.
pub(crate) fn last_lines(text: &str) -> String {
    const LINES: usize = 6;
    let lines: Vec<&str> = text.trim().lines().collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    match last.is_empty() {
        true => "it printed nothing".into(),
        false => last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = command(&find("sh").expect("every system has one"));
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn what_a_program_says_is_in_the_error() {
        let never = Stop::default();
        assert_eq!(
            run(&mut shell("echo yes"), &never).expect("it succeeds"),
            "yes\n"
        );
        let error = run(&mut shell("echo why >&2; exit 3"), &never).expect_err("it fails");
        assert!(error.to_string().ends_with(": why"), "{error}");
        let more = "i=0; while [ $i -lt 20000 ]; do echo 0123456789; i=$((i+1)); done";
        let said = run(&mut shell(more), &never).expect("more than a pipe holds");
        assert_eq!(said.len(), 220_000);
    }

    #[test]
    fn a_stop_ends_a_program_and_what_it_has_started() {
        let stop = Stop::default();
        stop.0.store(true, Ordering::Relaxed);
        // The shell would wait for its child, which holds our end of the pipe open.
        let ended = run(&mut shell("sleep 1000; echo"), &stop);
        assert!(matches!(ended, Err(LabError::Stopped)), "{ended:?}");
    }
}
