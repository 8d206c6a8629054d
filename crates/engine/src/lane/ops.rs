//! The operations of one lane in flight, and the tasks that wait for them.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use super::{try_with, with};
use crate::{
    op::Op,
    reactor::{OpId, Reactor},
};

/// The operations in flight, each with the task that waits for it.
#[derive(Default)]
pub(super) struct OpTable {
    slots: Vec<OpSlot>,
    free: Vec<u32>,
}

enum OpSlot {
    Free,
    Waiting(Option<Waker>),
    Done(Op, i32),
    /// Nobody waits any more; the completion frees the slot.
    Detached,
}

impl OpTable {
    fn add(&mut self) -> OpId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(OpSlot::Free);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 operations in flight")
        });
        self.slots[index as usize] = OpSlot::Waiting(None);
        OpId(index)
    }

    /// Returns the waker to call, and the operation if nobody wants it back.
    pub(super) fn complete(
        &mut self,
        id: OpId,
        op: Op,
        result: i32,
    ) -> (Option<Waker>, Option<Op>) {
        let slot = &mut self.slots[id.0 as usize];
        match slot {
            OpSlot::Waiting(waker) => {
                let waker = waker.take();
                *slot = OpSlot::Done(op, result);
                (waker, None)
            }
            OpSlot::Detached => {
                *slot = OpSlot::Free;
                self.free.push(id.0);
                (None, Some(op))
            }
            OpSlot::Free | OpSlot::Done(..) => unreachable!("an operation completes once"),
        }
    }
}

/// Hands `op` to the reactor. Resolves to the operation and its result (a count or a negated errno).
pub(crate) fn submit(op: Op) -> Submitted {
    let cancellable = op.is_cancellable();
    with(|lane| {
        let id = lane.ops.borrow_mut().add();
        Reactor::submit(&mut **lane.reactor.borrow_mut(), id, op);
        Submitted {
            id,
            cancellable,
            taken: false,
        }
    })
}

/// An operation in flight. Dropping it detaches: the reactor finishes the operation (early, if it
/// may be cancelled) and frees what it holds.
#[derive(Debug)]
pub(crate) struct Submitted {
    id: OpId,
    cancellable: bool,
    taken: bool,
}

impl Future for Submitted {
    type Output = (Op, i32);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Op, i32)> {
        with(|lane| {
            let mut ops = lane.ops.borrow_mut();
            let slot = &mut ops.slots[self.id.0 as usize];
            // Update in place: moving an operation is the most expensive part here.
            if let OpSlot::Waiting(waker) = slot {
                *waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            match std::mem::replace(slot, OpSlot::Free) {
                OpSlot::Done(op, result) => {
                    ops.free.push(self.id.0);
                    self.taken = true;
                    Poll::Ready((op, result))
                }
                _ => unreachable!("polled after completion"),
            }
        })
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        try_with(|lane| {
            let mut ops = lane.ops.borrow_mut();
            let slot = &mut ops.slots[self.id.0 as usize];
            match std::mem::replace(slot, OpSlot::Detached) {
                OpSlot::Done(op, result) => {
                    *slot = OpSlot::Free;
                    ops.free.push(self.id.0);
                    drop(ops);
                    lane.discard(op, result);
                }
                _ if self.cancellable => Reactor::cancel(&mut **lane.reactor.borrow_mut(), self.id),
                _ => {}
            }
        });
    }
}
