//! How often the log speaks of clients: what anybody can cause by connecting has a rate, and a line says how many
//! were left out before it.

use std::{
    num::NonZeroU64,
    sync::{Mutex, PoisonError},
};

use engine::{Duration, Instant};

/// Lines that may come at once.
const BURST: u32 = 20;
/// One more after each such time.
const INTERVAL: Duration = Duration::from_secs(1);

/// Shared by all lanes; touched when connections come and go.
#[derive(Default, Debug)]
pub(crate) struct Notices(Mutex<Bucket>);

#[derive(Default, Debug)]
struct Bucket {
    /// Lines written that time has not made good.
    spent: u32,
    since: Instant,
    left_out: u64,
}

impl Notices {
    /// Whether a line may be written now: then how many were left out before it.
    pub(crate) fn may_say(&self, now: Instant) -> Option<Option<NonZeroU64>> {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earned = (now - bucket.since).as_nanos() / INTERVAL.as_nanos();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(BURST);
            bucket.spent = bucket.spent.saturating_sub(earned);
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
    fn a_flood_is_cut_down_and_counted() {
        let notices = Notices::default();
        let said = |from_ms: u64, to_ms: u64| {
            let at = |ms: u64| Instant::from_ns(ms * 1_000_000);
            let said = (from_ms..to_ms).filter_map(|ms| notices.may_say(at(ms)));
            said.map(|left_out| left_out.map_or(0, NonZeroU64::get))
                .collect::<Vec<u64>>()
        };
        assert_eq!(said(5_000, 6_000), vec![0; BURST as usize]);
        assert_eq!(said(6_000, 8_000), [980, 999]);
    }
}
