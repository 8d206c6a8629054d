//! Writes that lost nexuses have left. A write in flight when its session was lost may take effect at the target at any
//! time, even after a newer write, so no write is sent until it is known that it no longer can: after a LOGICAL UNIT RESET.
//!
//! A login of the same initiator port at the same target port ends the old session (RFC 7143 §6.3.5), but not on every
//! target its work: tgt answers the login while a write of the old session is on its way to the disk. What it answers only
//! after that work is the reset. So the reset follows the login; only where the target refuses the reset, the login counts.

use engine::{Duration, Instant};

use super::{Machine, NexusId};
use crate::{
    Error,
    planted::{Bug, is_planted},
};

/// How long a lost connection must have been silent, with nothing of it leaving this machine, before the reset: by then its
/// last packet has arrived at the target or never will.
pub(in super::super) const QUIET: Duration = Duration::from_secs(1);

/// How a nexus has ended, and what became of the writes that it has left.
#[derive(Clone, Debug, Default)]
pub(super) struct Left {
    /// It takes no more requests: it is about to log out.
    is_retired: bool,
    /// When its end was noticed, and what it was.
    ended: Option<(Instant, Error)>,
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
    pub(super) fn retires(&mut self) {
        self.is_retired = true;
    }

    pub(super) fn ended(&mut self, left_writes: bool, why: Error, now: Instant) {
        if self.ended.is_none() {
            (self.ended, self.has_writes) = (Some((now, why)), left_writes);
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(super) fn reinstated(&mut self) {
        self.is_reinstated = true;
        if is_planted(Bug::LoginEndsWrites) {
            self.over();
        }
    }

    pub(super) fn over(&mut self) {
        self.settle(Fate::Over);
    }

    /// There will be no reset. Returns whether nothing has ended the writes, not even a login.
    pub(super) fn given_up(&mut self) -> bool {
        let fate = match self.is_reinstated || is_planted(Bug::GivenUpForgotten) {
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
    /// Whether requests may be sent on the nexus: it has not ended, it leads to the disk as far as we know, and the target
    /// has not asked for a logout.
    pub(in super::super) fn takes_requests(&self, nexus: NexusId) -> bool {
        let known = self.known(nexus);
        let left = &known.left;
        !left.has_ended() && !left.is_retired && !known.disk.is_open()
    }

    /// Whether it is known that it is about to log out.
    pub(in super::super) fn is_retired(&self, nexus: NexusId) -> bool {
        self.known(nexus).left.is_retired
    }

    /// Whether its end was noticed.
    pub(in super::super) fn has_ended(&self, nexus: NexusId) -> bool {
        self.known(nexus).left.has_ended()
    }

    /// What has ended it.
    pub(super) fn ended_with(&self, nexus: NexusId) -> Option<&Error> {
        let ended = self.known(nexus).left.ended.as_ref();
        ended.map(|(_, why)| why)
    }

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
        if is_planted(Bug::UnfencedForgotten) {
            return self.nexuses.iter().any(|(_, it)| it.left.is_unfenced());
        }
        self.has_unfenced
    }

    /// Whether a login has ended the session of the nexus, though perhaps not its work.
    pub(in super::super) fn is_reinstated(&self, nexus: NexusId) -> bool {
        self.known(nexus).left.is_reinstated
    }

    /// From when on a reset ends the writes that the nexus has left.
    pub(in super::super) fn can_be_ended_at(&self, nexus: NexusId) -> Option<Instant> {
        let left = &self.known(nexus).left;
        let (ended, _) = left.ended.as_ref()?;
        Some(match left.is_reinstated || is_planted(Bug::ResetAtOnce) {
            true => *ended,
            false => *ended + QUIET,
        })
    }
}
