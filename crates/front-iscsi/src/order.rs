//! Task attributes (SAM-5 8): when a command may begin.
//!
//! SIMPLE commands begin as they come, and nothing is kept for them. An ORDERED one begins when
//! the earlier commands of its session for that logical unit have ended, and while it is at work
//! on the medium it has its blocks for itself on all lanes, like COMPARE AND WRITE: no transport orders it
//! with commands of other sessions, so each of those comes wholly before or after it. A HEAD OF QUEUE
//! command begins at once and passes those that wait. Commands that the session sends after one of either
//! kind stay dormant until it has ended. A dormant command holds no more memory than its initiator may fill
//! without an R2T, so that the commands it waits for find theirs.
//!
//! While a session has commands that hold others back, a [`TaskSet`] knows all that it has open, so
//! that each begins and ends with a look at the first of those that wait, however many they are.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, btree_map::Entry},
    rc::Rc,
};

use engine::sync::Notify;
use iscsi::TaskId;
use scsi::{Asc, Sense, SenseKey};
use smallvec::SmallVec;
use unit::Mark;

/// When a command may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attribute {
    Simple,
    Ordered,
    HeadOfQueue,
}

impl Attribute {
    /// Reads the field of a SCSI Command PDU (RFC 7143 §11.3.1); untagged is SIMPLE.
    ///
    /// # Errors
    /// ACA is for an auto contingent allegiance, which no disk here establishes (NORMACA is zero;
    /// SAM-5 8.7), and the others are reserved.
    pub(crate) fn read(field: u8) -> Result<Attribute, Sense> {
        match field {
            0 | 1 => Ok(Attribute::Simple),
            2 => Ok(Attribute::Ordered),
            3 => Ok(Attribute::HeadOfQueue),
            _ => Err(Sense::new(
                SenseKey::IllegalRequest,
                Asc::INVALID_MESSAGE_ERROR,
            )),
        }
    }
}

/// The commands of a session, as long as any of them holds others back.
#[derive(Debug, Default)]
pub(crate) struct Order {
    set: RefCell<Option<TaskSet>>,
    is_watching: Cell<bool>,
    /// Dormant commands: they are not enabled yet.
    waiting: RefCell<HashSet<TaskId>>,
}

impl Order {
    /// Whether a SIMPLE command may begin without a look at what is before it.
    pub(crate) fn is_free(&self) -> bool {
        !self.is_watching.get()
    }

    /// Whether `task` has to have its blocks for itself.
    pub(crate) fn is_ordered(&self, task: TaskId) -> bool {
        let set = self.set.borrow();
        let present = set.as_ref().and_then(|set| set.present.get(&task));
        present.is_some_and(|present| present.is_ordered)
    }

    /// The commands that are not enabled yet.
    pub(crate) fn waiting(&self) -> Vec<TaskId> {
        self.waiting.borrow().iter().copied().collect()
    }

    /// Notes from now on what becomes of commands: of those in `set`, and of those that come.
    pub(crate) fn watch(&self, set: TaskSet) {
        *self.set.borrow_mut() = Some(set);
        self.is_watching.set(true);
    }

    /// Runs `note` on the set if there is one, which ends when nothing is held back any more.
    pub(crate) fn note(&self, note: impl FnOnce(&mut TaskSet)) {
        let mut guard = self.set.borrow_mut();
        if let Some(set) = &mut *guard {
            note(set);
            if set.barriers.is_empty() {
                *guard = None;
                self.is_watching.set(false);
            }
        }
    }

    /// As [`Order::note`], for what begins: it holds back or waits only afterwards.
    pub(crate) fn note_begin(&self, note: impl FnOnce(&mut TaskSet)) {
        let _ = self.with(note);
    }

    /// `task`, which is open, holds back what comes after it.
    pub(crate) fn hold_back(&self, task: TaskId) {
        self.note(|set| set.hold_back(task));
    }

    /// Makes `task`, which is open, dormant; it then [waits](Self::take) until it is enabled.
    pub(crate) fn stand_in_line(&self, task: TaskId, is_ordered: bool) -> Option<Rc<EnableSignal>> {
        self.waiting.borrow_mut().insert(task);
        self.with(|set| set.stand_in_line(task, is_ordered))
    }

    /// Waits until `task` is enabled.
    pub(crate) async fn take(&self, task: TaskId, signal: Option<Rc<EnableSignal>>) {
        if let Some(signal) = signal {
            signal.wait().await;
        }
        self.waiting.borrow_mut().remove(&task);
    }

    fn with<T>(&self, f: impl FnOnce(&mut TaskSet) -> T) -> Option<T> {
        self.set.borrow_mut().as_mut().map(f)
    }
}

/// All commands of a session that are open or at work, and which of them wait.
#[derive(Debug, Default)]
pub(crate) struct TaskSet {
    present: HashMap<TaskId, Present>,
    /// How many of them by logical unit, in the order in which they came. Only those that were aborted
    /// before all others share a place.
    by_lun: BTreeMap<(u32, Mark), usize>,
    /// Those that hold back what comes after them.
    barriers: BTreeSet<(u32, Mark)>,
    waiting: BTreeMap<(u32, Mark), Waiting>,
    /// Those that waited and were looked at.
    #[cfg(test)]
    steps: usize,
}

#[derive(Debug)]
struct Present {
    mark: Mark,
    /// Its own logical unit first, then others that it works on.
    luns: SmallVec<[u32; 1]>,
    /// One while it is open, one for each of its I/Os, and one while it waits and is ORDERED: aborted
    /// then, it still keeps apart what came before and after it.
    left: usize,
    is_ordered: bool,
}

#[derive(Debug)]
struct Waiting {
    is_ordered: bool,
    task: TaskId,
    signal: Rc<EnableSignal>,
}

/// Tells a dormant command that it is enabled (SAM-5: command states).
#[derive(Debug, Default)]
pub(crate) struct EnableSignal {
    is_given: Cell<bool>,
    changed: Notify,
}

impl EnableSignal {
    fn give(&self) {
        self.is_given.set(true);
        self.changed.notify();
    }

    async fn wait(&self) {
        self.changed
            .wait_for(|| self.is_given.get().then_some(()))
            .await;
    }
}

impl TaskSet {
    /// A command that came at `mark` is open.
    pub(crate) fn opened(&mut self, task: TaskId, lun: u32, mark: Mark) {
        self.add(task, lun, mark);
    }

    /// A volume works for `task`, on `lun`. One that is not known was aborted before all others.
    pub(crate) fn begun(&mut self, task: TaskId, lun: u32) {
        let known = self.present.get(&task);
        let mark = known.map_or(Mark::default(), |present| present.mark);
        self.add(task, lun, mark);
    }

    fn add(&mut self, task: TaskId, lun: u32, mark: Mark) {
        let present = self.present.entry(task).or_insert(Present {
            mark,
            luns: SmallVec::new(),
            left: 0,
            is_ordered: false,
        });
        present.left += 1;
        if !present.luns.contains(&lun) {
            present.luns.push(lun);
            *self.by_lun.entry((lun, mark)).or_default() += 1;
        }
    }

    /// `task` is not open any more, or one of its I/Os has ended. When that was the last of it, those
    /// that waited for it alone are enabled.
    pub(crate) fn ended(&mut self, task: TaskId) {
        let Some(present) = self.present.get_mut(&task) else {
            return;
        };
        present.left -= 1;
        if present.left > 0 {
            return;
        }
        let Some(Present { mark, luns, .. }) = self.present.remove(&task) else {
            return;
        };
        for &lun in &luns {
            if let Entry::Occupied(mut count) = self.by_lun.entry((lun, mark)) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
            if lun == luns[0] {
                self.barriers.remove(&(lun, mark));
                // It was aborted while it was dormant.
                if let Some(waiting) = self.waiting.remove(&(lun, mark)) {
                    waiting.signal.give();
                }
            }
            self.serve(lun);
        }
    }

    /// `task` holds back what comes after it, if it has not ended already.
    fn hold_back(&mut self, task: TaskId) {
        if let Some(present) = self.present.get(&task) {
            self.barriers.insert((present.luns[0], present.mark));
        }
    }

    /// Makes an open command dormant.
    fn stand_in_line(&mut self, task: TaskId, is_ordered: bool) -> Rc<EnableSignal> {
        let signal = Rc::<EnableSignal>::default();
        let Some(present) = self.present.get_mut(&task) else {
            signal.give();
            return signal;
        };
        present.is_ordered = is_ordered;
        present.left += usize::from(is_ordered);
        let place = (present.luns[0], present.mark);
        let waiting = Waiting {
            is_ordered,
            task,
            signal: signal.clone(),
        };
        self.waiting.insert(place, waiting);
        if is_ordered {
            self.barriers.insert(place);
        }
        self.serve(place.0);
        signal
    }

    /// An ORDERED command does not wait any more: one that was aborted meanwhile is gone now.
    fn has_turn(&mut self, place: (u32, Mark), task: TaskId) {
        if let Some(present) = self.present.get_mut(&task) {
            present.left -= 1;
            if present.left == 0 {
                self.present.remove(&task);
                self.by_lun.remove(&place);
                self.barriers.remove(&place);
            }
        }
    }

    /// Enables the dormant commands for `lun` in their order, up to the first that has to stay dormant:
    /// those after it have to as well.
    fn serve(&mut self, lun: u32) {
        let all = (lun, Mark::default())..;
        loop {
            #[cfg(test)]
            (self.steps += 1);
            let first = self.waiting.range(all.clone()).next();
            let Some((&place, waiting)) = first.filter(|((of, _), _)| *of == lun) else {
                return;
            };
            let earlier = match waiting.is_ordered {
                // Itself at the latest.
                true => {
                    let present = self.by_lun.range(all.clone()).next();
                    present
                        .filter(|((of, _), _)| *of == lun)
                        .map(|((_, mark), _)| *mark)
                }
                false => {
                    let barrier = self.barriers.range(all.clone()).next();
                    barrier.filter(|(of, _)| *of == lun).map(|(_, mark)| *mark)
                }
            };
            if earlier.is_some_and(|earlier| earlier < place.1) {
                return;
            }
            if let Some(waiting) = self.waiting.remove(&place) {
                waiting.signal.give();
                if waiting.is_ordered {
                    self.has_turn(place, waiting.task);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
