//! Connections before login, by how far they have come, and which of them makes room for another.
//!
//! Nobody can tell the right initiator from a crowd that pretends to be it until it has proved itself; but it goes on as
//! soon as it is answered, and a crowd that wants to hold places must wait in them. So connections stand in as many queues
//! as there are [`Standing`]s: each whole message that the peer sends takes it to the end of another one. Of those that have
//! failed, one leaves first; else one of the longest queue, of which the first half has waited longest. So whoever
//! goes on soon is never the one, wherever the crowd waits, and a crowd that waits everywhere has only a part of the
//! places in each queue. Which of that half leaves is left to chance: a slow peer that loses its place may well keep it
//! the next time.
//!
//! Who waits for us cannot go on. Of those, the last to come leaves first: the first is next to have its turn.

use std::collections::{BTreeMap, BTreeSet};

use crate::peer::Peer;

/// Whole messages that count: more than a login or a handshake needs, so that nobody stays by saying more.
const STEPS_MAX: u8 = 12;
/// Of a queue, at most so many are looked at to choose one.
const CHOICE_MAX: usize = 1024;

/// What a connection before login has shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Progress {
    /// It has failed to prove itself, and waits for the answer.
    Failed,
    /// Nothing.
    Unproven,
    /// We have signed something for it (TLS), which takes us much time.
    Signed,
    /// It has proved who it is, and not asked for anything yet.
    Proven,
}

/// How far a connection before login has come; of two queues of one length, the lower standing loses one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Standing {
    pub(super) progress: Progress,
    pub(super) known_initiator: bool,
    steps: u8,
    awaits_us: bool,
}

impl Standing {
    /// It has only connected.
    pub(super) const ARRIVED: Standing = Standing {
        progress: Progress::Unproven,
        known_initiator: false,
        steps: 0,
        awaits_us: false,
    };

    /// Its peer has sent another whole message.
    pub(super) fn step(&mut self) {
        self.steps = STEPS_MAX.min(self.steps + 1);
    }

    /// Whether it waits for us from now on, or for its peer.
    pub(super) fn set_awaits_us(&mut self, awaits_us: bool) {
        self.awaits_us = awaits_us;
    }

    /// The place in its queue of what joins it as the `number`th.
    fn place(self, number: u64) -> u64 {
        match self.awaits_us {
            true => u64::MAX - number,
            false => number,
        }
    }
}

/// A connection in its queue; the least has waited longest, or came last for what we do one after the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Seat {
    standing: Standing,
    place: u64,
    pub(super) id: u64,
    pub(super) peer: Peer,
}

impl Seat {
    /// The seat of a connection that has this standing since event `number`.
    pub(super) fn new(standing: Standing, number: u64, id: u64, peer: Peer) -> Seat {
        Seat {
            standing,
            place: standing.place(number),
            id,
            peer,
        }
    }
}

/// Seats, those of each standing in a queue of their own.
#[derive(Debug, Default)]
pub(super) struct Seats {
    queues: BTreeMap<Standing, BTreeSet<Seat>>,
    len: usize,
}

impl Seats {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn insert(&mut self, seat: Seat) {
        let is_new = self.queues.entry(seat.standing).or_default().insert(seat);
        assert!(is_new, "a connection has one seat");
        self.len += 1;
    }

    pub(super) fn remove(&mut self, seat: Seat) {
        let queue = self.queues.get_mut(&seat.standing);
        let queue = queue.expect("its standing has a queue");
        assert!(queue.remove(&seat), "it sits there");
        if queue.is_empty() {
            self.queues.remove(&seat.standing);
        }
        self.len -= 1;
    }

    /// The queue that loses one next.
    fn queue(&self) -> Option<&BTreeSet<Seat>> {
        let (lowest, failed) = self.queues.first_key_value()?;
        if lowest.progress == Progress::Failed {
            return Some(failed);
        }
        // The last of equals in this order is the lowest.
        self.queues.values().rev().max_by_key(|queue| queue.len())
    }

    /// The first of the queue that loses one next.
    pub(super) fn first(&self) -> Option<Seat> {
        self.queue()?.first().copied()
    }

    /// The one that leaves next: of the first half of its queue, the one that `chance` hits.
    pub(super) fn choose(&self, chance: u64) -> Option<Seat> {
        let queue = self.queue()?;
        let half = queue.len().div_ceil(2).min(CHOICE_MAX);
        queue.iter().nth((chance % half as u64) as usize).copied()
    }
}
