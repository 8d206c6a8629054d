//! Programs of this machine that we start. Each is started by the absolute path at which it was found, in an environment
//! that is built here: nothing of ours reaches it. A user's environment may name a server that is not the one we started
//! (`PGHOSTADDR`, `MYSQL_HOST`), carry passwords, choose a locale that this machine does not have, or a `PATH` without the
//! administrators' programs; whatever such variables there are today, tomorrow there are more.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// Where a program that we start finds others.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// No settings of any user's are found there.
const HOME: &str = "/nonexistent";

/// The administrators' directories, which are not in every user's `PATH`.
const ADMINISTRATORS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// What a copy of this program may inherit: where systemd has put its secrets.
const OWN: [&str; 1] = ["CREDENTIALS_DIRECTORY"];

/// Finds a program in the user's `PATH` or in the administrators' directories; without a `PATH`, in the system's. Entries
/// of `PATH` that depend on the current directory are left out.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").filter(|path| !path.is_empty());
    find_in(name, env::split_paths(&path.unwrap_or_else(|| PATH.into())))
}

fn find_in(name: &str, directories: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let directories = directories.filter(|directory| directory.is_absolute());
    let mut candidates = directories
        .chain(ADMINISTRATORS.map(PathBuf::from))
        .map(|directory| directory.join(name));
    candidates.find(|candidate| candidate.is_file())
}

/// A command that runs the program at this absolute path. It has only the variables that every program needs; add what
/// this one needs.
///
/// # Panics
/// The path is not absolute: it would be looked for elsewhere than where it was found.
pub fn command(program: &Path) -> Command {
    assert!(
        program.is_absolute(),
        "{}: a program is started by the path at which it was found",
        program.display()
    );
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", HOME)
        .env("LC_ALL", "C");
    command
}

/// The same for a copy of this program, which must find its secrets.
///
/// # Panics
/// As [`command`].
pub fn own_command(binary: &Path) -> Command {
    let mut command = command(binary);
    inherit_own(&mut command);
    command
}

/// Lets `command`, which ends up running a copy of this program, inherit what such a copy may.
pub fn inherit_own(command: &mut Command) {
    for name in OWN {
        if let Some(value) = env::var_os(name) {
            command.env(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_nothing_of_our_environment() {
        // Cargo, or whoever runs this, has more.
        assert!(env::vars_os().count() > 3);
        let program = find("env").expect("it is in every system");
        let output = command(&program).output().expect("it starts");
        let said = String::from_utf8(output.stdout).expect("plain text");
        let mut names: Vec<&str> = said
            .lines()
            .filter_map(|line| Some(line.split_once('=')?.0))
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["HOME", "LC_ALL", "PATH"], "{said}");
        assert!(said.contains("/usr/sbin"), "{said}");
    }

    #[test]
    fn programs_are_found_by_absolute_paths_and_without_the_administrators_in_path() {
        let found = |name, path: &str| find_in(name, env::split_paths(path));
        assert_eq!(found("env", "/usr/bin"), Some("/usr/bin/env".into()));
        // losetup is in a directory that neither cron nor `su` has in its PATH.
        let losetup = found("losetup", "/usr/bin:/bin").expect("util-linux is essential");
        assert!(losetup.is_absolute(), "{}", losetup.display());
        assert_eq!(found("Cargo.toml", ".:"), None);
        assert_eq!(found("no-such-program", "/usr/bin"), None);
    }
}
