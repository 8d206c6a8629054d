//! Reasons why disks are not served, or a daemon does not start.

use std::{
    io,
    path::{Path, PathBuf},
};

use volume::config::ConfigError;

use crate::changed::Refused;

/// Why an operation on the state directory failed; the message includes the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Its content is unusable for this release, or it is in use by somebody else.
    #[error("{0}")]
    Refused(String),
    /// A system error. The cause is part of the message and therefore not a `source`, which would be printed again.
    #[error("{what}: {cause}{}", mend(cause))]
    Io {
        /// What was attempted, with its path.
        what: String,
        /// The system's error.
        cause: io::Error,
    },
}

/// The remedy for a system error about a file in the state directory.
fn mend(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => {
            "; grant this user the permission, or name another state directory with state = \"…\""
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "; something else exists at this path: move it away, or name another state directory with \
             state = \"…\""
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "; mount its file system read-write, or name another state directory with state = \"…\""
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free some space there",
        io::ErrorKind::NotFound => {
            "; create its parent directory, or name another with state = \"…\""
        }
        _ => "",
    }
}

impl StateError {
    pub(crate) fn io(what: String) -> impl FnOnce(io::Error) -> StateError {
        move |cause| StateError::Io { what, cause }
    }
}

/// Why the disks of a configuration are not served.
#[derive(Debug)]
pub enum OpenRefusal {
    /// The state directory cannot be used.
    State(StateError),
    /// The configuration and the disks do not match: all errors.
    Volumes(Vec<ConfigError>),
    /// A volume does not open.
    Opening(ConfigError),
}

impl From<StateError> for OpenRefusal {
    fn from(error: StateError) -> OpenRefusal {
        OpenRefusal::State(error)
    }
}

/// Why a daemon did not start or did not end well: the whole message for the user, with the file and
/// line it is about.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DaemonFailure {
    /// The configuration is wrong.
    #[error("{0}")]
    Wrong(String),
    /// The configuration is right, but a running daemon cannot change to it.
    #[error("{}", in_lines(path, refused))]
    Refused {
        /// The configuration's file.
        path: PathBuf,
        /// What it cannot change.
        refused: Vec<Refused>,
    },
    /// The configuration is right, but something failed.
    #[error("{0}")]
    Failed(String),
}

/// A line for each.
fn in_lines(path: &Path, refused: &[Refused]) -> String {
    let path = path.display();
    let lines = refused.iter().map(|refused| format!("{path}: {refused}"));
    lines.collect::<Vec<_>>().join("\n")
}

impl From<StateError> for DaemonFailure {
    fn from(error: StateError) -> DaemonFailure {
        DaemonFailure::Failed(error.to_string())
    }
}
