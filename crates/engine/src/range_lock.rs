//! Locks on ranges, exclusive or shared, across all lanes: first come, first served, where two conflict.
//!
//! The mutex is held only while the locks that are held or awaited are examined, and an uncontended lock never waits.
//! That is cheaper than sending every request to one lane, which would cost a wake-up in each direction.

use std::{
    future::poll_fn,
    ops::{Deref, Range},
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use crate::range::overlap;

/// The ranges that are locked, and who waits for them.
#[derive(Debug, Default)]
pub struct RangeLocks(Mutex<Waiters>);

#[derive(Debug, Default)]
struct Waiters {
    /// By index, in no particular order.
    places: Vec<Option<RangeWaiter>>,
    free: Vec<usize>,
    last: u64,
    exclusive: usize,
    waiting: usize,
}

#[derive(Debug)]
struct RangeWaiter {
    /// Its position in arrival order.
    serial: u64,
    range: Range<u64>,
    is_exclusive: bool,
    /// How many earlier places conflict with it.
    ahead: usize,
    waker: Option<Waker>,
}

impl RangeWaiter {
    fn excludes(&self, other: &RangeWaiter) -> bool {
        (self.is_exclusive || other.is_exclusive) && overlap(&self.range, &other.range)
    }
}

impl Waiters {
    /// Adds a place and returns its index.
    fn enter(&mut self, range: Range<u64>, is_exclusive: bool) -> usize {
        self.last += 1;
        let mut place = RangeWaiter {
            serial: self.last,
            range,
            is_exclusive,
            ahead: 0,
            waker: None,
        };
        // Readers do not check each other.
        if is_exclusive || self.exclusive > 0 {
            let before = self.places.iter().flatten();
            place.ahead = before.filter(|other| other.excludes(&place)).count();
        }
        self.exclusive += usize::from(is_exclusive);
        self.waiting += usize::from(place.ahead > 0);
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[index] = Some(place);
        index
    }

    fn place(&mut self, index: usize) -> &mut RangeWaiter {
        let place = self.places[index].as_mut();
        place.expect("a lock has its place until it is dropped")
    }

    /// Removes a place; returns the wakers of those that need no longer wait.
    fn leave(&mut self, index: usize) -> Vec<Waker> {
        let left = self.places[index].take();
        let left = left.expect("a lock has its place until it is dropped");
        self.free.push(index);
        self.exclusive -= usize::from(left.is_exclusive);
        self.waiting -= usize::from(left.ahead > 0);
        let mut woken = Vec::new();
        if self.waiting == 0 {
            return woken;
        }
        for later in self.places.iter_mut().flatten() {
            if later.serial > left.serial && left.excludes(later) {
                assert!(
                    later.ahead > 0,
                    "a lock would be granted before an earlier one ends"
                );
                later.ahead -= 1;
                if later.ahead == 0 {
                    self.waiting -= 1;
                    woken.extend(later.waker.take());
                }
            }
        }
        woken
    }
}

impl RangeLocks {
    /// Locks `range` in `locks`, a reference or an `Arc`: waits until every earlier lock that conflicts with it is
    /// gone.
    pub async fn lock<L: Deref<Target = RangeLocks>>(
        locks: L,
        range: Range<u64>,
        is_exclusive: bool,
    ) -> RangeLock<L> {
        let (index, serial, waits) = {
            let mut queue = locks.queue();
            let index = queue.enter(range, is_exclusive);
            let place = queue.place(index);
            (index, place.serial, place.ahead > 0)
        };
        let lock = RangeLock {
            locks,
            index,
            serial,
        };
        if waits {
            poll_fn(|cx| {
                let mut queue = lock.locks.queue();
                let place = queue.place(index);
                if place.ahead == 0 {
                    return Poll::Ready(());
                }
                place.waker = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
        }
        lock
    }

    /// Locks everything, exclusively.
    pub async fn lock_all<L: Deref<Target = RangeLocks>>(locks: L) -> RangeLock<L> {
        RangeLocks::lock(locks, 0..u64::MAX, true).await
    }

    fn queue(&self) -> MutexGuard<'_, Waiters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A locked range; dropping it unlocks it.
#[derive(Debug)]
#[must_use]
pub struct RangeLock<L: Deref<Target = RangeLocks>> {
    locks: L,
    index: usize,
    serial: u64,
}

impl<L: Deref<Target = RangeLocks>> RangeLock<L> {
    /// Identifies the lock among all of its [`RangeLocks`]; later ones are greater.
    pub fn serial(&self) -> u64 {
        self.serial
    }
}

impl<L: Deref<Target = RangeLocks>> Drop for RangeLock<L> {
    fn drop(&mut self) {
        let woken = self.locks.queue().leave(self.index);
        woken.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        task::Context,
    };

    use super::*;

    fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn at_once(
        locks: &RangeLocks,
        range: Range<u64>,
        is_exclusive: bool,
    ) -> RangeLock<&RangeLocks> {
        let locked = poll_once(pin!(RangeLocks::lock(locks, range, is_exclusive)));
        locked.expect("nothing conflicts")
    }

    #[test]
    fn exclusive_locks_on_a_range_come_one_at_a_time_also_after_a_waiter_that_is_gone() {
        let locks = RangeLocks::default();
        let first = at_once(&locks, 0..8, true);
        assert!(poll_once(pin!(RangeLocks::lock(&locks, 4..12, true))).is_none());
        let mut second = pin!(RangeLocks::lock(&locks, 7..8, true));
        let mut third = pin!(RangeLocks::lock(&locks, 0..8, true));
        assert!(poll_once(second.as_mut()).is_none());
        assert!(poll_once(third.as_mut()).is_none());
        drop(first);
        assert!(
            poll_once(third.as_mut()).is_none(),
            "the second comes first"
        );
        let second = poll_once(second.as_mut()).expect("it is next");
        assert!(poll_once(third.as_mut()).is_none());
        drop(second);
        drop(poll_once(third.as_mut()).expect("it is next"));
        assert_eq!(locks.queue().places.iter().flatten().count(), 0);
    }

    #[test]
    fn locks_on_different_ranges_are_held_side_by_side_and_none_passes_one_that_waits_for_its_range()
     {
        let locks = RangeLocks::default();
        let (first, second) = (at_once(&locks, 0..8, true), at_once(&locks, 8..16, true));
        let mut third = pin!(RangeLocks::lock(&locks, 0..24, true));
        assert!(poll_once(third.as_mut()).is_none());
        let mut fourth = pin!(RangeLocks::lock(&locks, 16..24, true));
        assert!(poll_once(fourth.as_mut()).is_none(), "the third came first");
        let _elsewhere = at_once(&locks, 100..108, true);
        drop(first);
        assert!(poll_once(third.as_mut()).is_none());
        drop(second);
        drop(poll_once(third.as_mut()).expect("both are gone"));
        assert!(poll_once(fourth.as_mut()).is_some());
    }

    #[test]
    fn shared_locks_exclude_exclusive_ones_only() {
        let locks = RangeLocks::default();
        let readers = [at_once(&locks, 0..8, false), at_once(&locks, 4..12, false)];
        let mut writer = pin!(RangeLocks::lock(&locks, 0..16, true));
        assert!(poll_once(writer.as_mut()).is_none());
        let mut late = pin!(RangeLocks::lock(&locks, 0..1, false));
        assert!(poll_once(late.as_mut()).is_none(), "the writer came first");
        drop(readers);
        drop(poll_once(writer.as_mut()).expect("the readers are gone"));
        assert!(poll_once(late.as_mut()).is_some());
    }
}
