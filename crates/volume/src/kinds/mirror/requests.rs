//! The requests that wait for their answers, and until when they may.
//!
//! A request drives the commands that it leads to at once, so that what ends at a copy needs no task of its own to come to the one
//! who waits for it. What is still under way when nobody waits any more goes on as a task.

use std::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use ::mirror::OpId;
use engine::{Instant, LaneFuture, Payload, task};
use smallvec::SmallVec;

use super::numbered::Numbered;
use crate::{Error, Result};

/// Commands at copies.
pub(super) type RequestCommands = SmallVec<[LaneFuture<'static, ()>; 2]>;

/// By their names, which are in the order in which they came.
#[derive(Default)]
pub(super) struct RequestTable(RefCell<Numbered<OpId, Request>>);

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
        Waiting {
            requests: self,
            id,
            commands: RequestCommands::new(),
        }
    }

    /// `id` is answered, if anybody still waits for it.
    pub(super) fn answer(&self, id: OpId, answer: Result<Payload>) {
        if let Some(request) = self.0.borrow_mut().get_mut(id) {
            request.put(answer);
        }
    }

    /// Nobody is to be woken by the answer of `id`.
    fn forget_waker(&self, id: OpId) {
        let waker = self.0.borrow_mut().get_mut(id).map(|one| one.waker.take());
        drop(waker);
    }

    /// All have failed.
    pub(super) fn fail_all(&self, why: &Error) {
        for (_, request) in self.0.borrow_mut().iter_mut() {
            request.put(Err(why.clone()));
        }
    }

    /// Those that had no answer at their deadlines, by `now`. Each is told of once.
    pub(super) fn take_overdue(&self, now: Instant) -> Vec<OpId> {
        let mut requests = self.0.borrow_mut();
        let unanswered = requests.iter_mut().filter(|(_, one)| one.answer.is_none());
        let is_overdue = |deadline: &mut Instant| *deadline <= now;
        let overdue =
            unanswered.filter_map(|(id, one)| one.deadline.take_if(is_overdue).map(|_| id));
        overdue.collect()
    }

    /// The first deadline of those that have no answer.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let requests = self.0.borrow();
        let unanswered = requests.iter().filter(|(_, one)| one.answer.is_none());
        unanswered.filter_map(|(_, one)| one.deadline).next()
    }
}

/// Resolves to the answer of a request. When it is dropped, nobody waits for that any more.
pub(super) struct Waiting<'a> {
    requests: &'a RequestTable,
    id: OpId,
    /// What the request has led to, and has not ended.
    commands: RequestCommands,
}

impl Waiting<'_> {
    /// Drives `commands` meanwhile.
    pub(super) fn with(mut self, commands: RequestCommands) -> Self {
        self.commands = commands;
        self
    }
}

impl Future for Waiting<'_> {
    type Output = Result<Payload>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Payload>> {
        let this = &mut *self;
        // An answer that comes of its own commands is found below.
        this.requests.forget_waker(this.id);
        this.commands
            .retain(|command| Pin::new(command).poll(cx).is_pending());
        let mut requests = this.requests.0.borrow_mut();
        let request = requests.get_mut(this.id).expect("it waits");
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
        self.requests.0.borrow_mut().remove(self.id);
        for command in self.commands.drain(..) {
            task::spawn(command);
        }
    }
}
