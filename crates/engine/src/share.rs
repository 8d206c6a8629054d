//! What each user of a lane may do between two looks at the reactor.
//!
//! Tasks work for a [`Share`]: a session, say, or what all have in common. A task belongs to the
//! share it is spawned for; what it spawns, and what it asks of another lane, belongs there too.
//! Work is paid for in bytes of memory that it moves, or what takes as long: every poll costs a
//! little, and whoever moves much calls [`spend`] before each piece. A share that has spent
//! [`TURN_BYTES`] has had its turn: its tasks are polled again after the reactor has been looked at.
//!
//! So what comes in for one session waits for a turn's worth of each other share that has work, and
//! for no more, however many commands those have open and however long these are. A lane with one
//! share pays a look at the reactor for each turn's worth.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::lane;

/// What a share may spend between two looks at the reactor, in bytes moved: about 100 µs. It is the
/// last piece that may exceed it. Shorter turns would send the answers of a deep queue in more calls.
pub const TURN_BYTES: usize = 512 << 10;
/// The length of a piece where memory is copied, in bytes.
pub const PIECE_BYTES: usize = 128 << 10;
/// What a poll costs by itself, in bytes moved.
const POLL_BYTES: usize = 2 << 10;

/// Names a user of lanes. The number is the same on all lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share(u64);

impl Share {
    /// What belongs to no user alone.
    pub const COMMON: Share = Share(0);

    /// The share of the user with this number.
    pub const fn of(number: u64) -> Share {
        Share(number + 1)
    }

    /// The one that the current task works for; [`Share::COMMON`] outside of lanes.
    pub(crate) fn current() -> Share {
        lane::try_with(|lane| lane.shares.current()).unwrap_or(Share::COMMON)
    }
}

/// What a lane has counted so far, without a clock.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Looks at the reactor, each after a turn.
    pub looks: u64,
    /// Polls of tasks: each time one was woken, at most.
    pub polls: u64,
    /// The most that one share has spent between two looks, in bytes moved.
    pub spent_most_bytes: usize,
}

/// What the current lane has counted. Panics outside a lane.
pub fn counts() -> Counts {
    lane::with(|lane| lane.shares.counts())
}

/// What has been spent on one lane since its reactor was last looked at.
pub(crate) struct Shares {
    current: Cell<Share>,
    /// By the current one.
    spent_bytes: Cell<usize>,
    /// By others that have worked in this turn, by their numbers: few, as a turn polls only so many
    /// tasks.
    others: RefCell<Vec<(u64, usize)>>,
    looks: Cell<u64>,
    polls: Cell<u64>,
    spent_most_bytes: Cell<usize>,
}

impl Shares {
    pub(crate) fn new() -> Self {
        Shares {
            current: Cell::new(Share::COMMON),
            spent_bytes: Cell::new(0),
            others: RefCell::default(),
            looks: Cell::new(0),
            polls: Cell::new(0),
            spent_most_bytes: Cell::new(0),
        }
    }

    pub(crate) fn current(&self) -> Share {
        self.current.get()
    }

    fn counts(&self) -> Counts {
        Counts {
            looks: self.looks.get(),
            polls: self.polls.get(),
            spent_most_bytes: self.spent_most_bytes.get().max(self.spent_bytes.get()),
        }
    }

    /// Works for `share` from now on.
    pub(crate) fn enter(&self, share: Share) {
        let before = self.current.get();
        if before.0 == share.0 {
            return;
        }
        self.note_most();
        let mut others = self.others.borrow_mut();
        let mut spent = 0;
        let mut index = 0;
        while index < others.len() {
            if others[index].0 == share.0 {
                spent = others.swap_remove(index).1;
                break;
            }
            index += 1;
        }
        others.push((before.0, self.spent_bytes.get()));
        self.spent_bytes.set(spent);
        self.current.set(share);
    }

    /// Whether the current one has had its turn.
    pub(crate) fn is_spent(&self) -> bool {
        self.spent_bytes.get() >= TURN_BYTES
    }

    pub(crate) fn charge_poll(&self) {
        self.polls.set(self.polls.get() + 1);
        self.spent_bytes.set(self.spent_bytes.get() + POLL_BYTES);
    }

    fn charge(&self, bytes: usize) {
        self.spent_bytes
            .set(self.spent_bytes.get().saturating_add(bytes));
    }

    fn note_most(&self) {
        if self.spent_bytes.get() > self.spent_most_bytes.get() {
            self.spent_most_bytes.set(self.spent_bytes.get());
        }
    }

    /// The reactor has been looked at.
    pub(crate) fn begin_turn(&self) {
        self.looks.set(self.looks.get() + 1);
        self.note_most();
        self.spent_bytes.set(0);
        self.others.borrow_mut().clear();
    }
}

/// Pays for a piece of work that moves `bytes` of memory or takes as long. Ends at once, or when the
/// current task's share has its next turn; ready where no lane runs.
pub fn spend(bytes: usize) -> Spend {
    Spend(bytes)
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
        let paid = lane::try_with(|lane| {
            let may = !lane.shares.is_spent();
            if may {
                lane.shares.charge(self.0);
            }
            may
        });
        if paid != Some(false) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
