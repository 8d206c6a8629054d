//! Exclusive operations, which no other I/O may interleave with: COMPARE AND WRITE, ORWRITE, WRITE ATOMIC.
//!
//! Plain I/O stays on its lane and takes no lock: it passes the lane's own [`Gate`] of the volume, which
//! records the blocks it is working on. An exclusive operation first waits for its [`Turn`], until all
//! earlier ones with overlapping blocks have ended. It then makes every lane close its gate for its
//! blocks. Each lane answers once the I/O in progress there has ended, and lets no more in until the
//! operation is over. Exclusive operations on disjoint blocks run concurrently.

use std::{
    cell::RefCell,
    ops::Range,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{
    cross::{OneshotReceiver, OneshotSender, answered, oneshot},
    range::overlap,
    sync::Notify,
};
use scsi::Extent;

use crate::places::Places;

/// The queue of exclusive operations on a volume; shared by all lanes.
#[derive(Default)]
pub(crate) struct Turns(Mutex<Line>);

#[derive(Default)]
struct Line {
    last: Serial,
    /// In order of arrival.
    places: Vec<Place>,
}

/// Identifies a turn of a volume; later ones are greater.
pub(crate) type Serial = u64;

struct Place {
    serial: Serial,
    range: Range<u64>,
    /// How many earlier places overlap with this one.
    ahead: usize,
    /// Where to send the turn once no earlier place overlaps; `None` once it has been given.
    waiting: Option<Waiting>,
}

/// The recipient of a turn, and its blocks.
type Waiting = (OneshotSender<Turn>, Extent);

/// The right to exclude others from some blocks. Dropping it passes it on.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    serial: Serial,
    extent: Extent,
}

impl Turn {
    pub(crate) fn serial(&self) -> Serial {
        self.serial
    }

    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn for the blocks of `extent`. A turn sent to a waiter that is gone passes
    /// on when the unread message is dropped.
    pub(crate) async fn take(self: &Arc<Self>, extent: Extent) -> Turn {
        loop {
            match self.enter(extent) {
                Ok(turn) => return turn,
                Err(given) => {
                    if let Some(turn) = answered(given, "give a turn").await {
                        return turn;
                    }
                }
            }
        }
    }

    /// Waits for the turn for all blocks.
    pub(crate) async fn take_all(self: &Arc<Self>) -> Turn {
        self.take(Extent {
            lba: 0,
            blocks: u64::MAX,
            block_size_bytes: 1,
        })
        .await
    }

    fn enter(self: &Arc<Self>, extent: Extent) -> Result<Turn, OneshotReceiver<Turn>> {
        let range = blocks(extent);
        let mut line = self.lock();
        line.last += 1;
        let serial = line.last;
        let before = line.places.iter();
        let ahead = before.filter(|place| overlap(&place.range, &range)).count();
        let (waiting, turn) = match ahead {
            0 => (None, Ok(self.turn(serial, extent))),
            _ => {
                let (sender, receiver) = oneshot();
                (Some((sender, extent)), Err(receiver))
            }
        };
        line.places.push(Place {
            serial,
            range,
            ahead,
            waiting,
        });
        turn
    }

    fn turn(self: &Arc<Self>, serial: Serial, extent: Extent) -> Turn {
        Turn {
            turns: self.clone(),
            serial,
            extent,
        }
    }

    /// Ends the turn `serial`; returns the places whose turn has come.
    fn leave(&self, serial: Serial) -> Vec<(Serial, Waiting)> {
        let mut line = self.lock();
        let found = line.places.iter().position(|place| place.serial == serial);
        let index = found.expect("a turn ends once, or another one would begin too early");
        assert!(
            line.places[index].waiting.is_none(),
            "a turn ends that has not been given"
        );
        let left = line.places.remove(index);
        let mut next = Vec::new();
        for place in &mut line.places[index..] {
            if !overlap(&place.range, &left.range) {
                continue;
            }
            assert!(place.ahead > 0, "a turn would begin before an earlier one");
            place.ahead -= 1;
            if place.ahead == 0 {
                next.extend(place.waiting.take().map(|waiting| (place.serial, waiting)));
            }
        }
        next
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Send outside the lock: if a waiter is gone, its turn re-enters this function at once.
        for (serial, (waiter, extent)) in self.turns.leave(self.serial) {
            waiter.send(self.turns.turn(serial, extent));
        }
    }
}

/// The I/O in progress on one volume on one lane, and the blocks closed to it.
#[derive(Default)]
pub(crate) struct Gate {
    at_work: RefCell<Places<Range<u64>>>,
    held: RefCell<Vec<Held>>,
    changed: Notify,
}

/// Blocks that are closed to new I/O.
struct Held {
    /// The turn that closed them.
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
            let turn = self.changed.wait_for(|| match is_excluded() {
                false => Some(Ok(())),
                true => allowed().err().map(Err),
            });
            turn.await?;
            assert!(!is_excluded(), "I/O begins in blocks that are closed to it");
        }
        Ok(AtWork {
            index: self.at_work.borrow_mut().enter(range),
            gate: self.clone(),
        })
    }

    /// Closes `extent` to new I/O for the turn `serial`.
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
        self.held.borrow_mut().push(Held {
            serial,
            range,
            at_work,
        });
        self.changed.notify();
    }

    /// Waits until no I/O is in progress in the blocks of the turn `serial`.
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

    /// Reopens the blocks of the turn `serial`.
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
