//! Why a verb did not do its work: the exit code tells the two apart.

use std::fmt;

/// What ends a verb early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The call or the configuration is wrong (exit code 2); the whole message for the user.
    Wrong(String),
    /// It was right and failed (exit code 1).
    Failed(anyhow::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Wrong(message) => f.write_str(message),
            Failure::Failed(error) => write!(f, "{error:#}"),
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        match error.into().downcast() {
            Ok(node::Failure::Wrong(message)) => Failure::Wrong(message),
            Ok(failed) => Failure::Failed(failed.into()),
            Err(error) => Failure::Failed(error),
        }
    }
}
