//! Time as the lane sees it: nanoseconds since an origin that only the reactor knows, so that the
//! simulated world can own the clock. Timers live in a heap; the lane fires what is due between
//! two looks at the reactor.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    future::Future,
    ops::{Add, AddAssign, Sub},
    pin::Pin,
    task::{Context, Poll, Waker},
};

pub use std::time::Duration;

use crate::lane::{self, LaneInner};

/// A point in the lane's time, in nanoseconds since the reactor's origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The instant `ns` nanoseconds after the origin.
    pub const fn from_ns(ns: u64) -> Self {
        Instant(ns)
    }

    /// Nanoseconds since the origin.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero when it lies in the future.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// The lane's present. Panics outside a lane.
pub fn now() -> Instant {
    lane::with(|lane| lane.now())
}

/// When the lane's present turn began, which is when what it works on now had arrived: a look at
/// it costs no clock. Panics outside a lane.
pub fn turn_began() -> Instant {
    lane::with(LaneInner::turn_began)
}

/// Ends after `d`.
pub fn sleep(d: Duration) -> Sleep {
    sleep_until(now() + d)
}

/// Ends at `deadline` (at once when it is past).
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep {
        deadline,
        timer: None,
    }
}

/// Runs `future` for at most `d`; `None` means that time ran out and the future was dropped.
pub async fn timeout<F: Future>(d: Duration, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut sleep = std::pin::pin!(sleep(d));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(out) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(out));
        }
        sleep.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// A future that ends at its deadline; dropping it takes the timer out.
#[derive(Debug)]
pub struct Sleep {
    deadline: Instant,
    timer: Option<TimerId>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        lane::with(|lane| {
            if lane.now() >= self.deadline {
                return Poll::Ready(());
            }
            let mut timers = lane.timers.borrow_mut();
            let deadline = self.deadline;
            let id = *self.timer.get_or_insert_with(|| timers.add());
            timers.set_waker(id, deadline, cx.waker());
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.timer {
            lane::try_with(|lane| lane.timers.borrow_mut().remove(id));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TimerId(u64);

/// The timers of one lane, ordered by deadline and then by creation, so that a seed replays them.
#[derive(Default)]
pub(crate) struct Timers {
    next_id: u64,
    heap: BinaryHeap<Reverse<(Instant, TimerId)>>,
    wakers: BTreeMap<TimerId, Waker>,
}

impl Timers {
    fn add(&mut self) -> TimerId {
        self.next_id += 1;
        TimerId(self.next_id)
    }

    fn set_waker(&mut self, id: TimerId, deadline: Instant, waker: &Waker) {
        if self.wakers.insert(id, waker.clone()).is_none() {
            self.heap.push(Reverse((deadline, id)));
        }
    }

    fn remove(&mut self, id: TimerId) {
        self.wakers.remove(&id);
        // Entries whose waker is gone are skipped when due; rebuild before they outweigh the rest.
        if self.heap.len() > 64 && self.heap.len() > 4 * self.wakers.len() {
            let wakers = &self.wakers;
            self.heap.retain(|Reverse((_, id))| wakers.contains_key(id));
        }
        debug_assert!(
            self.heap.len() >= self.wakers.len(),
            "each timer that somebody waits for has its deadline"
        );
    }

    /// The deadline of the earliest timer that somebody still waits for.
    pub(crate) fn next_deadline(&mut self) -> Option<Instant> {
        while let Some(&Reverse((deadline, id))) = self.heap.peek() {
            if self.wakers.contains_key(&id) {
                return Some(deadline);
            }
            self.heap.pop();
        }
        None
    }

    /// Takes one timer that is due; the caller wakes it outside the borrow.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        while let Some(&Reverse((deadline, id))) = self.heap.peek() {
            if deadline > now && self.wakers.contains_key(&id) {
                return None;
            }
            self.heap.pop();
            if let Some(waker) = self.wakers.remove(&id) {
                debug_assert!(deadline <= now, "no timer fires before its time");
                return Some(waker);
            }
        }
        None
    }
}
