//! Finds and runs programs of this machine, and reports their errors.

use std::{
    env,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{Error, Result};

/// Finds the program in PATH or in the administrators' directories.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    // /usr/sbin is not in every user's PATH.
    let directories = path.split(':').chain(["/usr/sbin", "/sbin"]);
    let mut candidates = directories.map(|directory| Path::new(directory).join(name));
    candidates.find(|candidate| candidate.is_file())
}

/// The same, or an error that names the Debian `package` and what the program is `wanted` for.
pub(super) fn program(name: &str, package: &str, wanted: &str) -> Result<PathBuf> {
    find(name).ok_or_else(|| {
        Error::Call(format!(
            "{wanted} needs {name}, which is not installed: install the package {package}"
        ))
    })
}

/// Runs a program to its end and returns its standard output.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let named = format!("{command:?}").replace('"', "");
    let failed = |what: &str| Error::Target(format!("{named}: {what}"));
    // In its own process group, a signal from the terminal reaches only us.
    let output = command.process_group(0).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(&error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(failed(&last_lines(&said)))
        }
    }
}

/// The last lines of a log, which usually contain the reason.
pub(super) fn last_lines(text: &str) -> String {
    const LINES: usize = 6;
    let lines: Vec<&str> = text.trim().lines().collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    match last.is_empty() {
        true => "it printed nothing".into(),
        false => last,
    }
}
