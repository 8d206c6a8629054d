//! Whose the disk is: the claim of a stripe's owner or the fence of a mirror's, and what may have ended it. An owner that has
//! lost its fence sends nothing more. It never makes the same fence again: the copy is fenced anew, under another key.
//!
//! ```text
//!            watched                     restarted
//!  free ───────────────► watched ───────────────────► stale: looked at anew by its owner
//!    │ fence begins         ▲                            ▲
//!    ▼                      │ looked at                  │ restarted
//!  being fenced ────────────┴──────────────────────► fenced ──► gone, superseded
//! ```

use ::mirror::key::FenceKey;

use super::Machine;
use crate::{
    Error, ErrorKind, Result,
    planted::{Bug, is_planted},
};

/// The fence of a mirror on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(in super::super) enum Fence {
    /// There is none, or it is being made.
    #[default]
    None,
    /// There is none, but the user of the disk looks at it anew after a restart of the target.
    Watched,
    /// It is made, under this key.
    Made(FenceKey),
    /// It is made, but the target has restarted since: the disk may be as it was long ago, restored from a backup. What a mirror
    /// keeps on it tells; until its owner has looked, nothing is read or written. Without a key, it was only watched.
    Stale(Option<FenceKey>),
    /// The target has forgotten it: nothing is sent until there is another one.
    Gone,
    /// Another owner has made a newer one.
    Superseded,
}

/// What has happened to the claim or the fence.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum OwnershipEvent {
    /// The disk is being claimed, on one session after the other: other lanes send nothing by themselves.
    ClaimBegins,
    /// It is claimed on the first one, and a reservation backs the claim or not.
    Claimed { is_reserved: bool },
    /// It is claimed on all of them, or has not been claimed.
    ClaimEnds,
    /// A fence is being made, by the key of which sessions are taken in afterwards.
    FenceBegins,
    /// It is made, or stands still although the target has restarted.
    Fenced(FenceKey),
    /// The target has forgotten it.
    FenceGone,
    /// Another owner has made a newer one.
    FenceSuperseded,
    /// The owner looks at the disk after a restart of the target, and begins to use it, or goes on.
    Looked,
    /// The target may have been started again, and has lost nothing that it had acknowledged.
    StartedAgain,
}

/// The claim and the fence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ownership {
    is_claimed: bool,
    is_reserved: bool,
    is_being_claimed: bool,
    fence: Fence,
}

impl Ownership {
    pub(super) fn tell(&mut self, event: OwnershipEvent) {
        match event {
            OwnershipEvent::ClaimBegins => self.is_being_claimed = true,
            OwnershipEvent::Claimed { is_reserved } => {
                (self.is_claimed, self.is_reserved) = (true, is_reserved);
            }
            OwnershipEvent::ClaimEnds => self.is_being_claimed = false,
            OwnershipEvent::FenceBegins => {
                (self.is_claimed, self.fence) = (true, Fence::None);
            }
            OwnershipEvent::Fenced(key) => {
                (self.is_claimed, self.fence) = (true, Fence::Made(key));
            }
            OwnershipEvent::FenceGone => self.fence = Fence::Gone,
            OwnershipEvent::FenceSuperseded => self.fence = Fence::Superseded,
            OwnershipEvent::Looked if self.is_fenced() => {}
            OwnershipEvent::Looked => self.fence = Fence::Watched,
            OwnershipEvent::StartedAgain => self.restarted(),
        }
    }

    /// The target has restarted.
    pub(super) fn restarted(&mut self) {
        match self.fence {
            // Otherwise this would hide that bug.
            Fence::Made(key) if !is_planted(Bug::FencedAgain) => {
                self.fence = Fence::Stale(Some(key));
            }
            Fence::Watched => self.fence = Fence::Stale(None),
            _ => {}
        }
    }

    /// Whether there is something that an event may have ended.
    pub(super) fn is_claimed(self) -> bool {
        self.is_claimed
    }

    /// Whether a mirror has fenced it, whatever has become of that.
    fn is_fenced(self) -> bool {
        !matches!(
            self.fence,
            Fence::None | Fence::Watched | Fence::Stale(None)
        )
    }

    pub(super) fn check(self) {
        assert!(
            self.is_claimed || !self.is_reserved && !self.is_fenced(),
            "only its owner has reserved or fenced it"
        );
    }
}

impl Machine {
    /// Refuses everything while the fence may not be there any more, or the disk may be older than it was.
    ///
    /// # Errors
    /// `Unreachable` when the copy has to be fenced or looked at anew, `ReservationConflict` when it has another owner.
    pub(in super::super) fn check_fence(&self) -> Result<()> {
        let (kind, why) = match self.ownership.fence {
            Fence::None | Fence::Watched | Fence::Made(_) => return Ok(()),
            Fence::Stale(_) => (
                ErrorKind::Unreachable,
                "its target has restarted, so that it may be older than it was",
            ),
            Fence::Gone => (ErrorKind::Unreachable, "the target has forgotten its fence"),
            Fence::Superseded => (
                ErrorKind::ReservationConflict,
                "another owner of the mirror has fenced it",
            ),
        };
        Err(Error::new(kind, why))
    }

    /// The key of the fence that a new session is taken into.
    pub(in super::super) fn fence_key(&self) -> Option<FenceKey> {
        match self.ownership.fence {
            Fence::Made(key) => Some(key),
            Fence::Stale(key) => key,
            _ => None,
        }
    }

    /// Whether a mirror has fenced it, whatever has become of that.
    pub(in super::super) fn is_fenced(&self) -> bool {
        self.ownership.is_fenced()
    }

    /// Whether a restart of the target, which may have set it back, ends its use.
    pub(in super::super) fn is_watched(&self) -> bool {
        self.ownership.fence != Fence::None
    }

    /// Whether a reservation backs the claim.
    pub(in super::super) fn is_reserved(&self) -> bool {
        self.ownership.is_reserved
    }

    /// Whether the disk is being claimed.
    pub(in super::super) fn is_being_claimed(&self) -> bool {
        self.ownership.is_being_claimed
    }
}
