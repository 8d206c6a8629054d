//! Tasks of one lane: a slab of futures and the queue of woken ones. In a simulation the next task
//! is drawn from the queue at random under the seed, so that every order gets tried.

use std::collections::VecDeque;

use super::shares::Share;
use crate::future::LaneFuture;

/// Names a task of a lane; a stale name wakes nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TaskRef {
    pub(crate) index: u32,
    pub(crate) generation: u16,
}

/// Picks the next of `n` ready tasks by index.
pub(crate) type Chooser = Box<dyn FnMut(usize) -> usize>;

struct Slot {
    share: Share,
    future: Option<LaneFuture<'static, ()>>,
    generation: u16,
    queued: bool,
    used: bool,
}

/// The task table of a lane.
#[derive(Default)]
pub(crate) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
    ready: VecDeque<TaskRef>,
    /// Ready as well, but their share is used up for this turn.
    spent: VecDeque<TaskRef>,
    /// The future of `block_on`, which lives on its caller's stack, was woken.
    pub(crate) main_woken: bool,
    pub(crate) chooser: Option<Chooser>,
}

impl Tasks {
    /// Names the future that `block_on` drives.
    pub(crate) const MAIN: TaskRef = TaskRef {
        index: u32::MAX,
        generation: 0,
    };

    /// Adds a task and queues it as ready.
    pub(crate) fn add(&mut self, share: Share, future: LaneFuture<'static, ()>) {
        let task = self.reserve(share);
        self.put_back(task, future);
        self.schedule(task);
    }

    /// Reserves a slot for a task whose future the caller polls first.
    pub(super) fn reserve(&mut self, share: Share) -> TaskRef {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                share,
                future: None,
                generation: 0,
                queued: false,
                used: false,
            });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 tasks")
        });
        let slot = &mut self.slots[index as usize];
        assert!(
            !slot.used && slot.future.is_none(),
            "a free slot is no task's"
        );
        slot.used = true;
        slot.share = share;
        TaskRef {
            index,
            generation: slot.generation,
        }
    }

    pub(crate) fn schedule(&mut self, task: TaskRef) {
        if task == Self::MAIN {
            self.main_woken = true;
            return;
        }
        if let Some(slot) = self.slots.get_mut(task.index as usize) {
            if slot.used && slot.generation == task.generation && !slot.queued {
                slot.queued = true;
                self.ready.push_back(task);
            }
        }
    }

    pub(crate) fn ready_len(&self) -> usize {
        self.ready.len() + self.spent.len()
    }

    /// Tasks that have not ended.
    #[cfg(feature = "sim")]
    pub(crate) fn alive(&self) -> usize {
        self.slots.iter().filter(|slot| slot.used).count()
    }

    /// Makes the tasks of used-up shares ready again, ahead of those that became ready since.
    pub(crate) fn begin_turn(&mut self) {
        if !self.spent.is_empty() {
            self.spent.append(&mut self.ready);
            std::mem::swap(&mut self.spent, &mut self.ready);
        }
    }

    /// Takes out the next ready task whose share `may_run`, with its share and future, for polling.
    pub(crate) fn next(
        &mut self,
        may_run: impl Fn(Share) -> bool,
    ) -> Option<(TaskRef, Share, LaneFuture<'static, ()>)> {
        loop {
            let task = match &mut self.chooser {
                Some(choose) if self.ready.len() > 1 => {
                    let i = choose(self.ready.len());
                    self.ready.remove(i)?
                }
                _ => self.ready.pop_front()?,
            };
            let slot = &mut self.slots[task.index as usize];
            if !may_run(slot.share) {
                self.spent.push_back(task);
                continue;
            }
            slot.queued = false;
            if let Some(future) = slot.future.take() {
                return Some((task, slot.share, future));
            }
        }
    }

    /// Puts back a future that is still pending.
    pub(crate) fn put_back(&mut self, task: TaskRef, future: LaneFuture<'static, ()>) {
        let slot = &mut self.slots[task.index as usize];
        debug_assert!(slot.used, "a task that has ended stays ended");
        slot.future = Some(future);
    }

    /// Frees the slot of a task that has ended.
    pub(crate) fn finish(&mut self, task: TaskRef) {
        let slot = &mut self.slots[task.index as usize];
        assert!(
            slot.used && slot.generation == task.generation,
            "a task ends once"
        );
        slot.generation = slot.generation.wrapping_add(1);
        slot.used = false;
        if slot.queued {
            slot.queued = false;
            self.ready.retain(|ready| ready.index != task.index);
        }
        self.free.push(task.index);
    }

    /// Takes all futures out, so that they are dropped outside the borrow.
    pub(crate) fn drain(&mut self) -> Vec<LaneFuture<'static, ()>> {
        self.ready.clear();
        self.spent.clear();
        self.slots
            .iter_mut()
            .filter_map(|slot| slot.future.take())
            .collect()
    }
}
