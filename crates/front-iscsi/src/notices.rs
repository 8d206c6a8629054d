//! Rate limits for log lines that unauthenticated peers can trigger, so that they cannot flood the log. Each kind of
//! line has its own limit, and each line says how many of its kind were suppressed before it.

use std::sync::{Mutex, PoisonError};

pub(crate) use engine::rate::Suppressed;
use engine::{Instant, rate::Rate};

/// A kind of log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notice {
    /// A connection had to make room for another.
    Displaced,
    /// A connection did not log in in time.
    TooSlow,
    /// A login was refused, or abandoned by the initiator.
    Refused,
    /// An initiator failed authentication.
    Unproven,
    /// A peer broke the protocol.
    Broken,
    /// A session began.
    LoggedIn,
    /// A session ended.
    LoggedOut,
    /// I/O of a session that has ended hangs.
    Hung,
    /// A connection could not be accepted.
    NotAccepted,
}

/// Shared by all lanes.
#[derive(Default, Debug)]
pub(crate) struct Notices(Mutex<[Rate; Notice::NotAccepted as usize + 1]>);

impl Notices {
    /// Whether a line of this kind may be written now, and if so, how many were suppressed before it.
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
