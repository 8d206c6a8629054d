//! Why a verb did not do its work: the exit code tells the two apart.

/// What ends a verb early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The call or the configuration is wrong (exit code 2); the whole message for the user.
    Wrong(String),
    /// It was right and failed (exit code 1).
    Failed(anyhow::Error),
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
