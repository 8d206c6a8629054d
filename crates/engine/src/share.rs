//! Fairness between the users of a lane: what each may do between two polls of the reactor.
//!
//! Tasks work for a [`Share`]: a session, for example, or the common one. A task belongs to the
//! share it is spawned for, and so does what it spawns or asks of another lane. Work is charged in
//! bytes of memory moved, or in the equivalent time: every poll costs a little, and code that moves
//! much calls [`spend`] before each piece. Once a share has spent [`TURN_BYTES`], its tasks are
//! polled again only after the next poll of the reactor.
//!
//! So incoming work for one session waits for at most one turn's worth of each other share that has
//! work, however many commands those have open and however long they are. On a lane with a single
//! share the cost is one poll of the reactor per turn's worth.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::lane;

pub use crate::lane::{Counts, Share, TURN_BYTES};

/// How much to copy at a time between two calls of [`spend`], in bytes.
pub const PIECE_BYTES: usize = 128 << 10;

/// The counters of the current lane. Panics outside a lane.
pub fn counts() -> Counts {
    lane::with(|lane| lane.shares.counts())
}

/// Pays for a piece of work that moves `bytes` of memory or takes as long. Resolves at once, or in
/// the next turn of the current task's share. Always ready where no lane runs.
pub fn spend(bytes: usize) -> Spend {
    Spend(bytes)
}

/// Pays for a piece at once and returns true, unless the current task's share is used up: then the
/// caller has [to wait](spend) for its next turn.
pub fn try_spend(bytes: usize) -> bool {
    let paid = lane::try_with(|lane| {
        let may = !lane.shares.is_spent();
        if may {
            lane.shares.charge(bytes);
        }
        may
    });
    paid != Some(false)
}

/// Charges work that could not wait, so that the work that follows does.
pub fn charge(bytes: usize) {
    if bytes > 0 {
        lane::try_with(|lane| lane.shares.charge(bytes));
    }
}

/// See [`spend`].
#[derive(Debug)]
#[must_use = "it does nothing until it is awaited"]
pub struct Spend(usize);

impl Future for Spend {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if try_spend(self.0) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
