//! A directory for sockets, logs and mount points, and whether the database server's user can enter a directory.
//!
//! `TMPDIR` may be too long for the address of a Unix socket, which holds 107 bytes, or be closed to other users, such as
//! the server's. Then the directory is one of the system's.

use std::{
    env,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{
    LabError, LabResult,
    load::Stop,
    programs::{dying_arguments, run, tool},
};

/// The size of `sun_path` without its terminating zero.
const ADDRESS_BYTES_MAX: usize = 107;

/// The longest path of a socket within the directory.
const SOCKET: &str = "run/.s.PGSQL.5432";

/// Where it may be if `TMPDIR` will not do.
const OTHERS: [&str; 3] = ["/tmp", "/var/tmp", "/run"];

/// Creates it. As root it must be one that the user nobody can enter, as whom the server runs.
pub(super) fn directory() -> LabResult<TempDir> {
    let wanted = env::temp_dir();
    let mut first = None;
    for parent in [wanted].into_iter().chain(OTHERS.map(PathBuf::from)) {
        match directory_in(&parent) {
            Ok(directory) => return Ok(directory),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| LabError::Target("there is no directory for sockets".into())))
}

fn directory_in(parent: &Path) -> LabResult<TempDir> {
    let directory = new_in(parent)?;
    let socket = directory.path().join(SOCKET);
    if socket.as_os_str().as_bytes().len() > ADDRESS_BYTES_MAX {
        return Err(LabError::Call(format!(
            "the directory for temporary files, {}, is too long for the path of a socket: set TMPDIR to a shorter one",
            parent.display()
        )));
    }
    check_open(directory.path())?;
    Ok(directory)
}

/// A new directory in `parent` that everybody may enter who may enter `parent`.
pub(super) fn new_in(parent: &Path) -> LabResult<TempDir> {
    let failed = |source| LabError::File {
        path: parent.to_owned(),
        source,
    };
    // Servers name their directories without links.
    let parent = parent.canonicalize().map_err(failed)?;
    let directory = tempfile::Builder::new()
        .prefix("sanstone-lab-")
        .tempdir_in(parent)
        .map_err(failed)?;
    let permissions = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), permissions).map_err(failed)?;
    Ok(directory)
}

/// Refuses a directory that the server's user cannot enter.
///
/// # Errors
/// Which directory above it, or itself, is closed.
pub(super) fn check_open(directory: &Path) -> LabResult<()> {
    if !rustix::process::geteuid().is_root() || may_enter(directory)? {
        return Ok(());
    }
    let mut above: Vec<&Path> = directory.ancestors().collect();
    above.reverse();
    for closed in above {
        if !may_enter(closed)? {
            let closed = closed.display();
            return Err(LabError::Call(format!(
                "the database server runs as the user nobody, who may not enter {closed}: run chmod o+x {closed}, or \
                 name another directory"
            )));
        }
    }
    Ok(())
}

/// Asks the system: permissions are only one of the things that could deny it.
fn may_enter(directory: &Path) -> LabResult<bool> {
    let mut ask = engine::programs::command(&tool("setpriv")?);
    ask.args(dying_arguments(&tool("test")?, true));
    ask.arg("-x").arg(directory);
    match run(&mut ask, &Stop::default()) {
        Ok(_) => Ok(true),
        // `test` says nothing.
        Err(LabError::Target(said)) if said.ends_with("it printed nothing") => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_long_path_is_refused_before_it_is_a_socket() {
        let parent = tempfile::tempdir().expect("room");
        let long = parent.path().join("d".repeat(90));
        fs::create_dir(&long).expect("room");
        let error = directory_in(&long).expect_err("it is too long").to_string();
        assert!(error.contains("shorter"), "{error}");
        directory_in(parent.path().parent().expect("it has one")).expect("it is short");
    }

    #[test]
    fn a_directory_closed_to_the_server_is_named() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let parent = new_in(&env::temp_dir()).expect("room");
        let closed = parent.path().join("closed");
        let inner = closed.join("inner");
        fs::create_dir_all(&inner).expect("room");
        check_open(&inner).expect("everybody may");
        fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).expect("it is ours");
        let error = check_open(&inner).expect_err("nobody may not").to_string();
        let end = format!(
            "nobody, who may not enter {0}: run chmod o+x {0}, or name another directory",
            closed.display()
        );
        assert!(error.ends_with(&end), "{error}");
    }
}
