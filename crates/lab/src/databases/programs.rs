//! Programs of this machine, and what they say when they fail.

use std::{
    env,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{Error, Result};

/// The program by its name from PATH, or from where administrators' programs are.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    // /usr/sbin is not in every account's PATH.
    let directories = path.split(':').chain(["/usr/sbin", "/sbin"]);
    let mut candidates = directories.map(|directory| Path::new(directory).join(name));
    candidates.find(|candidate| candidate.is_file())
}

/// The same; `package` is Debian's that has it, and `wanted` what it is for.
pub(super) fn program(name: &str, package: &str, wanted: &str) -> Result<PathBuf> {
    find(name).ok_or_else(|| {
        Error::Call(format!(
            "{wanted} needs {name}, which is not here: install the package {package}"
        ))
    })
}

/// Runs a program to its end and gives what it wrote to standard output.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let named = format!("{command:?}").replace('"', "");
    let failed = |what: &str| Error::Target(format!("{named}: {what}"));
    // A signal from the terminal is this program's to attend to.
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

/// The end of a log: where the reason usually is.
pub(super) fn last_lines(text: &str) -> String {
    const LINES: usize = 6;
    let lines: Vec<&str> = text.trim().lines().collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    match last.is_empty() {
        true => "it said nothing".into(),
        false => last,
    }
}
