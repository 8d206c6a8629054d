//! The sticky failure of a flush: what was written before it may be lost, although everything below considers it
//! clean. From then on flushes fail and writes are refused, until the volume is reopened.

use std::sync::OnceLock;

use crate::{Error, ErrorKind, Result};

/// Whether acknowledged writes may be lost, shared by all lanes of a volume.
#[derive(Debug, Default)]
pub(crate) struct FlushFailure(OnceLock<Error>);

impl FlushFailure {
    /// Refuses requests that would build on writes that may be lost.
    pub(crate) fn check(&self) -> Result<()> {
        match self.0.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Records the failure; `message` says what has failed and what to do. The first one stays.
    pub(crate) fn set(&self, message: impl Into<String>) {
        self.0
            .get_or_init(|| Error::new(ErrorKind::FlushFailed, message.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_stays() {
        let failure = FlushFailure::default();
        failure.check().expect("nothing has failed");
        failure.set("the first");
        failure.set("the second");
        for _ in 0..2 {
            let error = failure.check().expect_err("it stays");
            assert_eq!(error.kind(), ErrorKind::FlushFailed);
            assert!(error.to_string().contains("the first"), "{error}");
        }
    }
}
