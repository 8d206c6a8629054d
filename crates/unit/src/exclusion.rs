//! Exclusive operations, which no other I/O may interleave with: COMPARE AND WRITE, ORWRITE, WRITE ATOMIC.
//!
//! Plain I/O stays on its lane and takes no lock: it passes the lane's own [`Gate`] of the volume, which
//! records the blocks it is working on. An exclusive operation first takes the [`BlockLock`] of its blocks. It then
//! makes every lane close its gate for them. Each lane answers once the I/O in progress there has ended, and lets no
//! more in until the operation is over. Exclusive operations on disjoint blocks run concurrently.

use std::{cell::RefCell, ops::Range, rc::Rc, sync::Arc};

use engine::{
    range::overlap,
    range_lock::{RangeLock, RangeLocks},
    sync::Notify,
};
use scsi::Extent;

use crate::places::Places;

/// Identifies a [`BlockLock`] of a volume.
pub(crate) type Serial = u64;

/// An exclusive operation's lock on some blocks: no other may begin in them, on any lane.
pub(crate) struct BlockLock {
    lock: RangeLock<Arc<RangeLocks>>,
    extent: Extent,
}

impl BlockLock {
    /// Waits until all earlier locks that overlap with `extent` are gone.
    pub(crate) async fn take(locks: &Arc<RangeLocks>, extent: Extent) -> BlockLock {
        BlockLock {
            lock: RangeLocks::lock(locks.clone(), blocks(extent), true).await,
            extent,
        }
    }

    pub(crate) fn serial(&self) -> Serial {
        self.lock.serial()
    }

    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }
}

/// The I/O in progress on one volume on one lane, and the blocks closed to it.
#[derive(Default)]
pub(crate) struct Gate {
    at_work: RefCell<Places<Range<u64>>>,
    held: RefCell<Vec<ClosedRange>>,
    changed: Notify,
}

/// Blocks that are closed to new I/O.
struct ClosedRange {
    /// The lock of the operation that closed them.
    serial: Serial,
    range: Range<u64>,
    /// How many I/Os are still in progress in them.
    at_work: usize,
}

/// An I/O in progress, registered at a gate; dropping it ends the registration.
pub(crate) struct AtWork {
    gate: Rc<Gate>,
    index: usize,
}

impl Gate {
    /// Waits until nobody excludes plain I/O from `extent`, then registers it. Gives up as soon as
    /// it is not `allowed` any more, for instance if a sanitize excludes it, for which others must
    /// not wait.
    ///
    /// # Errors
    /// Those of `allowed`.
    pub(crate) async fn enter<E>(
        self: &Rc<Self>,
        extent: Extent,
        mut allowed: impl FnMut() -> Result<(), E>,
    ) -> Result<AtWork, E> {
        let range = blocks(extent);
        let is_excluded = || {
            let held = self.held.borrow();
            held.iter().any(|held| overlap(&held.range, &range))
        };
        if self.is_held() {
            let entry = self.changed.wait_for(|| match is_excluded() {
                false => Some(Ok(())),
                true => allowed().err().map(Err),
            });
            entry.await?;
            assert!(!is_excluded(), "I/O begins in blocks that are closed to it");
        }
        Ok(AtWork {
            index: self.at_work.borrow_mut().enter(range),
            gate: self.clone(),
        })
    }

    /// Closes `extent` to new I/O for the lock `serial`.
    pub(crate) fn hold(&self, serial: Serial, extent: Extent) {
        let range = blocks(extent);
        let at_work = self.at_work.borrow();
        // Almost always there is none, and the places need not be searched.
        let at_work = match at_work.is_empty() {
            true => 0,
            false => {
                let at_work = at_work.iter();
                at_work.filter(|(_, place)| overlap(&range, place)).count()
            }
        };
        self.held.borrow_mut().push(ClosedRange {
            serial,
            range,
            at_work,
        });
        self.changed.notify();
    }

    /// Waits until no I/O is in progress in the blocks of the lock `serial`.
    pub(crate) async fn empty(&self, serial: Serial) {
        self.changed
            .wait_for(|| {
                let held = self.held.borrow();
                let mut own = held.iter().filter(|held| held.serial == serial);
                let busy = own.any(|held| held.at_work > 0);
                (!busy).then_some(())
            })
            .await;
    }

    /// Reopens the blocks of the lock `serial`.
    pub(crate) fn release(&self, serial: Serial) {
        self.held.borrow_mut().retain(|held| held.serial != serial);
        self.changed.notify();
    }

    fn is_held(&self) -> bool {
        !self.held.borrow().is_empty()
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let gate = &self.gate;
        let range = gate.at_work.borrow_mut().leave(self.index);
        let range = range.expect("an I/O in progress has a place");
        for held in gate.held.borrow_mut().iter_mut() {
            // I/O that started after the hold cannot overlap with it.
            if overlap(&held.range, &range) {
                assert!(
                    held.at_work > 0,
                    "an exclusive operation would begin while others are in its blocks"
                );
                held.at_work -= 1;
                if held.at_work == 0 {
                    gate.changed.notify();
                }
            }
        }
    }
}

fn blocks(extent: Extent) -> Range<u64> {
    extent.lba..extent.lba + extent.blocks
}

#[cfg(test)]
mod tests;
