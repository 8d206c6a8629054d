//! Rate limits for log lines that unauthenticated peers can trigger, so that they cannot flood the log. Each kind of
//! line has its own limit, and each line says how many of its kind were suppressed before it. What the same peer repeats
//! is logged less and less often: an initiator that `allow` keeps out tries again every second, for ever.

use std::{
    collections::{BTreeMap, VecDeque},
    num::NonZeroU64,
    sync::{Mutex, PoisonError},
};

use engine::{
    Duration, Instant,
    rate::{Rate, Suppressed},
};

/// So many lines that say the same are written before pauses begin: somebody may be trying what is wrong.
const REPEATS_AT_ONCE: u32 = 5;
/// The first pause between lines that say the same; each is twice as long as the one before.
const REPEAT_PAUSE_FIRST: Duration = Duration::from_secs(10);
/// The longest such pause.
const REPEAT_PAUSE_MAX: Duration = Duration::from_secs(3_600);
/// What has not happened for so long counts as new.
const REPEAT_FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// So many different lines are remembered.
const REPEATS_MAX: usize = 256;

/// Shared by all lanes; used only when connections come and go. `N` are the kinds of lines.
#[derive(Debug)]
pub struct Notices<N> {
    rates: Mutex<BTreeMap<N, Rate>>,
    /// The oldest first.
    repeats: Mutex<VecDeque<Repeat>>,
}

impl<N> Default for Notices<N> {
    fn default() -> Self {
        Notices {
            rates: Mutex::default(),
            repeats: Mutex::default(),
        }
    }
}

/// Something that peers make us say again and again.
#[derive(Debug)]
struct Repeat {
    what: String,
    last: Instant,
    /// Lines written in a row.
    lines: u32,
    /// When the next line may be written.
    due: Instant,
    left_out: u64,
}

impl<N: Ord> Notices<N> {
    /// Whether a line of this kind may be written now, and if so, how many were suppressed before it.
    pub fn may_say(&self, notice: N, now: Instant) -> Option<Suppressed> {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.entry(notice).or_default().take(now)
    }

    /// The same for a line that says `what`, which its peer may repeat for ever.
    pub fn may_repeat(&self, notice: N, what: &str, now: Instant) -> Option<Suppressed> {
        let mut repeats = self.repeats.lock().unwrap_or_else(PoisonError::into_inner);
        repeats.retain(|repeat| now - repeat.last < REPEAT_FORGOTTEN_AFTER);
        let at = repeats.iter().position(|repeat| repeat.what == what);
        let at = at.unwrap_or_else(|| {
            if repeats.len() >= REPEATS_MAX {
                repeats.pop_front();
            }
            repeats.push_back(Repeat {
                what: what.to_owned(),
                last: now,
                lines: 0,
                due: now,
                left_out: 0,
            });
            repeats.len() - 1
        });
        let repeat = &mut repeats[at];
        repeat.last = now;
        if now < repeat.due {
            repeat.left_out += 1;
            return None;
        }
        let suppressed = self.may_say(notice, now)?;
        repeat.lines = repeat.lines.saturating_add(1);
        if let Some(pauses) = repeat.lines.checked_sub(REPEATS_AT_ONCE) {
            let pause = REPEAT_PAUSE_FIRST.saturating_mul(1 << pauses.min(30));
            repeat.due = now + pause.min(REPEAT_PAUSE_MAX);
        }
        let left_out = std::mem::take(&mut repeat.left_out);
        Some(NonZeroU64::new(
            left_out + suppressed.map_or(0, NonZeroU64::get),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Notice {
        Broken,
        Refused,
        TooSlow,
    }

    #[test]
    fn a_kind_that_floods_is_cut_down_and_others_are_not() {
        let notices = Notices::default();
        let now = Instant::from_ns(5_000_000_000);
        let said = (0..1_000).filter_map(|_| notices.may_say(Notice::Broken, now));
        assert!(said.count() < 100);
        assert_eq!(notices.may_say(Notice::Broken, now), None);
        assert_eq!(notices.may_say(Notice::TooSlow, now), Some(None));
    }

    #[test]
    fn what_a_peer_repeats_for_a_day_is_said_less_and_less_often() {
        let notices = Notices::default();
        let at = |second: u64| Instant::from_ns((second + 5) * 1_000_000_000);
        let say = |what, second| notices.may_repeat(Notice::Refused, what, at(second));
        let said: Vec<u64> = (0..86_400)
            .filter(|second| say("a", *second).is_some())
            .collect();
        assert_eq!(said[..8], [0, 1, 2, 3, 4, 14, 34, 74]);
        assert!(said.len() < 40, "{said:?}");
        assert_eq!(said[said.len() - 1] - said[said.len() - 2], 3_600);
        // Something else is said at once, and so is this when it had stopped.
        assert_eq!(say("b", 86_400), Some(None));
        assert_eq!(say("a", 90_000), Some(None));
        // Names that a peer makes up fill nothing.
        for number in 0..10_000 {
            notices.may_repeat(Notice::Refused, &format!("{number}"), at(100_000));
        }
        assert_eq!(notices.repeats.lock().expect("no panic").len(), REPEATS_MAX);
    }
}
