//! Rate limit for something that others can trigger, such as a log line about a peer: a burst at once, then
//! one per interval. Suppressed events are counted.

use std::num::NonZeroU64;

use crate::{Duration, Instant};

/// The size of a burst, unless another is chosen.
const BURST: u32 = 20;
/// After a burst, one event per interval.
const INTERVAL: Duration = Duration::from_secs(1);

/// How many events were suppressed before this one. `None`, and so absent as a log field, if none were.
pub type Suppressed = Option<NonZeroU64>;

/// The rate limit of one kind of event.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    burst: u32,
    /// Events so far, less one for each interval since.
    spent: u32,
    since: Instant,
    left_out: u64,
}

impl Default for Rate {
    fn default() -> Rate {
        Rate::with_burst(BURST)
    }
}

impl Rate {
    /// A limit that lets so many through at once.
    pub const fn with_burst(burst: u32) -> Rate {
        Rate {
            burst,
            spent: 0,
            since: Instant::from_ns(0),
            left_out: 0,
        }
    }

    /// Whether an event is allowed now; if so, how many were suppressed before it.
    pub fn take(&mut self, now: Instant) -> Option<Suppressed> {
        let earned = (now - self.since).as_nanos() / INTERVAL.as_nanos();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.spent = self.spent.saturating_sub(earned);
            self.since = now;
        }
        if self.spent >= self.burst {
            self.left_out += 1;
            return None;
        }
        self.spent += 1;
        Some(NonZeroU64::new(std::mem::take(&mut self.left_out)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_down_and_counted() {
        let mut rate = Rate::default();
        let mut said = |from_ms: u64, to_ms: u64| {
            let at = |ms: u64| Instant::from_ns(ms * 1_000_000);
            let said = (from_ms..to_ms).filter_map(|ms| rate.take(at(ms)));
            said.map(|left_out| left_out.map_or(0, NonZeroU64::get))
                .collect::<Vec<u64>>()
        };
        assert_eq!(said(5_000, 6_000), vec![0; BURST as usize]);
        assert_eq!(said(6_000, 8_000), [980, 999]);
        assert_eq!(said(3_600_000, 3_600_010)[0], 999);
    }
}
