//! Which parts of a file are allocated (SEEK_DATA, SEEK_HOLE). The query may block on reading the
//! file's extent map from the disk, and io_uring has no such operation, so it runs on a thread for
//! blocking work ([`crate::blocking`]).

use std::io;

use crate::handle::Keeper;

/// A run of bytes that are either all allocated or all not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Whether the bytes are allocated. Space that was reserved and never written counts as not
    /// allocated: it reads as zeroes without any I/O.
    pub is_allocated: bool,
    /// Where the run ends, in bytes from the file's beginning.
    pub end: u64,
}

/// What a reactor answers to the query.
pub(crate) enum Answer {
    /// The answer itself.
    #[cfg_attr(
        not(feature = "sim"),
        expect(dead_code, reason = "the kernel is asked")
    )]
    Now(io::Result<Extent>),
    /// The system has to be asked.
    Ask(Question),
}

/// A query that blocks the calling thread.
pub(crate) struct Question {
    /// Keeps the descriptor open.
    pub(crate) _keeper: Keeper,
    pub(crate) raw: i32,
    /// Query the run that starts at this byte.
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
        // Not found: a hole up to the end of the file. An `at` beyond the end is no hole but reads
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

/// The first allocated byte; `None` if there is none.
pub(crate) fn first_data(raw: i32) -> io::Result<Option<u64>> {
    seek(raw, 0, libc::SEEK_DATA)
}

/// The next byte of that kind; `None` if there is none before the end.
fn seek(raw: i32, at: u64, kind: libc::c_int) -> io::Result<Option<u64>> {
    let at = i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory arguments. It moves the handle's own position, which nothing uses: all I/O
    // is positional.
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
