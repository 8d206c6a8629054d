//! What must outlive a power cut beside the data: small files that are replaced whole, the
//! directories that they lie in, and the mark that a file carries wherever it goes (an extended
//! attribute).
//!
//! All of it blocks briefly: for start, configuration and rare changes of state, not for the data
//! path. On a lane it goes through the lane's reactor, so that a simulated world has names and marks
//! of its own, and loses those that were not synced. A thread that drives no lane has the system's.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::AsRawFd,
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, FileTypeExt, MetadataExt},
        },
    },
    path::{Path, PathBuf},
};

use crate::{extent, lane::try_with, reactor::Reactor};

/// The extended attribute that holds the mark.
const MARK: &std::ffi::CStr = c"user.sanstone.disk";
/// The longest mark, in bytes.
const MARK_BYTES_MAX: usize = 256;
/// What a new file's last block, written to make it long, takes at most.
pub(crate) const TAIL_BYTES_MAX: u64 = 64 << 10;

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A block device.
    BlockDevice {
        /// The number of its driver.
        major: u32,
        /// Its own number there.
        minor: u32,
    },
    /// Something else.
    Other,
}

/// What is at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// What it is.
    pub kind: Kind,
    /// Its length in bytes; 0 for devices.
    pub len_bytes: u64,
    /// Which one it is, by file system and number: the same under each of its names.
    pub id: (u64, u64),
}

/// The verbs beneath this module; a world has its own.
pub(crate) trait Store {
    fn look(&self, path: &Path) -> io::Result<Look>;
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    fn is_blank(&self, path: &Path) -> io::Result<bool>;
    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn make_directory(&self, path: &Path) -> io::Result<()>;
    fn sync(&self, path: &Path) -> io::Result<()>;
    fn mark(&self, path: &Path) -> io::Result<Option<Vec<u8>>>;
    fn set_mark(&self, path: &Path, mark: &[u8]) -> io::Result<()>;
}

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
/// `Unsupported` where the file system has no room for marks, else what the system says.
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

/// The file systems of this machine.
pub(crate) struct System;

impl Store for System {
    fn look(&self, path: &Path) -> io::Result<Look> {
        let found = fs::metadata(path)?;
        let kind = found.file_type();
        let kind = match () {
            () if kind.is_file() => Kind::File,
            () if kind.is_dir() => Kind::Directory,
            () if kind.is_block_device() => Kind::BlockDevice {
                major: libc::major(found.rdev()),
                minor: libc::minor(found.rdev()),
            },
            () => Kind::Other,
        };
        Ok(Look {
            kind,
            len_bytes: found.len(),
            id: (found.dev(), found.ino()),
        })
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn is_blank(&self, path: &Path) -> io::Result<bool> {
        let file = fs::File::open(path)?;
        let Some(first) = extent::first_data(file.as_raw_fd())? else {
            return Ok(true);
        };
        let len = file.metadata()?.len().saturating_sub(first);
        if len > TAIL_BYTES_MAX {
            return Ok(false);
        }
        let mut tail = vec![0; len as usize];
        file.read_exact_at(&mut tail, first)?;
        Ok(tail.iter().all(|&byte| byte == 0))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(directory)?;
        entries.map(|entry| Ok(entry?.path())).collect()
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::write(path, bytes)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }

    fn mark(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let path = c_path(path)?;
        let mut mark = vec![0; MARK_BYTES_MAX];
        // SAFETY: two NUL-terminated texts, and a buffer of the length given; all live through the call.
        let found = unsafe {
            libc::getxattr(
                path.as_ptr(),
                MARK.as_ptr(),
                mark.as_mut_ptr().cast(),
                mark.len(),
            )
        };
        if found >= 0 {
            mark.truncate(found as usize);
            return Ok(Some(mark));
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENODATA) => Ok(None),
            error => Err(explain(error)),
        }
    }

    fn set_mark(&self, path: &Path, mark: &[u8]) -> io::Result<()> {
        let file = fs::File::open(path)?;
        // SAFETY: a NUL-terminated text, and as many bytes as the length says; both live through the call.
        let failed = unsafe {
            libc::fsetxattr(
                file.as_raw_fd(),
                MARK.as_ptr(),
                mark.as_ptr().cast(),
                mark.len(),
                0,
            )
        };
        match failed {
            0 => Ok(()),
            _ => Err(explain(io::Error::last_os_error())),
        }
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the path has a NUL byte in it"))
}

/// Every release of the standard library has its own idea of ENOTSUP.
fn explain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOTSUP) => io::ErrorKind::Unsupported.into(),
        _ => error,
    }
}
