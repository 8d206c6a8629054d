//! Whether the requests of a node fail, for people: from a request that has failed until one of its kind has not. A failed flush is
//! over only when something is written again: it says that what was written before may be lost.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{Error, ErrorKind, request_kind::RequestKind};

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

/// The last failure of each kind of request, of all lanes.
#[derive(Debug, Default)]
pub(crate) struct Failing {
    /// Whether there is one: all that a request that succeeds has to look at.
    is_on: AtomicBool,
    last: Mutex<BTreeMap<RequestKind, RequestFailure>>,
}

impl Failing {
    /// The gravest failure that is not over.
    pub(crate) fn gravest(&self) -> Option<RequestFailure> {
        let last = self.lock();
        let gravest = last
            .values()
            .max_by_key(|it| (it.may_have_lost, it.is_gone));
        gravest.cloned()
    }

    /// A request has succeeded.
    #[inline]
    pub(crate) fn succeeded(&self, kind: RequestKind) {
        if self.is_on.load(Ordering::Relaxed) {
            self.ends(kind);
        }
    }

    #[cold]
    fn ends(&self, kind: RequestKind) {
        let mut last = self.lock();
        last.retain(|failed, failure| match failure.may_have_lost {
            // A later flush has nothing to lose.
            true => kind != RequestKind::Write,
            // Reads may go on where nothing can be written, and the reverse.
            false if *failed == RequestKind::Read => kind != RequestKind::Read,
            false => kind != *failed && kind != RequestKind::Write,
        });
        self.is_on.store(!last.is_empty(), Ordering::Relaxed);
    }

    /// A request of a node, which may be read-only, has failed. What its sender has to answer for does not count, and what is
    /// told elsewhere: a lost session, a claim that another owner has.
    #[cold]
    pub(crate) fn failed(&self, kind: RequestKind, error: &Error, is_read_only: bool) {
        let may_have_lost = error.kind() == ErrorKind::FlushFailed;
        let is_gone = match error.kind() {
            // What it is on takes no writes any more.
            ErrorKind::ReadOnly if !is_read_only => true,
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
        if last.get(&kind).is_some_and(|it| it.may_have_lost) && !may_have_lost {
            return;
        }
        let failure = RequestFailure {
            kind: kind.name(),
            error: error.to_string(),
            may_have_lost,
            is_gone,
        };
        last.insert(kind, failure);
        self.is_on.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RequestKind, RequestFailure>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RequestKind::{Discard, Flush, Read, Write};

    fn fails(failing: &Failing, kind: RequestKind, error: ErrorKind) {
        failing.failed(kind, &Error::new(error, "why"), false);
    }

    fn told(failing: &Failing) -> Option<(&'static str, bool)> {
        failing.gravest().map(|it| (it.kind, it.may_have_lost))
    }

    #[test]
    fn a_failure_is_told_until_a_request_succeeds_that_shows_it_to_be_over() {
        for (failed, ends) in [
            (Read, &[Read][..]),
            (Write, &[Write]),
            (Flush, &[Flush, Write]),
            (Discard, &[Discard, Write]),
        ] {
            for succeeds in [Read, Write, Flush, Discard] {
                let failing = Failing::default();
                fails(&failing, failed, ErrorKind::Medium);
                failing.succeeded(succeeds);
                let expected = (!ends.contains(&succeeds)).then(|| (failed.name(), false));
                assert_eq!(told(&failing), expected, "{failed:?}, {succeeds:?}");
            }
        }
    }

    #[test]
    fn a_failed_flush_is_told_until_something_is_written() {
        let failing = Failing::default();
        fails(&failing, Flush, ErrorKind::FlushFailed);
        fails(&failing, Read, ErrorKind::Medium);
        fails(&failing, Flush, ErrorKind::Medium);
        for is_no_end in [Read, Flush, Discard] {
            failing.succeeded(is_no_end);
            assert_eq!(told(&failing), Some(("flush", true)), "{is_no_end:?}");
        }
        failing.succeeded(Write);
        assert_eq!(told(&failing), None);
    }

    #[test]
    fn what_a_sender_answers_for_and_what_is_told_elsewhere_is_no_failure() {
        let failing = Failing::default();
        for elsewhere in [
            ErrorKind::OutOfRange,
            ErrorKind::Unreachable,
            ErrorKind::Claimed,
        ] {
            fails(&failing, Read, elsewhere);
            assert_eq!(told(&failing), None);
        }
        let read_only = Error::new(ErrorKind::ReadOnly, "why");
        failing.failed(Write, &read_only, true);
        assert_eq!(told(&failing), None);
        failing.failed(Write, &read_only, false);
        failing.succeeded(Read);
        failing.succeeded(Flush);
        assert_eq!(told(&failing), Some(("write", false)));
    }
}
