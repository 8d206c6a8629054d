//! The error of an I/O: a stable kind for programs, a message for people, and below it what each layer was doing,
//! down to the system's own error.

use std::{fmt, io, sync::Arc};

/// The kind of an [`Error`], on which callers may base decisions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The range reaches beyond the end of the volume.
    OutOfRange,
    /// Offset or length is not a multiple of the block size.
    Misaligned,
    /// The volume does not accept writes.
    ReadOnly,
    /// The medium failed this I/O; others may work.
    Medium,
    /// An earlier flush failed, so what was written before it may be lost: the volume refuses writes and flushes
    /// until it is reopened.
    FlushFailed,
    /// No space is left on the medium that stores the data.
    NoSpace,
    /// The holder of the data cannot be reached.
    Unreachable,
    /// No answer arrived in time.
    TimedOut,
    /// The peer violated its protocol, or refused the command.
    Protocol,
    /// It was sent and not answered, and must not be sent twice: it took effect, or it never will.
    OutcomeUnknown,
    /// Another owner has it: there is a claim on a stripe's child.
    Claimed,
    /// Another initiator has reserved the disk (SAM-5 5.3.1, RESERVATION CONFLICT).
    ReservationConflict,
    /// Another owner has taken it over, or it has been closed: this one refuses all I/O until it is reopened.
    Preempted,
    /// The configuration names something that does not exist or does not fit.
    Configuration,
}

/// A failed I/O, or a volume that cannot be opened.
///
/// Displays as a single line: what was being done, outermost first, and what went wrong. Programs get the parts with
/// [`source`](std::error::Error::source), whose chain ends with the [`io::Error`] if the system's error was the
/// cause.
#[derive(Clone, Debug)]
pub struct Error(Arc<ErrorDetail>);

#[derive(Debug)]
struct ErrorDetail {
    kind: ErrorKind,
    message: String,
    advice: Option<Advice>,
    source: Option<ErrorCause>,
}

/// What the user can do about an error, apart from its message: whoever shows the error may know better where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Give a user and a secret, or correct them. Displays as advice for a configuration.
    Credentials,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Advice::Credentials => f.write_str(
                "set `chap`, or check its user and secret; a target that asks for none wants neither `chap` nor `mutual`",
            ),
        }
    }
}

/// The cause of an error.
#[derive(Debug)]
enum ErrorCause {
    Volume(Error),
    System(io::Error),
}

/// The result of an I/O.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind`; the message says what was wrong, with which value, and what to do about it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error::told(kind, message.into(), None)
    }

    fn told(kind: ErrorKind, message: String, source: Option<ErrorCause>) -> Self {
        Error(Arc::new(ErrorDetail {
            kind,
            message,
            advice: None,
            source,
        }))
    }

    /// An error of `kind` about which the user can do something.
    pub(crate) fn with_advice(
        kind: ErrorKind,
        message: impl Into<String>,
        advice: Option<Advice>,
    ) -> Self {
        Error(Arc::new(ErrorDetail {
            kind,
            message: message.into(),
            advice,
            source: None,
        }))
    }

    /// What the user can do about it, if that is known apart from the message.
    pub fn advice(&self) -> Option<Advice> {
        match &self.0.source {
            Some(ErrorCause::Volume(error)) => self.0.advice.or(error.advice()),
            _ => self.0.advice,
        }
    }

    /// What it displays without its [advice](Error::advice).
    pub fn without_advice(&self) -> String {
        let message = &self.0.message;
        match &self.0.source {
            None => message.clone(),
            Some(ErrorCause::Volume(error)) => format!("{message}: {}", error.without_advice()),
            Some(ErrorCause::System(error)) => format!("{message}: {error}"),
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
        // An error of the system cannot be cloned, but it can be recreated from its number.
        let same = match error.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        Error::told(kind, what.to_string(), Some(ErrorCause::System(same)))
    }

    /// The kind of error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Wraps the error in a description of `what` was being done.
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Self {
        Error::told(
            self.kind(),
            what.to_string(),
            Some(ErrorCause::Volume(self)),
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.without_advice())?;
        match self.advice() {
            None => Ok(()),
            Some(advice) => write!(f, "; {advice}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.0.source.as_ref()? {
            ErrorCause::Volume(error) => Some(error),
            ErrorCause::System(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn an_error_keeps_its_kind_the_ways_down_to_it_and_the_systems_own() {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        let error = Error::io("writing 512 bytes at 0 of disk.img", &full);
        let error = error.context("stripe child 1").context("volume db");
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let line = "volume db: stripe child 1: writing 512 bytes at 0 of disk.img: No space left";
        assert!(error.to_string().starts_with(line), "{error}");
        let child = error.source().expect("the stripe's");
        assert!(child.to_string().starts_with("stripe child 1: writing"));
        let leaf = child.source().expect("the leaf's");
        assert!(leaf.downcast_ref::<Error>().is_some());
        let system = leaf.source().expect("the system's");
        let system: &io::Error = system.downcast_ref().expect("as it was");
        assert_eq!(system.raw_os_error(), Some(libc::ENOSPC));
        assert!(system.source().is_none());

        let refused = ErrorKind::Configuration;
        let error = Error::with_advice(refused, "refused", Some(Advice::Credentials));
        let error = error.context("volume db");
        assert_eq!(error.advice(), Some(Advice::Credentials));
        assert_eq!(error.without_advice(), "volume db: refused");
        let advised = "volume db: refused; set `chap`, or check its user and secret; a target that asks for none wants \
                       neither `chap` nor `mutual`";
        assert_eq!(error.to_string(), advised);

        let made = io::Error::new(io::ErrorKind::TimedOut, "no answer");
        let error = Error::io("asking", &made);
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "asking: no answer");
    }
}
