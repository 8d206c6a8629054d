//! What can go wrong with an I/O: a stable kind for programs, a message for people.

use std::{fmt, io, sync::Arc};

/// The kind of an [`Error`]: what a caller may decide on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The range reaches beyond the end of the volume.
    OutOfRange,
    /// Offset or length is not a multiple of the block size.
    Misaligned,
    /// The volume does not take writes.
    ReadOnly,
    /// The medium failed at this I/O; others may work.
    Medium,
    /// An earlier flush failed, so what was written before it may be lost: the volume refuses
    /// writes and flushes until it is opened again.
    FlushFailed,
    /// No space is left where the volume keeps its data.
    NoSpace,
    /// Whoever holds the data cannot be reached.
    Unreachable,
    /// No answer came in time.
    TimedOut,
    /// The peer answered in a way that its protocol does not allow, or refused the command.
    Protocol,
    /// Another owner has it: a claim on a stripe's child, or a reservation.
    Claimed,
    /// Another owner has taken it over, or it has been closed: this one refuses all I/O until it is
    /// opened again.
    Preempted,
    /// The configuration names something that does not exist or does not fit.
    Configuration,
}

/// A failed I/O or a volume that cannot be opened.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: Arc<str>,
}

/// The result of an I/O.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind`; the message says what was wrong, with which value, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error {
            kind,
            message: Arc::from(message.into()),
        }
    }

    /// An error of the system while doing `what`.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => ErrorKind::NoSpace,
            io::ErrorKind::TimedOut => ErrorKind::TimedOut,
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => ErrorKind::Unreachable,
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                ErrorKind::ReadOnly
            }
            _ => ErrorKind::Medium,
        };
        Error::new(kind, format!("{what}: {error}"))
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error with `what` was being done in front of its message.
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Self {
        Error {
            kind: self.kind,
            message: Arc::from(format!("{what}: {}", self.message)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
