//! The lane's memory for unsolicited data. Where there are others on its lane, a nexus may hold no more of it than it
//! leaves free: one alone holds up to a half, and whoever comes next finds room. A nexus that has the lane for itself may
//! hold all of it.

use std::{cell::Cell, rc::Rc};

use engine::sync::{Budget, Permit};

/// The memory of a lane.
pub(crate) struct UnsolicitedPool {
    budget: Rc<Budget>,
    /// How many nexuses have a share of it.
    shares: Cell<usize>,
}

/// What one nexus may hold of it.
pub(super) struct UnsolicitedShare {
    pool: Rc<UnsolicitedPool>,
    held_bytes: Rc<Cell<usize>>,
}

/// A part of a share, returned on drop.
#[derive(Debug)]
pub(super) struct UnsolicitedPermit {
    permit: Permit,
    held_bytes: Rc<Cell<usize>>,
}

/// Why a share has no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoRoom {
    /// It would not even if nobody else held any memory.
    Share,
    /// Others hold the memory.
    Others,
}

impl UnsolicitedPool {
    pub(super) fn new(total_bytes: usize) -> Rc<UnsolicitedPool> {
        Rc::new(UnsolicitedPool {
            budget: Budget::new(total_bytes),
            shares: Cell::new(0),
        })
    }

    /// The share of one more nexus.
    pub(super) fn share(self: &Rc<Self>) -> UnsolicitedShare {
        self.shares.set(self.shares.get() + 1);
        UnsolicitedShare {
            pool: self.clone(),
            held_bytes: Rc::default(),
        }
    }

    /// How many bytes are free.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.budget.left()
    }
}

impl UnsolicitedShare {
    /// Takes `bytes`, if there is room.
    pub(super) fn try_take(&self, bytes: usize) -> Result<UnsolicitedPermit, NoRoom> {
        let held = self.held_bytes.get() + bytes;
        let most = |left: usize| match self.pool.shares.get() {
            1 => self.held_bytes.get() + left,
            // What it would hold must not exceed what is left then.
            _ => (self.held_bytes.get() + left) / 2,
        };
        let budget = &self.pool.budget;
        // Nothing fits always, also where a nexus took more while it was alone.
        if bytes > 0 && held > most(budget.total() - self.held_bytes.get()) {
            return Err(NoRoom::Share);
        }
        if bytes > 0 && held > most(budget.left()) {
            return Err(NoRoom::Others);
        }
        let permit = budget.try_take(bytes).ok_or(NoRoom::Others)?;
        self.held_bytes.set(held);
        Ok(UnsolicitedPermit {
            permit,
            held_bytes: self.held_bytes.clone(),
        })
    }
}

impl Drop for UnsolicitedShare {
    fn drop(&mut self) {
        self.pool.shares.set(self.pool.shares.get() - 1);
    }
}

impl UnsolicitedPermit {
    /// The amount it holds, in bytes.
    pub(super) fn amount(&self) -> usize {
        self.permit.amount()
    }
}

impl Drop for UnsolicitedPermit {
    fn drop(&mut self) {
        self.held_bytes.set(self.held_bytes.get() - self.amount());
    }
}
