//! A disk's view of its claim: whether there is one, whether an event may have ended it, and whether it is being
//! re-established right now.

use std::cell::{Cell, RefCell};

use engine::sync::Notify;

use crate::{Claim, Result};

/// The claim state of a disk.
#[derive(Default)]
pub(super) struct Claimed {
    pub(super) held: RefCell<Option<Held>>,
    /// A re-establishment is running; others wait for its outcome.
    establishing: Cell<bool>,
    established: Notify,
    /// The claim is being established for the first time, on one session after the other.
    pub(super) is_new: Cell<bool>,
    /// Whether a write needs FUA to be durable.
    pub(super) is_volatile: Cell<bool>,
}

/// The claim, and whether a reservation backs it.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) claim: Claim,
    pub(super) is_fenced: bool,
}

impl Claimed {
    /// Fails when the claim is lost or released.
    pub(super) fn check(&self) -> Result<()> {
        match &*self.held.borrow() {
            None => Ok(()),
            Some(held) => held.claim.check(),
        }
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
