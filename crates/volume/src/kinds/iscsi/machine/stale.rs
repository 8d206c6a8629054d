//! Writes that lost nexuses have left. A write in flight when its session was lost may take effect at the target at any
//! time, even after a newer write, so no write is sent until it is known that it no longer can: after a LOGICAL UNIT RESET.
//!
//! A login of the same initiator port at the same target port ends the old session (RFC 7143 §6.3.5), but not on every
//! target its work: tgt answers the login while a write of the old session is on its way to the disk. What it answers only
//! after that work is the reset. So the reset follows the login; only where the target refuses the reset, the login counts.

use engine::{Duration, Instant};

use super::{Machine, NexusId};
use crate::planted::{Bug, is_planted};

/// How long a lost connection must have been silent, with nothing of it leaving this machine, before the reset: by then its
/// last packet has arrived at the target or never will.
pub(in super::super) const QUIET: Duration = Duration::from_secs(1);

/// How a nexus has ended, and what became of the writes that it has left.
#[derive(Clone, Debug, Default)]
pub(super) struct Left {
    /// When its end was noticed.
    ended: Option<Instant>,
    /// There were writes at the target.
    has_writes: bool,
    /// Its initiator port has logged in again at the same target port, so nothing more of its connection can arrive.
    is_reinstated: bool,
    fate: Fate,
}

/// What became of writes that a lost nexus has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    /// They may still take effect.
    #[default]
    Open,
    /// They have taken effect, or never will.
    Over,
    /// They may take effect at any time, and the target cannot be kept from it.
    Unfenced,
}

impl Left {
    pub(super) fn ended(&mut self, left_writes: bool, now: Instant) {
        if self.ended.is_none() {
            (self.ended, self.has_writes) = (Some(now), left_writes);
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(super) fn reinstated(&mut self) {
        self.is_reinstated = true;
    }

    pub(super) fn over(&mut self) {
        self.settle(Fate::Over);
    }

    /// There will be no reset. Returns whether nothing has ended the writes, not even a login.
    pub(super) fn given_up(&mut self) -> bool {
        let fate = match self.is_reinstated {
            true => Fate::Over,
            false => Fate::Unfenced,
        };
        self.settle(fate);
        self.is_unfenced()
    }

    fn settle(&mut self, fate: Fate) {
        if self.is_open() {
            self.fate = fate;
        }
    }

    fn is_open(&self) -> bool {
        self.has_ended() && self.has_writes && self.fate == Fate::Open
    }

    pub(super) fn is_unfenced(&self) -> bool {
        self.has_writes && self.fate == Fate::Unfenced
    }

    pub(super) fn check(&self) {
        assert!(
            self.has_ended() || !self.has_writes,
            "what is in flight is not left"
        );
    }
}

impl Machine {
    /// Whether the nexus is lost, and writes that were in flight may still take effect.
    pub(in super::super) fn may_still_write(&self, nexus: NexusId) -> bool {
        self.known(nexus).left.is_open() && !is_planted(Bug::ResendAtOnce)
    }

    /// Whether it has left writes that could not be ended.
    pub(in super::super) fn is_unfenced(&self, nexus: NexusId) -> bool {
        self.known(nexus).left.is_unfenced()
    }

    /// Whether any nexus has.
    pub(in super::super) fn has_unfenced(&self) -> bool {
        self.has_unfenced
    }

    /// Whether a login has ended the session of the nexus, though perhaps not its work.
    pub(in super::super) fn is_reinstated(&self, nexus: NexusId) -> bool {
        self.known(nexus).left.is_reinstated
    }

    /// From when on a reset ends the writes that the nexus has left.
    pub(in super::super) fn can_be_ended_at(&self, nexus: NexusId) -> Option<Instant> {
        let left = &self.known(nexus).left;
        let ended = left.ended?;
        Some(match left.is_reinstated {
            true => ended,
            false => ended + QUIET,
        })
    }
}
