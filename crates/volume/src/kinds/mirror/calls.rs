//! The calls that are on their way to a copy, and until when each may be. Nobody waits for a deadline of its own: whoever
//! looks from time to time finds those that have passed.
//!
//! A slow copy is not a dead one. Where many calls wait, each takes as long as all before it: as long as a copy answers them in
//! the order in which they came, its time begins anew with each answer. One that is passed by, by later ones of its kind, has
//! its own time alone, so that a copy whose reads or proofs go on while its writes hang is given up.

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
    /// What was answered last, by the kind of call.
    answered: [Cell<Option<LastAnswer>>; 2],
}

/// What a call does that moves data, or what a mirror keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallKind {
    Read,
    Write,
}

#[derive(Clone, Copy)]
struct CallLimit {
    deadline: Instant,
    limit: Duration,
    kind: Option<CallKind>,
}

/// The answers of one kind.
#[derive(Clone, Copy)]
struct LastAnswer {
    /// The latest call that has one.
    latest: u64,
    /// When the last one came.
    at: Instant,
}

impl Calls {
    /// A call begins, and is on its way until the result is dropped.
    pub(super) fn begin(&self) -> Call<'_> {
        self.begin_as(None)
    }

    /// The same for one of a kind.
    pub(super) fn begin_as(&self, kind: Option<CallKind>) -> Call<'_> {
        self.running.set(self.running.get() + 1);
        self.next.set(self.next.get() + 1);
        Call {
            calls: self,
            number: self.next.get(),
            kind,
        }
    }

    /// When the call `number` has taken too long.
    fn deadline(&self, number: u64, call: &CallLimit) -> Instant {
        let answered = call
            .kind
            .and_then(|kind| self.answered[kind as usize].get());
        match answered {
            Some(answered) if answered.latest < number => {
                call.deadline.max(answered.at + call.limit)
            }
            _ => call.deadline,
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
        let overdue = limits
            .iter()
            .find(|(number, one)| self.deadline(*number, one) <= now);
        let (number, limit) = overdue.map(|(number, one)| (number, one.limit))?;
        limits.remove(number);
        Some(limit)
    }

    /// The first deadline.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let limits = self.limits.borrow();
        let deadlines = limits
            .iter()
            .map(|(number, one)| self.deadline(number, one));
        deadlines.min()
    }
}

/// A call that is on its way.
pub(super) struct Call<'a> {
    calls: &'a Calls,
    number: u64,
    kind: Option<CallKind>,
}

impl Call<'_> {
    /// The copy has done it.
    pub(super) fn is_done(&self) {
        if let Some(kind) = self.kind {
            let answered = &self.calls.answered[kind as usize];
            let before = answered.get().map_or(0, |before| before.latest);
            answered.set(Some(LastAnswer {
                latest: before.max(self.number),
                at: time::turn_began(),
            }));
        }
    }

    /// It may take `limit` from now on.
    pub(super) fn may_take(&self, limit: Duration) {
        let deadline = time::turn_began() + limit;
        let limit = CallLimit {
            deadline,
            limit,
            kind: self.kind,
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_volume::on_lane;

    const LIMIT: Duration = Duration::from_secs(2);

    #[test]
    fn a_copy_that_answers_in_order_has_its_time_anew_with_each_answer() {
        on_lane(async {
            let calls = Calls::default();
            let all: Vec<_> = (0..3)
                .map(|_| calls.begin_as(Some(CallKind::Write)))
                .collect();
            all.iter().for_each(|call| call.may_take(LIMIT));
            let late = time::turn_began() + LIMIT;
            let after = late + Duration::from_millis(1);
            // It was answered just now.
            calls.answered[CallKind::Write as usize].set(Some(LastAnswer {
                latest: 1,
                at: late,
            }));
            assert_eq!(calls.take_overdue(after), Some(LIMIT), "it was passed by");
            assert_eq!(calls.take_overdue(after), None, "the others come after it");
            assert_eq!(calls.next_deadline(), Some(late + LIMIT));
            // Reads that go on are no answers to writes.
            let read = calls.begin_as(Some(CallKind::Read));
            read.may_take(LIMIT);
            read.is_done();
            drop(read);
            assert_eq!(calls.take_overdue(late + LIMIT), Some(LIMIT));
            all[2].is_done();
            assert_eq!(
                calls.take_overdue(after + LIMIT),
                Some(LIMIT),
                "nothing was answered for as long"
            );
        });
    }
}
