//! The calls that are on their way to a copy, and until when each may be. Nobody waits for a deadline of its own: whoever
//! looks from time to time finds those that have passed.

use std::cell::{Cell, RefCell};

use engine::{Duration, Instant, sync::Notify, time};

use super::numbered::Numbered;

/// The calls of one copy.
#[derive(Default)]
pub(super) struct Calls {
    running: Cell<usize>,
    is_idle: Notify,
    next: Cell<u64>,
    /// Of the calls that may take only so long, and have not yet taken longer.
    limits: RefCell<Numbered<u64, CallLimit>>,
}

#[derive(Clone, Copy)]
struct CallLimit {
    deadline: Instant,
    limit: Duration,
}

impl Calls {
    /// A call begins, and is on its way until the result is dropped.
    pub(super) fn begin(&self) -> Call<'_> {
        self.running.set(self.running.get() + 1);
        self.next.set(self.next.get() + 1);
        Call {
            calls: self,
            number: self.next.get(),
        }
    }

    /// Whether none is on its way.
    pub(super) fn are_over(&self) -> bool {
        self.running.get() == 0
    }

    /// Waits until none is on its way.
    pub(super) async fn over(&self) {
        let are_over = || self.are_over().then_some(());
        self.is_idle.wait_for(are_over).await;
    }

    /// The limit of a call that has taken longer by `now`, if there is one. Each is told of once.
    pub(super) fn take_overdue(&self, now: Instant) -> Option<Duration> {
        let mut limits = self.limits.borrow_mut();
        let overdue = limits.iter().find(|(_, one)| one.deadline <= now);
        let (number, limit) = overdue.map(|(number, one)| (number, one.limit))?;
        limits.remove(number);
        Some(limit)
    }

    /// The first deadline.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let limits = self.limits.borrow();
        limits.iter().map(|(_, one)| one.deadline).min()
    }
}

/// A call that is on its way.
pub(super) struct Call<'a> {
    calls: &'a Calls,
    number: u64,
}

impl Call<'_> {
    /// It may take `limit` from now on.
    pub(super) fn may_take(&self, limit: Duration) {
        let deadline = time::turn_began() + limit;
        let limit = CallLimit { deadline, limit };
        self.calls.limits.borrow_mut().insert(self.number, limit);
    }

    /// It has an answer: from now on it may take as long as it likes.
    pub(super) fn is_answered(&self) {
        self.calls.limits.borrow_mut().remove(self.number);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.is_answered();
        self.calls.running.set(self.calls.running.get() - 1);
        self.calls.is_idle.notify();
    }
}
