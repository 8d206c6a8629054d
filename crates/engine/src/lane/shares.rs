//! What each share has spent on one lane since the reactor was last polled; [`crate::share`]
//! explains what that is for.

use std::cell::{Cell, RefCell};

use super::try_with;

/// What a share may spend between two polls of the reactor, in bytes moved: about 100 µs. Only its
/// last piece may exceed it. Shorter turns would send the answers of a deep queue in more calls.
pub const TURN_BYTES: usize = 512 << 10;
/// What all shares together may spend between two polls of the reactor, in bytes moved: about 800 µs. Where so many have
/// work that they would exceed it, each has a shorter turn.
const TURNS_BYTES: usize = 8 * TURN_BYTES;
/// The shortest turn of a share, in bytes moved.
const TURN_BYTES_MIN: usize = 64 << 10;
/// The fixed cost of polling a task, in bytes moved.
const POLL_BYTES: usize = 2 << 10;

/// Identifies a user of lanes; the same on all lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share(u64);

impl Share {
    /// Work that belongs to no single user.
    pub const COMMON: Share = Share(0);

    /// The share of the user with this number.
    pub const fn of(number: u64) -> Share {
        Share(number + 1)
    }

    /// The share that the current task works for; [`Share::COMMON`] outside of lanes.
    pub fn current() -> Share {
        try_with(|lane| lane.shares.current()).unwrap_or(Share::COMMON)
    }
}

/// What a lane has counted so far, without reading a clock.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Polls of the reactor, one after each turn.
    pub looks: u64,
    /// Polls of tasks: at most one per wake-up.
    pub polls: u64,
    /// The most that one share has spent between two polls of the reactor, in bytes moved.
    pub spent_most_bytes: usize,
    /// What all shares have spent, in bytes moved.
    pub spent_bytes: u64,
}

/// What has been spent on one lane since its reactor was last polled.
pub(crate) struct Shares {
    current: Cell<Share>,
    /// Spent by the current share.
    spent_bytes: Cell<usize>,
    /// Spent by other shares in this turn, by number. The list is short, as a turn polls a bounded
    /// number of tasks.
    others: RefCell<Vec<(u64, usize)>>,
    /// What each share may spend in this turn.
    turn_bytes: Cell<usize>,
    looks: Cell<u64>,
    polls: Cell<u64>,
    spent_most_bytes: Cell<usize>,
    /// Spent in earlier turns.
    spent_before_bytes: Cell<u64>,
}

impl Shares {
    pub(crate) fn new() -> Self {
        Shares {
            current: Cell::new(Share::COMMON),
            spent_bytes: Cell::new(0),
            others: RefCell::default(),
            turn_bytes: Cell::new(TURN_BYTES),
            looks: Cell::new(0),
            polls: Cell::new(0),
            spent_most_bytes: Cell::new(0),
            spent_before_bytes: Cell::new(0),
        }
    }

    pub(crate) fn current(&self) -> Share {
        self.current.get()
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            looks: self.looks.get(),
            polls: self.polls.get(),
            spent_most_bytes: self.spent_most_bytes.get().max(self.spent_bytes.get()),
            spent_bytes: self.spent_before_bytes.get() + self.spent_in_turn_bytes(),
        }
    }

    /// Charges `share` from now on.
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

    /// Whether the current share has used up its turn.
    pub(crate) fn is_spent(&self) -> bool {
        self.spent_bytes.get() >= self.turn_bytes.get()
    }

    pub(crate) fn charge_poll(&self) {
        self.polls.set(self.polls.get() + 1);
        self.spent_bytes.set(self.spent_bytes.get() + POLL_BYTES);
    }

    pub(crate) fn charge(&self, bytes: usize) {
        self.spent_bytes
            .set(self.spent_bytes.get().saturating_add(bytes));
    }

    fn note_most(&self) {
        if self.spent_bytes.get() > self.spent_most_bytes.get() {
            self.spent_most_bytes.set(self.spent_bytes.get());
        }
    }

    /// What all shares have spent since the reactor was last polled.
    fn spent_in_turn_bytes(&self) -> u64 {
        let others = self.others.borrow();
        let others: u64 = others.iter().map(|(_, spent)| *spent as u64).sum();
        others + self.spent_bytes.get() as u64
    }

    /// The reactor has been polled: a new turn begins. It is as long for each share as the number of those that had work
    /// in the last one allows.
    pub(crate) fn begin_turn(&self) {
        self.looks.set(self.looks.get() + 1);
        self.note_most();
        let before = self.spent_before_bytes.get();
        self.spent_before_bytes
            .set(before + self.spent_in_turn_bytes());
        let others = self.others.borrow();
        let busy = 1 + others.iter().filter(|(_, spent)| *spent > 0).count();
        drop(others);
        let turn_bytes = (TURNS_BYTES / busy).clamp(TURN_BYTES_MIN, TURN_BYTES);
        self.turn_bytes.set(turn_bytes);
        self.spent_bytes.set(0);
        self.others.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much one of `count` shares may spend in a turn, if all of them had work in the one before.
    fn turn_of_one_of(count: u64) -> usize {
        let shares = Shares::new();
        for n in 0..count {
            shares.enter(Share::of(n));
            shares.charge(1);
        }
        shares.begin_turn();
        shares.enter(Share::of(0));
        let mut spent = 0;
        while !shares.is_spent() {
            shares.charge(1 << 10);
            spent += 1 << 10;
        }
        spent
    }

    #[test]
    fn the_more_shares_have_work_the_shorter_are_their_turns() {
        assert_eq!(turn_of_one_of(1), TURN_BYTES);
        assert_eq!(turn_of_one_of(8), TURN_BYTES);
        assert_eq!(turn_of_one_of(16), TURN_BYTES / 2);
        assert_eq!(turn_of_one_of(1000), TURN_BYTES_MIN);
    }

    #[test]
    fn all_that_was_spent_is_counted() {
        let shares = Shares::new();
        shares.charge(1);
        shares.enter(Share::of(1));
        shares.charge(10);
        shares.begin_turn();
        shares.charge(100);
        assert_eq!(shares.counts().spent_bytes, 111);
        assert_eq!(shares.counts().spent_most_bytes, 100);
    }
}
