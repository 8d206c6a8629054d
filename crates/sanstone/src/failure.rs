//! Why a verb failed. The exit code distinguishes the two kinds.

use std::fmt;

/// What ends a verb early.
#[derive(Debug)]
pub(crate) enum VerbFailure {
    /// The command line or the configuration is wrong (exit code 2); the full message for the user.
    Wrong(String),
    /// The call was valid but failed (exit code 1).
    Failed(anyhow::Error),
}

impl fmt::Display for VerbFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VerbFailure::Wrong(message) => f.write_str(message),
            VerbFailure::Failed(error) => write!(f, "{error:#}"),
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for VerbFailure {
    fn from(error: E) -> Self {
        match error.into().downcast() {
            Ok(node::DaemonFailure::Wrong(message)) => VerbFailure::Wrong(message),
            Ok(refused @ node::DaemonFailure::Refused { .. }) => {
                VerbFailure::Wrong(refused.to_string())
            }
            Ok(failed) => VerbFailure::Failed(failed.into()),
            Err(error) => VerbFailure::Failed(error),
        }
    }
}

/// The context, outermost first, followed by the cause, on one line. Some errors already include their cause.
pub(crate) fn in_a_line(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !line.ends_with(&cause) {
            line.push_str(": ");
            line.push_str(&cause);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn no_cause_is_said_twice() {
        let full = io::Error::new(io::ErrorKind::StorageFull, "the disk is full");
        let error = volume::Error::io("writing", &full).context("volume db");
        let error = anyhow::Error::new(error).context("making the demo");
        let line = "making the demo: volume db: writing: the disk is full";
        assert_eq!(in_a_line(&error), line);
        let plain = anyhow::Error::new(full).context("reading");
        assert_eq!(in_a_line(&plain), "reading: the disk is full");
    }
}
