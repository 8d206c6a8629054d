//! Task attributes (SAM-5 8): when a command may begin.
//!
//! SIMPLE commands begin on arrival and need no bookkeeping. An ORDERED command begins when all earlier commands of
//! its session for that logical unit have ended. While it runs, it has exclusive access to its blocks on all lanes,
//! like COMPARE AND WRITE: the transport does not order it against commands of other sessions, so each of those must
//! fall entirely before or after it. A HEAD OF QUEUE command begins at once, ahead of waiting commands. Commands that
//! the session sends after an ORDERED or HEAD OF QUEUE command stay dormant until it has ended. A dormant command
//! holds only as much memory as its initiator may fill without an R2T, so that the commands it waits for can always
//! get theirs.
//!
//! While a session has commands that hold others back, a [`TaskSet`] tracks all its open commands, so that each
//! arrival and completion examines only the first waiting commands, however many there are.

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

/// As many commands are tracked anew without ado.
const SET_UP_AT_ONCE: usize = 16;

/// When a command may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attribute {
    Simple,
    Ordered,
    HeadOfQueue,
}

impl Attribute {
    /// Reads the field of a SCSI Command PDU (RFC 7143 §11.3.1); untagged counts as SIMPLE.
    ///
    /// # Errors
    /// For ACA, because no disk here establishes an auto contingent allegiance (NORMACA is zero; SAM-5 8.7), and for
    /// reserved values.
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

/// The commands of a session, tracked only while any of them holds others back.
#[derive(Debug, Default)]
pub(crate) struct CommandOrder {
    set: RefCell<Option<TaskSet>>,
    is_watching: Cell<bool>,
    /// Dormant commands: not enabled yet.
    waiting: RefCell<HashSet<TaskId>>,
}

impl CommandOrder {
    /// Whether a SIMPLE command may begin without checking for earlier commands.
    pub(crate) fn is_free(&self) -> bool {
        !self.is_watching.get()
    }

    /// Whether `task` needs exclusive access to its blocks.
    pub(crate) fn is_ordered(&self, task: TaskId) -> bool {
        let set = self.set.borrow();
        let present = set.as_ref().and_then(|set| set.present.get(&task));
        present.is_some_and(|present| present.is_ordered)
    }

    /// The commands that are not enabled yet.
    pub(crate) fn waiting(&self) -> Vec<TaskId> {
        self.waiting.borrow().iter().copied().collect()
    }

    /// Starts tracking: the commands in `set`, and those that arrive from now on.
    pub(crate) fn watch(&self, set: TaskSet) {
        *self.set.borrow_mut() = Some(set);
        self.is_watching.set(true);
    }

    /// Runs `note` on the task set, if there is one. Once nothing is held back any more, drops the set; a large one not
    /// before as many notes as it has commands, because to set it up again costs that much.
    pub(crate) fn note(&self, note: impl FnOnce(&mut TaskSet)) {
        let mut guard = self.set.borrow_mut();
        if let Some(set) = &mut *guard {
            note(set);
            set.idle_notes = match set.barriers.is_empty() {
                true => set.idle_notes + 1,
                false => 0,
            };
            let is_large = set.present.len() > SET_UP_AT_ONCE;
            if set.idle_notes > 0 && (!is_large || set.idle_notes > set.present.len()) {
                *guard = None;
                self.is_watching.set(false);
            }
        }
    }

    /// Like [`CommandOrder::note`], for a command that begins. Keeps the set: the command may hold others back or wait.
    pub(crate) fn note_begin(&self, note: impl FnOnce(&mut TaskSet)) {
        let _ = self.with(note);
    }

    /// Makes the open command `task` hold back later commands.
    pub(crate) fn hold_back(&self, task: TaskId) {
        self.note(|set| set.hold_back(task));
    }

    /// Makes the open command `task` dormant; it then [waits](Self::take) until it is enabled.
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

/// All commands of a session that are open or have running I/O, and which of them wait.
#[derive(Debug, Default)]
pub(crate) struct TaskSet {
    present: HashMap<TaskId, Present>,
    /// The number of commands at each position, by logical unit and order of arrival. Only commands that were aborted
    /// before tracking began share a position.
    by_lun: BTreeMap<(u32, Mark), usize>,
    /// Commands that hold back later ones.
    barriers: BTreeSet<(u32, Mark)>,
    waiting: BTreeMap<(u32, Mark), WaitingCommand>,
    /// Notes since a command was held back last.
    idle_notes: usize,
    /// How many waiting commands were examined.
    #[cfg(test)]
    steps: usize,
}

#[derive(Debug)]
struct Present {
    mark: Mark,
    /// Its own logical unit first, then the others it works on.
    luns: SmallVec<[u32; 1]>,
    /// One while the command is open, one for each of its I/Os, and one while it waits and is ORDERED. The last keeps
    /// an aborted ORDERED command in place, so it still separates the commands before and after it.
    left: usize,
    is_ordered: bool,
}

#[derive(Debug)]
struct WaitingCommand {
    is_ordered: bool,
    task: TaskId,
    signal: Rc<EnableSignal>,
}

/// Tells a dormant command that it is enabled (SAM-5, command states).
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
    /// The command that arrived at `mark` is open.
    pub(crate) fn opened(&mut self, task: TaskId, lun: u32, mark: Mark) {
        self.add(task, lun, mark);
    }

    /// A volume started an I/O for `task` on `lun`. An unknown task was aborted before tracking began.
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

    /// `task` is no longer open, or one of its I/Os has ended. If that was the last of it, commands that waited only
    /// for it are enabled.
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
                // The command was aborted while dormant.
                if let Some(waiting) = self.waiting.remove(&(lun, mark)) {
                    waiting.signal.give();
                }
            }
            self.serve(lun);
        }
    }

    /// Makes `task` hold back later commands, unless it has already ended.
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
        let waiting = WaitingCommand {
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

    /// An ORDERED command no longer waits; one that was aborted meanwhile is now gone.
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

    /// Enables the dormant commands for `lun` in order, up to the first that must stay dormant: all those after it
    /// must stay dormant as well.
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
                // Finds the command itself at the latest.
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
