//! Which claims stand, for the processes that have one identity: each `attach` with the same state directory is one. A claim
//! that stands has a locked file there, so that none of the others takes it for that of a process that has ended.

use std::{
    io::ErrorKind::{NotFound, WouldBlock},
    path::{Path, PathBuf},
};

use engine::{
    blocking::{self, WorkKind},
    fs::{OpenOptions, SharedFile, remove},
    store,
};

use crate::{Error, ErrorKind, Result};

/// The file of a claim that stands. It goes with the claim, and its lock with the process.
#[derive(Debug)]
pub(crate) struct StandingFile {
    path: PathBuf,
    _lock: SharedFile,
}

impl StandingFile {
    /// Locks the file called `number` in `directory`, which exists. `None`: another process has it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn lock(directory: &Path, number: u128) -> Result<Option<StandingFile>> {
        let path = path_of(directory, number);
        loop {
            let lock = match SharedFile::open(&path, &options(true)) {
                Err(error) if error.kind() == WouldBlock => return Ok(None),
                opened => opened.map_err(|error| Error::io(path.display(), &error))?,
            };
            // Whoever had it may have removed it meanwhile.
            if lock.is_at(&path) {
                return Ok(Some(StandingFile { path, _lock: lock }));
            }
        }
    }

    /// The same for what only one process may have.
    ///
    /// # Errors
    /// Another one has it.
    pub(super) fn alone(directory: &Path, number: u128) -> Result<StandingFile> {
        if let Some(file) = StandingFile::lock(directory, number)? {
            return Ok(file);
        }
        let by = store::lock_holder(&path_of(directory, number));
        let by = by.map_or(String::new(), |process| format!(" by process {process}"));
        let message =
            format!("it is part of another volume that is attached{by}; end that `attach` first");
        Err(Error::new(ErrorKind::Claimed, message))
    }

    /// The same where it holds up no lane.
    ///
    /// # Errors
    /// Another one has it.
    pub(crate) async fn alone_aside(directory: &Path, number: u128) -> Result<StandingFile> {
        let shown = path_of(directory, number);
        let directory = directory.to_owned();
        let alone = move || StandingFile::alone(&directory, number);
        let done = blocking::run(WorkKind::Files, alone).await;
        done.map_err(|error| Error::io(shown.display(), &error))?
    }
}

impl Drop for StandingFile {
    fn drop(&mut self) {
        // One that is left is in nobody's way.
        let _ = remove(&self.path);
    }
}

/// Whether a claim stands that has the file called `number` in `directory`. Where that cannot be told, it does.
pub(super) fn stands(directory: &Path, number: u128) -> bool {
    let path = path_of(directory, number);
    match SharedFile::open(&path, &options(false)) {
        // Its process was killed.
        Ok(_lock) => drop(StandingFile { path, _lock }),
        Err(error) => return error.kind() != NotFound,
    }
    false
}

fn path_of(directory: &Path, number: u128) -> PathBuf {
    directory.join(format!("{number:032x}"))
}

fn options(create: bool) -> OpenOptions {
    OpenOptions {
        write: true,
        create,
        lock: true,
        ..OpenOptions::default()
    }
}
