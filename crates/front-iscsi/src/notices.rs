//! A rate limit for lines of the log that unauthenticated peers can cause, so that they cannot fill it. Each
//! kind of line has its own; a line says how many of its kind were left out before it.

use std::sync::{Mutex, PoisonError};

pub(crate) use engine::rate::Suppressed;
use engine::{Instant, rate::Rate};

/// A kind of line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notice {
    /// A connection had to make room for another one.
    Displaced,
    /// A connection did not log in in time.
    TooSlow,
    /// A login was refused, or given up by the initiator.
    Refused,
    /// An initiator could not prove who it is.
    Unproven,
    /// A peer broke the protocol.
    Broken,
    /// A session began.
    LoggedIn,
    /// A session ended.
    LoggedOut,
    /// The I/O of a session that is over hangs.
    Hung,
    /// A connection could not be accepted.
    NotAccepted,
}

/// Shared by all lanes.
#[derive(Default, Debug)]
pub(crate) struct Notices(Mutex<[Rate; Notice::NotAccepted as usize + 1]>);

impl Notices {
    /// Whether a line of this kind may be written now: then how many were left out before it.
    pub(crate) fn may_say(&self, notice: Notice, now: Instant) -> Option<Suppressed> {
        let mut rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rates[notice as usize].take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_floods_is_cut_down_and_others_are_not() {
        let notices = Notices::default();
        let now = Instant::from_ns(5_000_000_000);
        let said = (0..1_000).filter_map(|_| notices.may_say(Notice::Broken, now));
        assert!(said.count() < 100);
        assert_eq!(notices.may_say(Notice::Broken, now), None);
        assert_eq!(notices.may_say(Notice::TooSlow, now), Some(None));
    }
}
