//! The sticky failure of a flush: what was written before it may be lost, although everything below considers it
//! clean. From then on flushes fail and writes are refused, until the volume is reopened, or the failure is taken back by
//! whoever looks at all that was written.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use crate::{Error, ErrorKind, Result};

/// Whether acknowledged writes may be lost, shared by all lanes of a volume.
#[derive(Debug, Default)]
pub(crate) struct FlushFailure {
    /// Whether there is a message.
    is_set: AtomicBool,
    message: Mutex<Option<String>>,
}

impl FlushFailure {
    /// Refuses requests that would build on writes that may be lost.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_set.load(Ordering::Acquire) {
            return Ok(());
        }
        self.with_message(|message| match message {
            None => Ok(()),
            Some(message) => Err(Error::new(ErrorKind::FlushFailed, message.clone())),
        })
    }

    /// Records the failure; `message` says what has failed and what to do. The first one stays.
    pub(crate) fn set(&self, message: impl Into<String>) {
        self.with_message(|kept| {
            kept.get_or_insert_with(|| message.into());
        });
    }

    /// The failure with this `message` turns out to be none; any other one stays.
    pub(crate) fn take_back(&self, message: &str) {
        self.with_message(|kept| {
            kept.take_if(|kept| kept == message);
        });
    }

    fn with_message<T>(&self, act: impl FnOnce(&mut Option<String>) -> T) -> T {
        let mut message = self.message.lock().unwrap_or_else(PoisonError::into_inner);
        let done = act(&mut message);
        self.is_set.store(message.is_some(), Ordering::Release);
        done
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
        failure.take_back("the second");
        for _ in 0..2 {
            let error = failure.check().expect_err("it stays");
            assert_eq!(error.kind(), ErrorKind::FlushFailed);
            assert!(error.to_string().contains("the first"), "{error}");
        }
        failure.take_back("the first");
        failure.check().expect("it was none");
    }
}
