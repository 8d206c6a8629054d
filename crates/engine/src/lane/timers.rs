//! The timers of one lane: a heap. The lane fires due timers between two polls of the reactor.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    task::Waker,
    time::Duration,
};

use crate::instant::Instant;

/// How late a sleeping thread usually wakes up, at most: 30 µs at the median on an idle virtual machine, more on a busy
/// one.
const LATE_MAX: Duration = Duration::from_micros(100);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TimerId(u64);

/// The timers of one lane, ordered by deadline and then by creation, so that a seed replays them.
#[derive(Default)]
pub(crate) struct Timers {
    next_id: u64,
    /// May contain cancelled entries (without a waker), but never as the first.
    heap: BinaryHeap<Reverse<Timer>>,
    wakers: BTreeMap<TimerId, Waker>,
}

/// Its deadline, its name, and whether it must not fire late, so that the lane spins before it.
type Timer = (Instant, TimerId, bool);

/// How a lane may wait for its earliest timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ahead {
    /// It may sleep until then, or for as long as there is no other work.
    Sleep(Option<Instant>),
    /// It must spin until then, because it might not wake up in time.
    Spin(Instant),
}

impl Timers {
    pub(crate) fn add(&mut self) -> TimerId {
        self.next_id += 1;
        TimerId(self.next_id)
    }

    pub(crate) fn set_waker(&mut self, (deadline, id, is_exact): Timer, waker: &Waker) {
        if self.wakers.insert(id, waker.clone()).is_none() {
            self.heap.push(Reverse((deadline, id, is_exact)));
        }
    }

    pub(crate) fn remove(&mut self, id: TimerId) {
        if self.wakers.remove(&id).is_none() {
            return;
        }
        self.drop_gone();
        // Rebuild before cancelled entries outweigh the rest.
        if self.heap.len() > 64 && self.heap.len() > 4 * self.wakers.len() {
            let wakers = &self.wakers;
            self.heap
                .retain(|Reverse((_, id, _))| wakers.contains_key(id));
        }
    }

    /// The deadline of the earliest timer that somebody still waits for.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.heap.peek().map(|&Reverse((deadline, ..))| deadline)
    }

    /// How to wait at `now` for the earliest timer.
    pub(crate) fn ahead(&self, now: Instant) -> Ahead {
        match self.heap.peek() {
            Some(&Reverse((deadline, _, true))) => match deadline.since(now) {
                left if left <= LATE_MAX => Ahead::Spin(deadline),
                left => Ahead::Sleep(Some(now + (left - LATE_MAX))),
            },
            _ => Ahead::Sleep(self.next_deadline()),
        }
    }

    /// Drops cancelled entries from the front.
    fn drop_gone(&mut self) {
        while let Some(Reverse((_, id, _))) = self.heap.peek() {
            if self.wakers.contains_key(id) {
                return;
            }
            self.heap.pop();
        }
    }

    /// Takes one timer that is due; the caller wakes it outside the borrow.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let &Reverse((deadline, id, _)) = self.heap.peek()?;
        if deadline > now {
            return None;
        }
        let waker = self.wakers.remove(&id);
        debug_assert!(waker.is_some(), "the first one has a waker");
        self.drop_gone();
        waker
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_sleeps_until_shortly_before_an_exact_timer_and_then_spins() {
        let mut timers = Timers::default();
        let now = Instant::from_ns(1_000_000_000);
        assert_eq!(timers.ahead(now), Ahead::Sleep(None));
        let (exact, other) = (now + 2 * LATE_MAX, now + 10 * LATE_MAX);
        for (deadline, is_exact) in [(exact, true), (other, false)] {
            let id = timers.add();
            timers.set_waker((deadline, id, is_exact), Waker::noop());
        }
        let woken = now + LATE_MAX;
        assert_eq!(timers.ahead(now), Ahead::Sleep(Some(woken)));
        assert_eq!(timers.ahead(woken), Ahead::Spin(exact));
        assert_eq!(timers.ahead(other), Ahead::Spin(exact), "it is due");
        assert!(timers.pop_due(exact).is_some());
        assert_eq!(timers.ahead(exact), Ahead::Sleep(Some(other)));
    }
}
