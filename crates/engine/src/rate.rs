//! How often something may happen that others can cause, as a line of the log about a peer: some at once, then
//! one for each interval. What is left out is counted.

use std::num::NonZeroU64;

use crate::{Duration, Instant};

/// How often it may happen at once.
const BURST: u32 = 20;
/// Once more after each such time.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often it was left out before it happened, if at all. As a field of a log line it is absent if not.
pub type Suppressed = Option<NonZeroU64>;

/// The rate of one kind of thing.
#[derive(Clone, Copy, Default, Debug)]
pub struct Rate {
    /// How often it happened, less one for each interval since.
    spent: u32,
    since: Instant,
    left_out: u64,
}

impl Rate {
    /// Whether it may happen now: then how often it was left out before.
    pub fn take(&mut self, now: Instant) -> Option<Suppressed> {
        let earned = (now - self.since).as_nanos() / INTERVAL.as_nanos();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(BURST);
            self.spent = self.spent.saturating_sub(earned);
            self.since = now;
        }
        if self.spent >= BURST {
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
