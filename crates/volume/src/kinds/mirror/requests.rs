//! The requests that wait for their answers, and until when they may.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use ::mirror::OpId;
use engine::{Instant, Payload};

use crate::{Error, Result};

/// By their names, which are in the order in which they came.
#[derive(Default)]
pub(super) struct RequestTable(RefCell<BTreeMap<OpId, Request>>);

struct Request {
    /// `None` once it was told of.
    deadline: Option<Instant>,
    answer: Option<Result<Payload>>,
    waker: Option<Waker>,
}

impl Request {
    fn put(&mut self, answer: Result<Payload>) {
        self.answer.get_or_insert(answer);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl RequestTable {
    /// `id` waits from now on, until `deadline`. Returns what resolves to its answer.
    pub(super) fn begin(&self, id: OpId, deadline: Instant) -> Waiting<'_> {
        let request = Request {
            deadline: Some(deadline),
            answer: None,
            waker: None,
        };
        self.0.borrow_mut().insert(id, request);
        Waiting { requests: self, id }
    }

    /// `id` is answered, if anybody still waits for it.
    pub(super) fn answer(&self, id: OpId, answer: Result<Payload>) {
        if let Some(request) = self.0.borrow_mut().get_mut(&id) {
            request.put(answer);
        }
    }

    /// All have failed.
    pub(super) fn fail_all(&self, why: &Error) {
        for request in self.0.borrow_mut().values_mut() {
            request.put(Err(why.clone()));
        }
    }

    /// Those that had no answer at their deadlines, by `now`. Each is told of once.
    pub(super) fn take_overdue(&self, now: Instant) -> Vec<OpId> {
        let mut requests = self.0.borrow_mut();
        let unanswered = requests.iter_mut().filter(|(_, one)| one.answer.is_none());
        let is_overdue = |deadline: &mut Instant| *deadline <= now;
        let overdue =
            unanswered.filter_map(|(id, one)| one.deadline.take_if(is_overdue).map(|_| *id));
        overdue.collect()
    }

    /// The first deadline of those that have no answer.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let requests = self.0.borrow();
        let unanswered = requests.values().filter(|one| one.answer.is_none());
        unanswered.filter_map(|one| one.deadline).next()
    }
}

/// Resolves to the answer of a request. When it is dropped, nobody waits for that any more.
pub(super) struct Waiting<'a> {
    requests: &'a RequestTable,
    id: OpId,
}

impl Future for Waiting<'_> {
    type Output = Result<Payload>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Payload>> {
        let mut requests = self.requests.0.borrow_mut();
        let request = requests.get_mut(&self.id).expect("it waits");
        match request.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                request.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.requests.0.borrow_mut().remove(&self.id);
    }
}
