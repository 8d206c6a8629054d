//! The socket's path: `admin.sock` in the state directory. The address of a Unix socket holds 107 bytes; a
//! longer path is reached through an open descriptor of its directory.

use std::{
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, open};

const NAME: &str = "admin.sock";
/// The size of `sun_path` without its terminating zero.
const ADDRESS_BYTES_MAX: usize = 107;

/// A path within a directory that fits into a socket address; valid while this value lives.
pub(crate) struct Short {
    path: PathBuf,
    _directory: Option<OwnedFd>,
}

impl Short {
    /// The path of `name` in `directory`.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub(crate) fn new(directory: &Path, name: &str) -> io::Result<Short> {
        let path = directory.join(name);
        if path.as_os_str().as_bytes().len() <= ADDRESS_BYTES_MAX {
            return Ok(Short {
                path,
                _directory: None,
            });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(directory, flags, Mode::empty())?;
        let number = directory.as_raw_fd();
        Ok(Short {
            path: PathBuf::from(format!("/proc/self/fd/{number}/{name}")),
            _directory: Some(directory),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The socket of the daemon with this state directory.
pub(crate) fn path(state: &Path) -> PathBuf {
    state.join(NAME)
}

/// The same path in a form that fits into a socket address.
pub(crate) fn address(state: &Path) -> io::Result<Short> {
    Short::new(state, NAME)
}

/// The temporary address at which a socket is created before it replaces an older one.
pub(crate) fn new_address(state: &Path) -> io::Result<Short> {
    Short::new(state, "admin.sock.new")
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::net::{UnixListener, UnixStream},
    };

    use super::*;

    #[test]
    fn a_path_of_any_length_can_be_listened_on_and_reached() {
        let scratch = tempfile::tempdir().expect("room");
        for len in [10, 200] {
            let state = scratch.path().join("s".repeat(len));
            fs::create_dir(&state).expect("room");
            let short = address(&state).expect("a directory");
            let listener = UnixListener::bind(short.path()).expect("it fits");
            let other = address(&state).expect("a directory");
            UnixStream::connect(other.path()).expect("it listens");
            assert!(path(&state).exists(), "{len}");
            drop(listener);
        }
        address(&scratch.path().join("x".repeat(150)))
            .err()
            .expect("there is none");
    }
}
