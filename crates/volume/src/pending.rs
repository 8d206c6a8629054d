//! Requests that have not been answered yet: how many there are, and when the oldest of them came, to the second. One thread
//! counts, others look, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Duration, Instant};

/// How many seconds are told apart. Requests that come while so many others have some that are not answered count as if
/// they had come in the latest of these: an age may be too long then, but none is too short.
const SLOTS: usize = 8;

/// Where a request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u8);

/// The requests of one thread.
#[derive(Debug, Default)]
pub struct Pending([OfSecond; SLOTS]);

/// Requests that came within one second.
#[derive(Debug, Default)]
struct OfSecond {
    /// By the clock of the lanes; means something only while `count` is not 0.
    second: AtomicU64,
    count: AtomicU64,
}

impl Pending {
    /// A request came at `now`. Called by one thread only.
    pub fn begin(&self, now: Instant) -> Slot {
        let second = Duration::from_nanos(now.as_ns()).as_secs();
        let (mut free, mut latest) = (None, (0, 0));
        for (index, slot) in self.0.iter().enumerate() {
            let count = slot.count.load(Ordering::Relaxed);
            let of = slot.second.load(Ordering::Relaxed);
            if count > 0 && of == second {
                slot.count.store(count + 1, Ordering::Relaxed);
                return Slot(index as u8);
            }
            if count == 0 {
                free = Some(index);
            } else if of >= latest.1 {
                latest = (index, of);
            }
        }
        let index = free.unwrap_or(latest.0);
        let slot = &self.0[index];
        if free.is_some() {
            slot.second.store(second, Ordering::Relaxed);
        }
        let count = slot.count.load(Ordering::Relaxed);
        // Whoever sees the count sees the second that it is of.
        slot.count.store(count + 1, Ordering::Release);
        Slot(index as u8)
    }

    /// A request was answered, or given up. Called by the same thread.
    pub fn end(&self, Slot(index): Slot) {
        let count = &self.0[usize::from(index)].count;
        let before = count.load(Ordering::Relaxed);
        debug_assert!(before > 0, "a request ends once");
        count.store(before - 1, Ordering::Relaxed);
    }

    /// How many have not been answered, and the beginning of the second in which the oldest of them came.
    pub fn all(&self) -> (u64, Option<Instant>) {
        let mut all = (0, None);
        for slot in &self.0 {
            let count = slot.count.load(Ordering::Acquire);
            if count > 0 {
                let second = slot.second.load(Ordering::Relaxed);
                let began = Instant::default() + Duration::from_secs(second);
                all = (all.0 + count, earlier(all.1, Some(began)));
            }
        }
        all
    }
}

/// The earlier of two that there may be.
pub fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::default() + Duration::from_millis(ms)
    }

    #[test]
    fn the_oldest_is_that_of_those_not_answered_yet() {
        let pending = Pending::default();
        assert_eq!(pending.all(), (0, None));
        let hung = pending.begin(at(1_900));
        for ms in 2_000..90_000 {
            let brief = pending.begin(at(ms));
            assert_eq!(pending.all(), (2, Some(at(1_000))));
            pending.end(brief);
        }
        let late = pending.begin(at(90_000));
        pending.end(hung);
        assert_eq!(pending.all(), (1, Some(at(90_000))));
        pending.end(late);
        assert_eq!(pending.all(), (0, None));
    }

    #[test]
    fn when_more_seconds_hang_than_are_told_apart_no_request_is_lost_and_none_seems_younger() {
        let pending = Pending::default();
        let slots: Vec<Slot> = (0..20).map(|s| pending.begin(at(s * 1000))).collect();
        for (ended, slot) in slots.into_iter().enumerate() {
            let (count, oldest) = pending.all();
            assert_eq!(count, 20 - ended as u64);
            assert!(oldest.expect("one hangs") <= at(ended as u64 * 1000));
            pending.end(slot);
        }
        assert_eq!(pending.all(), (0, None));
    }
}
