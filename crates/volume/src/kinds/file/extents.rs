//! Range locks on a file, exclusive or shared, across all lanes, for media that do not order requests themselves. A
//! write of part of a unit is exclusive: it is a read-modify-write of the unit and would undo a concurrent write. In
//! the page cache every write is exclusive, because a read must not see half of it.
//!
//! The mutex is held only while the requests in flight are examined, and an uncontended lock never waits. That is
//! cheaper than sending every I/O to one lane, which would cost a wake-up in each direction.

use std::{
    future::poll_fn,
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use engine::range::overlap;

/// The ranges of a file that are in use, and who waits for them.
#[derive(Debug, Default)]
pub(super) struct Extents(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    /// The current locks by index, in no particular order.
    places: Vec<Option<Place>>,
    free: Vec<usize>,
    last: u64,
    /// How many are exclusive.
    alone: usize,
    waiting: usize,
}

#[derive(Debug)]
struct Place {
    /// Its position in arrival order.
    number: u64,
    /// In bytes.
    range: Range<u64>,
    alone: bool,
    /// How many earlier locks conflict with it.
    ahead: usize,
    waker: Option<Waker>,
}

impl Place {
    fn excludes(&self, other: &Place) -> bool {
        (self.alone || other.alone) && overlap(&self.range, &other.range)
    }
}

impl Line {
    /// Adds a lock; returns its index, and whether it has to wait.
    fn enter(&mut self, range: Range<u64>, alone: bool) -> (usize, bool) {
        self.last += 1;
        let mut place = Place {
            number: self.last,
            range,
            alone,
            ahead: 0,
            waker: None,
        };
        // Readers do not check each other.
        if alone || self.alone > 0 {
            let before = self.places.iter().flatten();
            place.ahead = before.filter(|other| other.excludes(&place)).count();
        }
        let waits = place.ahead > 0;
        self.alone += usize::from(alone);
        self.waiting += usize::from(waits);
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[index] = Some(place);
        (index, waits)
    }

    /// Whether the lock at `index` still has to wait; if so, `waker` is woken when it no longer does.
    fn waits(&mut self, index: usize, waker: &Waker) -> bool {
        let place = self.places[index].as_mut();
        let place = place.expect("a claim has its place until it is dropped");
        let waits = place.ahead > 0;
        if waits {
            place.waker = Some(waker.clone());
        }
        waits
    }

    /// Removes a lock; returns the wakers of those that may proceed.
    fn leave(&mut self, index: usize) -> Vec<Waker> {
        let left = self.places[index].take();
        let left = left.expect("a claim has its place until it is dropped");
        self.free.push(index);
        self.alone -= usize::from(left.alone);
        self.waiting -= usize::from(left.ahead > 0);
        let mut woken = Vec::new();
        if self.waiting == 0 {
            return woken;
        }
        for later in self.places.iter_mut().flatten() {
            if later.number > left.number && left.excludes(later) {
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

impl Extents {
    /// Waits for all earlier locks that conflict on `range` (in bytes). First come, first served.
    pub(super) async fn claim(&self, range: Range<u64>, alone: bool) -> Claimed<'_> {
        let (index, waits) = self.line().enter(range, alone);
        let claimed = Claimed {
            extents: self,
            index,
        };
        if waits {
            poll_fn(|cx| match self.line().waits(index, cx.waker()) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            })
            .await;
        }
        claimed
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A range in use, until this is dropped.
#[derive(Debug)]
pub(super) struct Claimed<'a> {
    extents: &'a Extents,
    index: usize,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        let woken = self.extents.line().leave(self.index);
        woken.into_iter().for_each(Waker::wake);
    }
}
