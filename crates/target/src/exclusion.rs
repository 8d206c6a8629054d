//! Operations that nothing else may interleave with: COMPARE AND WRITE, ORWRITE, WRITE ATOMIC.
//!
//! Plain I/O stays on its lane and takes no lock: it passes the lane's own [`Gate`] of the volume,
//! which notes where it is at work. An exclusive operation waits for its [`Turn`], one at a time
//! for a volume, then has every lane hold its gate for the blocks concerned: each answers when
//! what was at work there has ended, and lets nobody else in until the operation is over.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    ops::Range,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{
    cross::{OneshotReceiver, OneshotSender, oneshot},
    sync::Notify,
};
use scsi::Extent;

/// Whose turn it is to exclude others from a volume; shared by all lanes.
#[derive(Default)]
pub(crate) struct Turns(Mutex<Line>);

#[derive(Default)]
struct Line {
    taken: bool,
    waiting: VecDeque<OneshotSender<Turn>>,
}

/// The right to exclude others; dropping it gives it on.
pub(crate) struct Turn(Arc<Turns>);

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits in line. A turn given to a waiter that is gone passes on by its own drop.
    pub(crate) async fn take(self: &Arc<Self>) -> Turn {
        loop {
            match self.try_take() {
                Ok(turn) => return turn,
                Err(given) => {
                    if let Some(turn) = given.await {
                        return turn;
                    }
                }
            }
        }
    }

    fn try_take(self: &Arc<Self>) -> Result<Turn, OneshotReceiver<Turn>> {
        let mut line = self.lock();
        if !line.taken {
            line.taken = true;
            return Ok(Turn(self.clone()));
        }
        let (sender, receiver) = oneshot();
        line.waiting.push_back(sender);
        Err(receiver)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut line = self.0.lock();
            let next = line.waiting.pop_front();
            line.taken = next.is_some();
            next
        };
        // Outside the lock: if the waiter is gone, the turn comes back here at once.
        if let Some(next) = next {
            next.send(Turn(self.0.clone()));
        }
    }
}

/// Who is at work where, in one volume on one lane.
#[derive(Default)]
pub(crate) struct Gate {
    at_work: RefCell<Vec<Option<Range<u64>>>>,
    free: RefCell<Vec<usize>>,
    held: RefCell<Option<Range<u64>>>,
    is_held: Cell<bool>,
    changed: Notify,
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
            held.as_ref().is_some_and(|held| overlap(held, &range))
        };
        if self.is_held.get() {
            let turn = self.changed.wait_for(|| match is_excluded() {
                false => Some(Ok(())),
                true => allowed().err().map(Err),
            });
            turn.await?;
        }
        let mut at_work = self.at_work.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            at_work.push(None);
            at_work.len() - 1
        });
        at_work[index] = Some(range);
        Ok(AtWork {
            gate: self.clone(),
            index,
        })
    }

    /// Lets nobody in to `extent` from now on.
    pub(crate) fn hold(&self, extent: Extent) {
        *self.held.borrow_mut() = Some(blocks(extent));
        self.is_held.set(true);
        self.changed.notify();
    }

    /// Waits until nobody is at work in what is held.
    pub(crate) async fn empty(&self) {
        self.changed
            .wait_for(|| {
                let held = self.held.borrow();
                let at_work = self.at_work.borrow();
                let busy = held
                    .as_ref()
                    .is_some_and(|held| at_work.iter().flatten().any(|range| overlap(held, range)));
                (!busy).then_some(())
            })
            .await;
    }

    /// Lets all in again.
    pub(crate) fn release(&self) {
        *self.held.borrow_mut() = None;
        self.is_held.set(false);
        self.changed.notify();
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.gate.at_work.borrow_mut()[self.index] = None;
        self.gate.free.borrow_mut().push(self.index);
        if self.gate.is_held.get() {
            self.gate.changed.notify();
        }
    }
}

fn blocks(extent: Extent) -> Range<u64> {
    extent.lba..extent.lba + extent.blocks
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests;
