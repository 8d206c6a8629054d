//! A disk's view of its claim: whether there is one, whether an event may have ended it, and whether it is being
//! re-established right now.

use std::cell::{Cell, RefCell};

use ::mirror::key::FenceKey;
use engine::sync::Notify;

use crate::{
    Claim, Error, ErrorKind, Result,
    planted::{Bug, is_planted},
};

/// The claim state of a disk.
#[derive(Default)]
pub(super) struct Claimed {
    pub(super) held: RefCell<Option<Held>>,
    /// How it is with the fence of a mirror.
    pub(super) fence: Cell<Fenced>,
    /// A re-establishment is running; others wait for its outcome.
    establishing: Cell<bool>,
    established: Notify,
    /// The claim is being established for the first time, on one session after the other.
    pub(super) is_new: Cell<bool>,
    /// Whether a write needs FUA to be durable.
    pub(super) is_volatile: Cell<bool>,
}

/// The fence of a mirror on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Fenced {
    /// There is none, or it is being made.
    #[default]
    Not,
    /// There is none, but the user of the disk looks at it anew after a restart of the target.
    Watched,
    /// It is made, under this key.
    Made(FenceKey),
    /// It is made, but the target has restarted since: the disk may be as it was long ago, restored from a backup. What a mirror
    /// keeps on it tells; until its owner has looked, nothing is read or written. Without a key, it was only watched.
    Restarted(Option<FenceKey>),
    /// The target has forgotten it: nothing is sent until there is another one.
    Gone,
    /// Another owner has made a newer one.
    Superseded,
}

/// The claim, and whether a reservation backs it.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) claim: Claim,
    pub(super) is_fenced: bool,
}

impl Claimed {
    /// Fails when the claim is lost or released, or the fence is not there any more.
    pub(super) fn check(&self) -> Result<()> {
        let lost = match self.fence.get() {
            Fenced::Not | Fenced::Watched | Fenced::Made(_) => None,
            Fenced::Restarted(_) => Some((
                ErrorKind::Unreachable,
                "its target has restarted, so that it may be older than it was",
            )),
            Fenced::Gone => Some((ErrorKind::Unreachable, "the target has forgotten its fence")),
            Fenced::Superseded => Some((
                ErrorKind::ReservationConflict,
                "another owner of the mirror has fenced it",
            )),
        };
        if let Some((kind, why)) = lost {
            return Err(Error::new(kind, why));
        }
        match &*self.held.borrow() {
            None => Ok(()),
            Some(held) => held.claim.check(),
        }
    }

    /// The target has restarted.
    pub(super) fn restarted(&self) {
        match self.fence.get() {
            // Otherwise this would hide that bug.
            Fenced::Made(key) if !is_planted(Bug::FencedAgain) => {
                self.fence.set(Fenced::Restarted(Some(key)));
            }
            Fenced::Watched => self.fence.set(Fenced::Restarted(None)),
            _ => {}
        }
    }

    /// Its user looks at it anew: if it has no fence, nothing keeps that one from using it.
    pub(super) fn renew(&self) {
        if !self.is_fenced() {
            self.fence.set(Fenced::Watched);
        }
    }

    /// Whether a mirror has fenced it, whatever has become of that.
    pub(super) fn is_fenced(&self) -> bool {
        let fence = self.fence.get();
        !matches!(
            fence,
            Fenced::Not | Fenced::Watched | Fenced::Restarted(None)
        )
    }

    /// Whether a restart of the target, which may have set it back, ends its use.
    pub(super) fn is_watched(&self) -> bool {
        self.fence.get() != Fenced::Not
    }

    /// The claim, if there is one.
    pub(super) fn claim(&self) -> Option<Claim> {
        let held = self.held.borrow();
        held.as_ref().map(|held| held.claim.clone())
    }

    /// Waits until no other re-establishment is running, then starts one.
    pub(super) async fn begin_establishing(&self) -> Establishing<'_> {
        let free = || (!self.establishing.get()).then_some(());
        self.established.wait_for(free).await;
        self.establishing.set(true);
        Establishing(self)
    }
}

/// The exclusive right to re-establish the claim; released on drop, whatever the outcome.
pub(super) struct Establishing<'a>(&'a Claimed);

impl Drop for Establishing<'_> {
    fn drop(&mut self) {
        self.0.establishing.set(false);
        self.0.established.notify();
    }
}
