//! State that must survive a power cut besides the data: small files that are replaced whole, the
//! directories they lie in, and the mark that a file carries wherever it is moved (an extended
//! attribute).
//!
//! All calls block briefly: they are for start, configuration and rare changes of state, not for the data path. On a
//! lane they go through its reactor, so that a simulated world has names and marks of its own and loses those that
//! were not synced. A thread that drives no lane uses the real system.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    given,
    lane::try_with,
    loops::LoopDevice,
    reactor::{FileMark, Reactor, Store, must_be_file, too_long},
    ring::System,
};

pub use crate::reactor::{AccessRequest, FileSystem, PathInfo, PathKind};

/// Runs `f` with the store of this lane's world, or with the real system's.
pub(crate) fn with<T>(f: impl Fn(&dyn Store) -> T) -> T {
    let here = try_with(|lane| f(lane.reactor().store()));
    here.unwrap_or_else(|| f(&System))
}

/// What `path` leads to.
///
/// # Errors
/// Any error the system reports; `NotFound` if there is nothing.
pub fn look(path: &Path) -> io::Result<PathInfo> {
    with(|store| store.look(path))
}

/// The canonical absolute path of what is at `path`, without symbolic links. The last component
/// need not exist if its directory does.
///
/// # Errors
/// Any error the system reports.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    with(|store| match store.resolve(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(error)?;
            Ok(store.resolve(&parent_of(path))?.join(name))
        }
        resolved => resolved,
    })
}

/// The place that a file created at `path` gets: where the symbolic links at `path` lead, even if nothing is there.
///
/// # Errors
/// Any error the system reports.
pub fn follow_links(path: &Path) -> io::Result<PathBuf> {
    /// As many as Linux follows.
    const LINKS_MAX: usize = 40;
    let mut place = path.to_owned();
    for _ in 0..LINKS_MAX {
        match with(|store| store.link(&place))? {
            Some(to) => place = parent_of(&place).join(to),
            None => return Ok(place),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Reads the whole regular file at `path`, which is small and not a user's choice.
///
/// # Errors
/// What is there instead; else any error the system reports.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    with(|store| store.read(path))
}

/// Reads the whole regular file at `path`, of at most `max` bytes. Nothing else is opened: a pipe would be waited for, and
/// opening a device may do something.
///
/// # Errors
/// What is there instead, or that it is longer; else any error the system reports.
pub fn read_file(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    must_be_file(look(path)?)?;
    let (found, bytes) = read_start(path, max + 1)?;
    must_be_file(found)?;
    match bytes.len() > max {
        true => Err(too_long(max as u64)),
        false => Ok(bytes),
    }
}

/// Reads what a user has named as input, of at most `max` bytes: a [regular file](read_file), or a pipe or terminal that
/// this process has been [given open](given), to its end. It is waited for no longer than half a minute.
///
/// # Errors
/// As [`read_file`]; `TimedOut` if the pipe does not end.
pub fn read_input(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let is_open = given::is_given(path)
        && look(path).is_ok_and(|it| matches!(it.kind, PathKind::Pipe | PathKind::CharacterDevice));
    match is_open {
        true => given::read(path, max, given::LIMIT),
        false => read_file(path, max),
    }
}

/// Whether `path` itself is a symbolic link, wherever that leads.
///
/// # Errors
/// Any error the system reports.
pub fn is_link(path: &Path) -> io::Result<bool> {
    with(|store| Ok(store.link(path)?.is_some()))
}

/// Whether this user may do this with what is at `path`.
///
/// # Errors
/// `PermissionDenied` if not, else any error the system reports.
pub fn may(path: &Path, access: AccessRequest) -> io::Result<()> {
    with(|store| store.may(path, access))
}

/// The file system that holds what is at `path`.
///
/// # Errors
/// Any error the system reports.
pub fn file_system(path: &Path) -> io::Result<FileSystem> {
    with(|store| store.file_system(path))
}

/// Reads the first `len` bytes, or as many as there are, of the file or block device at `path`. Returns also what it is:
/// the same that was read, even if the path leads elsewhere by now. Nothing is read from anything else, such as a
/// pipe, and nothing is waited for.
///
/// # Errors
/// Any error the system reports.
pub fn read_start(path: &Path, len: usize) -> io::Result<(PathInfo, Vec<u8>)> {
    with(|store| store.read_start(path, len))
}

/// The process that has [locked](crate::fs::OpenOptions::lock) the file at `path`, if any and if the system tells.
pub fn lock_holder(path: &Path) -> Option<u32> {
    with(|store| store.lock_holder(path))
}

/// The loop device on the file at `path`, if any and if the system tells: see [`loop_of`](crate::loops::loop_of).
pub fn loop_of(path: &Path) -> Option<LoopDevice> {
    with(|store| store.loop_of(path))
}

/// Whether nothing was ever written to the file at `path`, as far as its file system tells without reading all of it.
/// A file that was created by writing its last block of zeroes counts as blank, too.
///
/// # Errors
/// Any error the system reports.
pub fn is_blank(path: &Path) -> io::Result<bool> {
    with(|store| store.is_blank(path))
}

/// The sorted paths of the entries of `directory`.
///
/// # Errors
/// Any error the system reports.
pub fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = with(|store| store.list(directory))?;
    paths.sort();
    Ok(paths)
}

/// Creates or atomically replaces the file at `path`: after a power cut either the old or the new
/// one is there, and once this has returned, the new one.
///
/// # Errors
/// Any error the system reports. The old file is still there then, unless it was the sync of the directory that failed: then
/// it is either. So whoever goes on with the old content has to store that again.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    with(|store| {
        let new = path.with_extension("new");
        let replaced = store.create(&new, bytes);
        let replaced = replaced.and_then(|()| store.rename(&new, path));
        if replaced.is_err() {
            // Part of it may fill the last of the space.
            let _ = store.remove(&new);
        }
        replaced?;
        store.sync(&parent_of(path))
    })
}

/// Creates the directory `path` unless it exists, durably, even if an earlier creator was stopped before
/// syncing it. `with_parents` creates missing parents too.
///
/// # Errors
/// Any error the system reports.
pub fn make_directory(path: &Path, with_parents: bool) -> io::Result<()> {
    let parent = parent_of(path);
    match look(path) {
        Ok(found) if found.kind == PathKind::Directory => return settle(&parent),
        Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if with_parents {
        make_directory(&parent, true)?;
    }
    with(|store| {
        match store.make_directory(path) {
            // Somebody else has just created it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        store.sync(&parent)
    })
}

/// Makes the names in a directory durable, even if it may not be ours. Errors that mean we cannot have created
/// anything there (no permission to read it), or that directories cannot be synced at all, are ignored.
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

/// Makes what is at `path` durable: a file's content and mark, or the names in a directory.
///
/// # Errors
/// Any error the system reports.
pub fn sync(path: &Path) -> io::Result<()> {
    with(|store| store.sync(path))
}

/// The mark that the file at `path` carries, if any.
///
/// # Errors
/// `Unsupported` if the file system does not support marks, `InvalidData` if the mark is too long to
/// be one of ours, else any error the system reports.
pub fn mark(path: &Path) -> io::Result<Option<Vec<u8>>> {
    with(|store| store.mark(path, FileMark::Disk))
}

/// Marks the file at `path`, durably.
///
/// # Errors
/// `Unsupported` if the file system does not support marks, else any error the system reports.
pub fn set_mark(path: &Path, mark: &[u8]) -> io::Result<()> {
    with(|store| {
        store.set_mark(path, FileMark::Disk, mark)?;
        store.sync(path)
    })
}

/// As [`mark`], but the mark of the daemon that has opened the file last.
///
/// # Errors
/// As [`mark`].
pub fn opener(path: &Path) -> io::Result<Option<Vec<u8>>> {
    with(|store| store.mark(path, FileMark::Opener))
}

/// Marks the file at `path`, durably, with who has opened it last. All that was written to it before is durable then, too.
///
/// # Errors
/// As [`set_mark`].
pub fn set_opener(path: &Path, opener: &[u8]) -> io::Result<()> {
    with(|store| {
        store.set_mark(path, FileMark::Opener, opener)?;
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
