//! A rate limit for lines of the log that unauthenticated peers can cause, so that they cannot fill it. Each
//! kind of line has its own; a line says how many of its kind were left out before it.

use std::{
    num::NonZeroU64,
    sync::{Mutex, PoisonError},
};

use engine::{Duration, Instant};

/// Lines of a kind that may come at once.
const BURST: u32 = 20;
/// One more after each such time.
const INTERVAL: Duration = Duration::from_secs(1);

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

/// How many lines were left out before one, if any. As a field of the line it is absent if none.
pub(crate) type Suppressed = Option<NonZeroU64>;

/// Shared by all lanes.
#[derive(Default, Debug)]
pub(crate) struct Notices(Mutex<[Bucket; Notice::NotAccepted as usize + 1]>);

#[derive(Clone, Copy, Default, Debug)]
struct Bucket {
    /// Lines written, less one for each interval since.
    spent: u32,
    since: Instant,
    left_out: u64,
}

impl Notices {
    /// Whether a line of this kind may be written now: then how many were left out before it.
    pub(crate) fn may_say(&self, notice: Notice, now: Instant) -> Option<Suppressed> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = &mut buckets[notice as usize];
        let earned = (now - bucket.since).as_nanos() / INTERVAL.as_nanos();
        if earned > 0 {
            bucket.spent = bucket
                .spent
                .saturating_sub(u32::try_from(earned).unwrap_or(BURST));
            bucket.since = now;
        }
        if bucket.spent >= BURST {
            bucket.left_out += 1;
            return None;
        }
        bucket.spent += 1;
        Some(NonZeroU64::new(std::mem::take(&mut bucket.left_out)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_floods_is_cut_down_and_others_are_not() {
        let notices = Notices::default();
        let at = |ms: u64| Instant::from_ns(ms * 1_000_000);
        let said = |notice, from: u64, to: u64| {
            let said = (from..to).filter_map(|ms| notices.may_say(notice, at(ms)));
            said.map(|suppressed| suppressed.map_or(0, NonZeroU64::get))
                .collect::<Vec<u64>>()
        };
        let first = said(Notice::Broken, 5_000, 6_000);
        assert_eq!(first, vec![0; BURST as usize]);
        assert_eq!(said(Notice::TooSlow, 5_500, 5_501), [0]);
        assert_eq!(said(Notice::Broken, 6_000, 8_000), [980, 999]);
        assert_eq!(said(Notice::Broken, 3_600_000, 3_600_010)[0], 999);
    }
}
