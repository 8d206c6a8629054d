//! The timers of one lane: a heap. The lane fires due timers between two polls of the reactor.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    task::Waker,
};

use crate::instant::Instant;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TimerId(u64);

/// The timers of one lane, ordered by deadline and then by creation, so that a seed replays them.
#[derive(Default)]
pub(crate) struct Timers {
    next_id: u64,
    /// May contain cancelled entries (without a waker), but never as the first.
    heap: BinaryHeap<Reverse<(Instant, TimerId)>>,
    wakers: BTreeMap<TimerId, Waker>,
}

impl Timers {
    pub(crate) fn add(&mut self) -> TimerId {
        self.next_id += 1;
        TimerId(self.next_id)
    }

    pub(crate) fn set_waker(&mut self, id: TimerId, deadline: Instant, waker: &Waker) {
        if self.wakers.insert(id, waker.clone()).is_none() {
            self.heap.push(Reverse((deadline, id)));
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
            self.heap.retain(|Reverse((_, id))| wakers.contains_key(id));
        }
    }

    /// The deadline of the earliest timer that somebody still waits for.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.heap.peek().map(|&Reverse((deadline, _))| deadline)
    }

    /// Drops cancelled entries from the front.
    fn drop_gone(&mut self) {
        while let Some(Reverse((_, id))) = self.heap.peek() {
            if self.wakers.contains_key(id) {
                return;
            }
            self.heap.pop();
        }
    }

    /// Takes one timer that is due; the caller wakes it outside the borrow.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let &Reverse((deadline, id)) = self.heap.peek()?;
        if deadline > now {
            return None;
        }
        let waker = self.wakers.remove(&id);
        debug_assert!(waker.is_some(), "the first one has a waker");
        self.drop_gone();
        waker
    }
}
