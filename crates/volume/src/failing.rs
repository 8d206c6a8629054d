//! Whether the requests of a node fail, for people: from a request that has failed until one that has not. A failed flush is over
//! only when something is written again: it says that what was written before may be lost.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use crate::{Error, ErrorKind};

/// How requests fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFailure {
    /// What the last of these was, such as "write".
    pub kind: &'static str,
    /// Its error.
    pub error: String,
    /// Whether writes that were acknowledged may be lost.
    pub may_have_lost: bool,
    /// Whether the disk has none of what it is asked for, and not just something wrong with it.
    pub is_gone: bool,
}

/// The last failure, of all lanes.
#[derive(Debug, Default)]
pub(crate) struct Failing {
    /// Whether there is one: all that a request that succeeds has to look at.
    is_on: AtomicBool,
    last: Mutex<Option<RequestFailure>>,
}

impl Failing {
    /// The last failure, unless that is over.
    pub(crate) fn last(&self) -> Option<RequestFailure> {
        self.lock().clone()
    }

    /// A request has succeeded, which read or wrote something.
    #[inline]
    pub(crate) fn succeeded(&self, is_read: bool) {
        if self.is_on.load(Ordering::Relaxed) {
            self.ends(is_read);
        }
    }

    #[cold]
    fn ends(&self, is_read: bool) {
        let mut last = self.lock();
        let needs_write = last.as_ref().is_some_and(|it| it.may_have_lost);
        if !needs_write || !is_read {
            *last = None;
            self.is_on.store(false, Ordering::Relaxed);
        }
    }

    /// A request has failed. What its sender has to answer for does not count, and what is told elsewhere: a lost session, a
    /// claim that another owner has.
    #[cold]
    pub(crate) fn failed(&self, kind: &'static str, error: &Error) {
        let may_have_lost = error.kind() == ErrorKind::FlushFailed;
        let is_gone = match error.kind() {
            ErrorKind::OutOfRange
            | ErrorKind::Misaligned
            | ErrorKind::ReadOnly
            | ErrorKind::Unreachable
            | ErrorKind::TimedOut
            | ErrorKind::Claimed
            | ErrorKind::Preempted => return,
            ErrorKind::Medium | ErrorKind::NoSpace | ErrorKind::OutcomeUnknown => false,
            ErrorKind::FlushFailed
            | ErrorKind::Protocol
            | ErrorKind::ReservationConflict
            | ErrorKind::Configuration => true,
        };
        let mut last = self.lock();
        if last
            .as_ref()
            .is_some_and(|it| it.may_have_lost && !may_have_lost)
        {
            return;
        }
        *last = Some(RequestFailure {
            kind,
            error: error.to_string(),
            may_have_lost,
            is_gone,
        });
        self.is_on.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Option<RequestFailure>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_until_a_request_succeeds_and_a_failed_flush_until_something_is_written() {
        let failing = Failing::default();
        let fails = |kind, error| failing.failed(kind, &Error::new(error, "why"));
        let told = || failing.last().map(|it| (it.kind, it.may_have_lost));
        for not_told in [
            ErrorKind::OutOfRange,
            ErrorKind::Unreachable,
            ErrorKind::Claimed,
        ] {
            fails("read", not_told);
            assert_eq!(told(), None);
        }
        fails("read", ErrorKind::Medium);
        assert_eq!(told(), Some(("read", false)));
        failing.succeeded(false);
        assert_eq!(told(), None);
        fails("flush", ErrorKind::FlushFailed);
        fails("read", ErrorKind::Medium);
        failing.succeeded(true);
        assert_eq!(told(), Some(("flush", true)));
        failing.succeeded(false);
        assert_eq!(told(), None);
    }
}
