//! Where a file takes space (SEEK_DATA, SEEK_HOLE). The system has no way to ask that without
//! waiting for its answer, which may have to read the file's map from the disk, and io_uring knows
//! no such operation: it is asked where what blocks runs ([`crate::blocking`]).

use std::io;

use crate::handle::Keeper;

/// A run of bytes that all take space, or all do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Whether they take space. What was allocated and never written takes none in this sense: it
    /// reads as zeroes without being read.
    pub is_allocated: bool,
    /// Where the run ends, in bytes from the file's beginning.
    pub end: u64,
}

/// What a reactor has to say about it.
pub(crate) enum Answer {
    /// What is so.
    #[cfg_attr(
        not(feature = "sim"),
        expect(dead_code, reason = "the kernel is asked")
    )]
    Now(io::Result<Extent>),
    /// The system has to be asked.
    Ask(Question),
}

/// A question that blocks the thread that asks it.
pub(crate) struct Question {
    /// Keeps the descriptor open.
    pub(crate) _keeper: Keeper,
    pub(crate) raw: i32,
    /// About the run from this byte on.
    pub(crate) at: u64,
}

impl Question {
    pub(crate) fn ask(self) -> io::Result<Extent> {
        look(self.raw, self.at)
    }
}

fn look(raw: i32, at: u64) -> io::Result<Extent> {
    match seek(raw, at, libc::SEEK_DATA)? {
        Some(data) if data <= at => Ok(Extent {
            is_allocated: true,
            end: seek(raw, at, libc::SEEK_HOLE)?.unwrap_or(u64::MAX),
        }),
        Some(data) => Ok(Extent {
            is_allocated: false,
            end: data,
        }),
        // A hole up to the end, unless the end comes before: what is behind it is no hole and reads
        // as nothing.
        None => match seek(raw, 0, libc::SEEK_END)? {
            Some(end) if at < end => Ok(Extent {
                is_allocated: false,
                end,
            }),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        },
    }
}

/// The first byte that takes space; `None` if none does.
pub(crate) fn first_data(raw: i32) -> io::Result<Option<u64>> {
    seek(raw, 0, libc::SEEK_DATA)
}

/// The next byte of that kind; `None` if there is none up to the end.
fn seek(raw: i32, at: u64, kind: libc::c_int) -> io::Result<Option<u64>> {
    let at = i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory arguments. It moves the handle's own position, which nothing uses: all I/O
    // says where.
    let found = unsafe { libc::lseek64(raw, at, kind) };
    if found >= 0 {
        return Ok(Some(found as u64));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        _ => Err(error),
    }
}
