//! What a disk knows of the claim on it: whether there is one, whether something may have ended it,
//! and who establishes it again right now.

use std::cell::{Cell, RefCell};

use engine::sync::Notify;

use crate::{Claim, Result};

/// What a disk knows of the claim on it.
#[derive(Default)]
pub(super) struct Claimed {
    pub(super) held: RefCell<Option<Held>>,
    /// How often something happened that may have ended it: to be established again before more is
    /// sent.
    pub(super) shakes: Cell<u64>,
    /// Of these, how many had happened when what established it again began.
    pub(super) answered: Cell<u64>,
    /// Somebody establishes it right now; others wait for the outcome.
    establishing: Cell<bool>,
    established: Notify,
    /// It is being established for the first time, on one session after the other.
    pub(super) is_new: Cell<bool>,
    /// Whether a write needs FUA to last.
    pub(super) is_volatile: Cell<bool>,
}

/// The claim, and whether a reservation goes with it.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) claim: Claim,
    pub(super) is_fenced: bool,
}

impl Claimed {
    /// Refuses when the claim is lost or was given up.
    pub(super) fn check(&self) -> Result<()> {
        match &*self.held.borrow() {
            None => Ok(()),
            Some(held) => held.claim.check(),
        }
    }

    /// Something happened that may have ended the claim. Says whether there is one.
    pub(super) fn shake(&self) -> bool {
        let is_claimed = self.held.borrow().is_some();
        if is_claimed {
            self.shakes.set(self.shakes.get() + 1);
        }
        is_claimed
    }

    /// The claim, if there is one.
    pub(super) fn claim(&self) -> Option<Claim> {
        let held = self.held.borrow();
        held.as_ref().map(|held| held.claim.clone())
    }

    /// Whether it has to be established, for the first time or again.
    pub(super) fn is_unsettled(&self) -> bool {
        self.is_shaken() || self.is_new.get()
    }

    /// Whether it has to be established again.
    pub(super) fn is_shaken(&self) -> bool {
        self.shakes.get() != self.answered.get()
    }

    /// The turn to establish it, once nobody else is at it.
    pub(super) async fn turn(&self) -> Turn<'_> {
        let free = || (!self.establishing.get()).then_some(());
        self.established.wait_for(free).await;
        self.establishing.set(true);
        Turn(self)
    }
}

/// The one attempt to establish the claim again; however it ends, others may try.
pub(super) struct Turn<'a>(&'a Claimed);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.establishing.set(false);
        self.0.established.notify();
    }
}
