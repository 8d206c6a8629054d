//! What each user of a lane may do between two looks at the reactor.
//!
//! Tasks work for a [`Share`]: a session, say, or what all have in common. A task belongs to the
//! share it is spawned for; what it spawns, and what it asks of another lane, belongs there too.
//! Work is paid for in bytes of memory that it moves, or what takes as long: every poll costs a
//! little, and code that moves much calls [`spend`] before each piece. A share that has spent
//! [`TURN_BYTES`] has had its turn: its tasks are polled again after the reactor has been looked at.
//!
//! So what comes in for one session waits for a turn's worth of each other share that has work, and
//! for no more, however many commands those have open and however long these are. A lane with one
//! share pays a look at the reactor for each turn's worth.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::lane;

pub use crate::lane::{Counts, Share, TURN_BYTES};

/// The length of a piece where memory is copied, in bytes.
pub const PIECE_BYTES: usize = 128 << 10;

/// What the current lane has counted. Panics outside a lane.
pub fn counts() -> Counts {
    lane::with(|lane| lane.shares.counts())
}

/// Pays for a piece of work that moves `bytes` of memory or takes as long. Ends at once, or when the
/// current task's share has its next turn; ready where no lane runs.
pub fn spend(bytes: usize) -> Spend {
    Spend(bytes)
}

/// Pays for such a piece at once, unless the current task's share has had its turn: then it is
/// [to wait](spend) for the next.
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

/// Counts work that could not wait, so that what follows does.
pub fn charge(bytes: usize) {
    lane::try_with(|lane| lane.shares.charge(bytes));
}

/// See [`spend`].
#[derive(Debug)]
#[must_use = "nothing is paid for until it is awaited"]
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
