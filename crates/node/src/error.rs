//! What keeps disks from being served, and a daemon from starting.

use std::io;

use volume::config::ConfigError;

/// Why something of the state directory failed; the message holds the mend.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It holds what this release cannot use, or somebody else uses it.
    #[error("{0}")]
    Refused(String),
    /// The system refused. The cause is in the message, and so no source of it that is told again.
    #[error("{what}: {cause}{}", mend(cause))]
    Io {
        /// What was tried, with its path.
        what: String,
        /// What the system said.
        cause: io::Error,
    },
}

/// What to do about what the system says of a file in the state directory.
fn mend(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => {
            "; give this user the right, or name another state directory with state = \"…\""
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "; something else is in its place: move that away, or name another state directory with \
             state = \"…\""
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "; mount its file system to be written, or name another state directory with state = \"…\""
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; make room there",
        io::ErrorKind::NotFound => "; make what leads there, or name another with state = \"…\"",
        _ => "",
    }
}

impl Error {
    pub(crate) fn io(what: String) -> impl FnOnce(io::Error) -> Error {
        move |cause| Error::Io { what, cause }
    }
}

/// Why the disks of a configuration are not served.
#[derive(Debug)]
pub enum Refusal {
    /// The state directory cannot be used.
    State(Error),
    /// The configuration and the disks do not fit together: all that is wrong.
    Volumes(Vec<ConfigError>),
    /// A volume does not open.
    Opening(ConfigError),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::State(error)
    }
}

/// Why a daemon does not start, or did not end well: the whole message for the user, with the file and
/// the line that it is about.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration is wrong.
    #[error("{0}")]
    Wrong(String),
    /// It was right and failed.
    #[error("{0}")]
    Failed(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Failed(error.to_string())
    }
}
