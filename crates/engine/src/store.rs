//! What must outlive a power cut beside the data: small files that are replaced whole, the
//! directories that they lie in, and the mark that a file carries wherever it goes (an extended
//! attribute).
//!
//! All of it blocks briefly: for start, configuration and rare changes of state, not for the data
//! path. On a lane it goes through the lane's reactor, so that a simulated world has names and marks
//! of its own, and loses those that were not synced. A thread that drives no lane has the system's.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    lane::try_with,
    reactor::{Reactor, Store},
    ring::System,
};

pub use crate::reactor::{Kind, Look};

/// Runs `f` with the store of this lane's world, or with the system's.
fn with<T>(f: impl Fn(&dyn Store) -> T) -> T {
    let here = try_with(|lane| f(lane.reactor().store()));
    here.unwrap_or_else(|| f(&System))
}

/// What `path` leads to.
///
/// # Errors
/// What the system says; `NotFound` when there is nothing.
pub fn look(path: &Path) -> io::Result<Look> {
    with(|store| store.look(path))
}

/// The one absolute path, without links, of what is at `path`. What is not there yet has one too if
/// its directory is there.
///
/// # Errors
/// What the system says.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    with(|store| match store.resolve(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(error)?;
            Ok(store.resolve(&parent_of(path))?.join(name))
        }
        resolved => resolved,
    })
}

/// All that the file at `path` holds.
///
/// # Errors
/// What the system says.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    with(|store| store.read(path))
}

/// What the file or block device at `path` holds at its start: `len` bytes, or as many as there are. For what is known
/// to be one: others may wait for somebody who writes.
///
/// # Errors
/// What the system says.
pub fn read_start(path: &Path, len: usize) -> io::Result<Vec<u8>> {
    with(|store| store.read_start(path, len))
}

/// The process that has [locked](crate::fs::OpenOptions::lock) the file at `path`, if one has and the system says which.
pub fn lock_holder(path: &Path) -> Option<u32> {
    with(|store| store.lock_holder(path))
}

/// Whether nothing was ever written to the file at `path`, as far as its file system tells without
/// reading it all: what was made by writing its last block of zeroes is blank, too.
///
/// # Errors
/// What the system says.
pub fn is_blank(path: &Path) -> io::Result<bool> {
    with(|store| store.is_blank(path))
}

/// The paths of what is in `directory`, in order.
///
/// # Errors
/// What the system says.
pub fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = with(|store| store.list(directory))?;
    paths.sort();
    Ok(paths)
}

/// Replaces the file at `path`, or makes it: after a power cut either the old or the new one is
/// there, and the new one once this has ended.
///
/// # Errors
/// What the system says; the old one is still there then.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    with(|store| {
        let new = path.with_extension("new");
        store.write(&new, bytes)?;
        store.sync(&new)?;
        store.rename(&new, path)?;
        store.sync(&parent_of(path))
    })
}

/// Makes the directory `path`, unless it exists; it survives a power cut then, also if somebody who made
/// it was stopped before it did. What leads there is made too `with_parents`.
///
/// # Errors
/// What the system says.
pub fn make_directory(path: &Path, with_parents: bool) -> io::Result<()> {
    let parent = parent_of(path);
    match look(path) {
        Ok(found) if found.kind == Kind::Directory => return settle(&parent),
        Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if with_parents {
        make_directory(&parent, true)?;
    }
    with(|store| {
        match store.make_directory(path) {
            // Somebody else has made it just now.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        store.sync(&parent)
    })
}

/// Makes durable the names in a directory that may not be ours: who may not read it has made nothing
/// there with these verbs, and where no directory can be synced none has to be.
fn settle(directory: &Path) -> io::Result<()> {
    match sync(directory) {
        Err(error) => match error.kind() {
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::Unsupported => Ok(()),
            _ => Err(error),
        },
        Ok(()) => Ok(()),
    }
}

/// Makes durable what is at `path`: a file's content and mark, or the names in a directory.
///
/// # Errors
/// What the system says.
pub fn sync(path: &Path) -> io::Result<()> {
    with(|store| store.sync(path))
}

/// The mark that the file at `path` carries, if any.
///
/// # Errors
/// `Unsupported` where the file system has no room for marks, `InvalidData` for one that is no mark of
/// ours for its length, else what the system says.
pub fn mark(path: &Path) -> io::Result<Option<Vec<u8>>> {
    with(|store| store.mark(path))
}

/// Marks the file at `path`, durably.
///
/// # Errors
/// `Unsupported` where the file system has no room for marks, else what the system says.
pub fn set_mark(path: &Path, mark: &[u8]) -> io::Result<()> {
    with(|store| {
        store.set_mark(path, mark)?;
        store.sync(path)
    })
}

/// The directory that `path` lies in.
pub fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        Some(_) => PathBuf::from("."),
        None => path.to_owned(),
    }
}
