//! Time as the lane sees it: the current time, sleeping, and timeouts.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

pub use std::time::Duration;

pub use crate::instant::Instant;
use crate::{
    clock,
    lane::{self, LaneInner, TimerId},
    reactor::Reactor,
};

/// `d` as people read it in a message: its first three digits.
pub fn brief(d: Duration) -> Duration {
    let ns = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let mut unit = 1;
    while ns / unit >= 1000 {
        unit *= 10;
    }
    Duration::from_nanos(ns.saturating_add(unit / 2) / unit * unit)
}

/// The current time of the lane. Panics outside a lane.
pub fn now() -> Instant {
    lane::with(|lane| lane.now())
}

/// When the lane's current turn began, which is when its present work had arrived. Needs no clock
/// read. Panics outside a lane.
pub fn turn_began() -> Instant {
    lane::with(LaneInner::turn_began)
}

/// The last clock reading of the lane: from the start of its turn, or later if something in the
/// turn asked for the time. Like [`turn_began`] it needs no clock read. Panics outside a lane.
pub fn last_known() -> Instant {
    lane::with(LaneInner::last_known)
}

/// The time of day by the system's clock, which may be set at any time, as the time since 1970-01-01 00:00 UTC. Also
/// outside a lane.
pub fn since_unix_epoch() -> Duration {
    lane::try_with(|lane| lane.reactor().since_unix_epoch()).unwrap_or_else(clock::since_unix_epoch)
}

/// Resolves after `d`.
pub fn sleep(d: Duration) -> Sleep {
    sleep_until(now() + d)
}

/// Resolves at `deadline`, or at once if that is past.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep {
        deadline,
        timer: None,
        is_exact: false,
    }
}

/// Runs `future` for at most `d`; `None` means that the time ran out and the future was dropped.
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

/// Runs `future` until `at` at most, if there is such a time; `None` means that it came and the future was dropped.
pub async fn before<F: Future>(at: Option<Instant>, future: F) -> Option<F::Output> {
    match at {
        Some(at) => timeout(at.since(now()), future).await,
        None => Some(future.await),
    }
}

/// A future that resolves at its deadline. Dropping it removes the timer.
#[derive(Debug)]
pub struct Sleep {
    deadline: Instant,
    timer: Option<TimerId>,
    is_exact: bool,
}

impl Sleep {
    /// The same, but on an idle lane it does not end later than its deadline by the time that a thread takes to wake
    /// up: the lane wakes up some 100 µs early, and spins. That takes CPU time, so it is for delays that are measured.
    #[must_use]
    pub fn exactly(mut self) -> Sleep {
        self.is_exact = true;
        self
    }
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
            timers.set_waker((deadline, id, self.is_exact), cx.waker());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_in_a_message_is_short() {
        for (ns, shown) in [
            (0, "0ns"),
            (999, "999ns"),
            (4_999_999_728, "5s"),
            (1_234_567, "1.23ms"),
            (999_600, "1ms"),
            (90_000_000_000, "90s"),
        ] {
            let d = brief(Duration::from_nanos(ns));
            assert_eq!(format!("{d:?}"), shown);
        }
        brief(Duration::MAX);
    }
}
