//! Operations that nothing else may interleave with: COMPARE AND WRITE, ORWRITE, WRITE ATOMIC.
//!
//! Plain I/O stays on its lane and takes no lock: it passes the lane's own [`Gate`] of the volume,
//! which notes where it is at work. An exclusive operation waits for its [`Turn`]: until those before it
//! whose blocks overlap with its own have ended. Then it has every lane hold its gate for its
//! blocks: each answers when what was at work there has ended, and lets nobody else in until the
//! operation is over. Operations on different blocks run side by side.

use std::{
    cell::RefCell,
    ops::Range,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{
    cross::{OneshotReceiver, OneshotSender, oneshot},
    range::overlap,
    sync::Notify,
};
use scsi::Extent;

use crate::places::Places;

/// Who excludes others from which blocks of a volume, and who waits for that; shared by all lanes.
#[derive(Default)]
pub(crate) struct Turns(Mutex<Line>);

#[derive(Default)]
struct Line {
    last: Serial,
    /// In the order of their coming.
    places: Vec<Place>,
}

/// Tells turns of one volume apart; later ones are greater.
pub(crate) type Serial = u64;

struct Place {
    serial: Serial,
    range: Range<u64>,
    /// How many of those before it overlap with it.
    ahead: usize,
    /// Where its turn goes when none does any more; `None` once it has it.
    waiting: Option<Waiting>,
}

/// Where a turn goes, and the blocks that it is for.
type Waiting = (OneshotSender<Turn>, Extent);

/// The right to exclude others from some blocks; dropping it gives it on.
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

    /// Waits in line for the blocks of `extent`. A turn given to a waiter that is gone passes on by
    /// its own drop.
    pub(crate) async fn take(self: &Arc<Self>, extent: Extent) -> Turn {
        loop {
            match self.enter(extent) {
                Ok(turn) => return turn,
                Err(given) => {
                    if let Some(turn) = given.await {
                        return turn;
                    }
                }
            }
        }
    }

    /// Waits in line for everything.
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

    /// Ends the turn `serial`; gives those whose turn has come.
    fn leave(&self, serial: Serial) -> Vec<(Serial, Waiting)> {
        let mut line = self.lock();
        let found = line.places.iter().position(|place| place.serial == serial);
        let Some(index) = found else {
            return Vec::new();
        };
        let left = line.places.remove(index);
        let mut next = Vec::new();
        for place in &mut line.places[index..] {
            if !overlap(&place.range, &left.range) {
                continue;
            }
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
        // Outside the lock: if a waiter is gone, its turn comes back here at once.
        for (serial, (waiter, extent)) in self.turns.leave(self.serial) {
            waiter.send(self.turns.turn(serial, extent));
        }
    }
}

/// Who is at work where, in one volume on one lane.
#[derive(Default)]
pub(crate) struct Gate {
    at_work: RefCell<Places<Range<u64>>>,
    held: RefCell<Vec<Held>>,
    changed: Notify,
}

/// Blocks that nobody is let in to.
struct Held {
    /// The turn that holds them.
    serial: Serial,
    range: Range<u64>,
    /// How many are at work in them, still.
    at_work: usize,
}

/// A place at work; dropping it leaves.
pub(crate) struct AtWork {
    gate: Rc<Gate>,
    index: usize,
}

impl Gate {
    /// Lets plain I/O on `extent` in, as soon as nobody excludes it; unless meanwhile it is not
    /// `allowed` any more, as when what excludes it is a sanitize, which others must not wait for.
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
        }
        Ok(AtWork {
            index: self.at_work.borrow_mut().enter(range),
            gate: self.clone(),
        })
    }

    /// Lets nobody in to `extent` from now on, for the turn `serial`.
    pub(crate) fn hold(&self, serial: Serial, extent: Extent) {
        let range = blocks(extent);
        let at_work = self.at_work.borrow();
        // Nobody is nearly always the answer; then the places are not looked at.
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

    /// Waits until nobody is at work in what the turn `serial` holds.
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

    /// Lets others in again to what the turn `serial` holds.
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
        let Some(range) = range else { return };
        for held in gate.held.borrow_mut().iter_mut() {
            // Who came in after the hold is beside it.
            if overlap(&held.range, &range) {
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
