//! Who uses a state directory. `serve` locks all of it for as long as it runs. An `attach` locks the volumes that its own is made
//! of, each in a directory of its own below `attached`, and all of it only while it changes a file that others change as
//! well. So several of them run at the same time, and never beside a `serve`.

use std::{
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use engine::{
    fs::{OpenOptions, SharedFile},
    store,
};

use crate::StateError;

/// The directory of the volumes that are attached.
const ATTACHED: &str = "attached";
/// The directory in which each `attach` shows what it has claimed.
const CLAIMS: &str = "claims";
const LOCK: &str = "lock";
/// Locked by a `serve` as well, so that nobody waits for what lasts.
const SERVED: &str = "served.lock";
/// How long an `attach` waits for others that start or stop, or change a file.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// The directory of the volume called `volume` in the state directory `state`: there is the admin socket of its `attach`.
pub fn attached_directory(state: &Path, volume: &str) -> PathBuf {
    state.join(ATTACHED).join(volume)
}

/// The directories of all volumes that are, or were, attached with the state directory `state`, or parts of such.
pub fn attached_directories(state: &Path) -> Vec<PathBuf> {
    store::list(&state.join(ATTACHED)).unwrap_or_default()
}

/// Locks all of `directory`, which exists. `None`: somebody has.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn whole(directory: &Path) -> Result<Option<SharedFile>, StateError> {
    lock(directory, LOCK)
}

/// Shows others that `directory`, [all](whole) of which this process has locked, stays so for long.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn served(directory: &Path) -> Result<Option<SharedFile>, StateError> {
    lock(directory, SERVED)
}

/// Whether a `serve` has `directory`, as far as the system tells who has a lock.
pub(crate) fn is_served(directory: &Path) -> bool {
    store::lock_holder(&directory.join(SERVED)).is_some()
}

fn lock(directory: &Path, name: &str) -> Result<Option<SharedFile>, StateError> {
    let options = OpenOptions {
        write: true,
        create: true,
        lock: true,
        ..OpenOptions::default()
    };
    match SharedFile::open(&directory.join(name), &options) {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(StateError::io(format!(
            "the state directory {} cannot be written",
            directory.display()
        ))(error)),
    }
}

/// As [`whole`], for a moment: waits for others that have it for a moment as well, and not for a `serve`.
///
/// # Errors
/// As [`whole`].
pub(crate) fn whole_for_a_moment(directory: &Path) -> Result<Option<SharedFile>, StateError> {
    let until = Instant::now() + PATIENCE;
    loop {
        let lock = whole(directory)?;
        if lock.is_some() || Instant::now() > until || is_served(directory) {
            return Ok(lock);
        }
        thread::sleep(PAUSE);
    }
}

/// Refuses `directory`, all of which this process has locked, if a volume is attached with it.
///
/// # Errors
/// The first volume that is.
pub(crate) fn refuse_attached(directory: &Path) -> Result<(), StateError> {
    for volume in attached_directories(directory) {
        if store::look(&volume.join(LOCK)).is_ok() && whole(&volume)?.is_none() {
            return Err(StateError::Refused(format!(
                "{}, with the state directory {}: end its `attach`, or give each its own with state = \"…\"",
                taken(&volume),
                directory.display()
            )));
        }
    }
    Ok(())
}

/// Locks the volumes called `volumes` in `directory`, all of which this process has locked for now.
///
/// # Errors
/// A volume that another `attach` has.
pub(crate) fn volumes(directory: &Path, volumes: &[String]) -> Result<Vec<SharedFile>, StateError> {
    let mut locks = Vec::new();
    for volume in volumes {
        let its = attached_directory(directory, volume);
        let made = store::make_directory(&its, true);
        made.map_err(StateError::io(format!(
            "{} cannot be created",
            its.display()
        )))?;
        let lock = whole(&its)?;
        locks.push(lock.ok_or_else(|| StateError::Refused(taken(&its)))?);
    }
    Ok(locks)
}

/// The directory in which each `attach` with the state directory `directory` shows what it has claimed.
///
/// # Errors
/// If it cannot be made.
pub(crate) fn claims(directory: &Path) -> Result<PathBuf, StateError> {
    let claims = directory.join(CLAIMS);
    let made = store::make_directory(&claims, true);
    made.map_err(StateError::io(format!(
        "{} cannot be created",
        claims.display()
    )))?;
    Ok(claims)
}

/// That another `attach` has the volume of this directory.
fn taken(directory: &Path) -> String {
    let volume = directory.file_name().unwrap_or_default().to_string_lossy();
    let by = store::lock_holder(&directory.join(LOCK));
    let by = by.map_or(String::new(), |pid| format!(" by process {pid}"));
    format!("volume \"{volume}\" is attached{by}, or a part of a volume that is")
}
