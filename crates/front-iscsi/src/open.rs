//! The commands that a connection has open: for each slot of the protocol machine the data that
//! has come in or is to go out, and the memory permits that pay for it.

use std::{
    cell::{Cell, Ref, RefCell},
    ops::Range,
};

use engine::{Buf, Payload};
use iscsi::TaskId;
use scsi::{MediumOp, ParameterList};
use smallvec::SmallVec;
use unit::{CommandId, Kind, Mark, Nexus, Permits, Times};

use crate::order::{Order, TaskSet};

/// A command's data-out: the unsolicited part, and the rest.
pub(crate) type WriteParts = SmallVec<[Buf; 2]>;

/// What an open command waits to do when its data-out is complete.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    Medium(MediumOp),
    Parameters(ParameterList),
}

/// The number by which units know a task of this connection.
pub(crate) fn command_id(task: TaskId) -> CommandId {
    CommandId(u64::from(task.generation()) << 16 | task.slot() as u64)
}

/// The task that units know as `command`.
pub(crate) fn task_of(command: CommandId) -> TaskId {
    TaskId::new(command.0 as u16, (command.0 >> 16) as u32)
}

/// A command that has been answered, until its answer has left.
pub(crate) struct Answered {
    pub(crate) lun: u32,
    /// `None`: no volume has done anything for it.
    pub(crate) kind: Option<Kind>,
    pub(crate) transfer_len: u64,
    pub(crate) times: Times,
    /// They pay for its data.
    #[expect(dead_code, reason = "they are kept to be dropped")]
    permits: Permits,
}

/// One open command.
#[derive(Debug)]
pub(crate) struct OpenCommand {
    pub(crate) task: TaskId,
    /// The moment before it came.
    pub(crate) mark: Mark,
    pub(crate) lun: u32,
    pub(crate) times: Times,
    /// What the volume has done for it, once it has.
    pub(crate) kind: Option<Kind>,
    pub(crate) pending: Option<Pending>,
    /// Bytes that the command transfers by its CDB, for residual counts.
    pub(crate) transfer_len: u64,
    /// Data-out in the order of its offsets.
    pub(crate) write: WriteParts,
    /// Data-in on its way.
    pub(crate) read: Payload,
    /// What pays for the data of either.
    pub(crate) permits: Permits,
}

/// A command that has ended and whose answer waits, for its I/O or for data that its initiator owes. Once a
/// task management function of that initiator that covers it has been answered, it gets no answer.
#[derive(Debug)]
struct Ending {
    task: TaskId,
    lun: u32,
    mark: Mark,
}

/// The commands of one connection.
#[derive(Debug, Default)]
pub(crate) struct OpenCommands {
    slots: RefCell<Vec<Option<OpenCommand>>>,
    endings: RefCell<Vec<Ending>>,
    /// Commands so far.
    inserted: Cell<u64>,
    /// Which of them hold others back.
    pub(crate) order: Order,
}

impl OpenCommands {
    /// Opens the command `task` for `lun`, which `make` makes for its mark; or gives a dormant one what it
    /// needs to go on, and that one keeps its mark.
    // Inlined, so that it is made in its place.
    #[inline(always)]
    pub(crate) fn insert(&self, task: TaskId, lun: u32, make: impl FnOnce(Mark) -> OpenCommand) {
        let known = self.with(task, |waited| waited.mark);
        let mark = known.unwrap_or_else(|| self.next_mark());
        let mut slots = self.slots.borrow_mut();
        let slot = task.slot();
        if slots.len() <= slot {
            slots.resize_with(slot + 1, || None);
        }
        slots[slot] = Some(make(mark));
        if known.is_none() && !self.order.is_free() {
            self.order.note_begin(|set| set.opened(task, lun, mark));
        }
    }

    fn next_mark(&self) -> Mark {
        let mark = self.mark();
        self.inserted.set(self.inserted.get() + 1);
        mark
    }

    /// Notes a command that was answered before it was opened, if its answer waits for data.
    pub(crate) fn note_ending(&self, task: TaskId, lun: u32) {
        let mark = self.next_mark();
        self.endings.borrow_mut().push(Ending { task, lun, mark });
    }

    /// Now: after all commands that have come, and before all others.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.inserted.get())
    }

    /// Whether `task` is open and came after `mark`.
    pub(crate) fn is_after(&self, task: TaskId, mark: Mark) -> bool {
        self.with(task, |command| command.mark >= mark) == Some(true)
    }

    /// Forgets a command; false if it has ended.
    pub(crate) fn remove(&self, task: TaskId) -> bool {
        self.end(task).is_some()
    }

    /// Whether `task` is open.
    pub(crate) fn is_open(&self, task: TaskId) -> bool {
        self.with(task, |_| ()).is_some()
    }

    /// Ends a command: gives what is left of it until its answer has left.
    pub(crate) fn end(&self, task: TaskId) -> Option<Answered> {
        self.endings
            .borrow_mut()
            .retain(|ending| ending.task != task);
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(task.slot())?;
        // In its place, because moving it out costs more than all else here.
        let command = slot.as_mut().filter(|command| command.task == task)?;
        let answered = Answered {
            lun: command.lun,
            kind: command.kind,
            transfer_len: command.transfer_len,
            times: command.times,
            permits: std::mem::take(&mut command.permits),
        };
        *slot = None;
        drop(slots);
        if !self.order.is_free() {
            self.order.note(|set| set.ended(task));
        }
        Some(answered)
    }

    /// Removes a command that is to be answered all the same, unless its data are on their way to
    /// the initiator; false if so, or if it has ended.
    pub(crate) fn remove_unanswered(&self, task: TaskId) -> bool {
        let unanswered = self.with(task, |command| {
            let (lun, mark) = (command.lun, command.mark);
            command
                .read
                .is_empty()
                .then_some(Ending { task, lun, mark })
        });
        let Some(Some(ending)) = unanswered else {
            return false;
        };
        self.remove(task);
        self.endings.borrow_mut().push(ending);
        true
    }

    /// Looks at the open command `task`; `None` when it has ended or was aborted.
    pub(crate) fn with<T>(&self, task: TaskId, f: impl FnOnce(&mut OpenCommand) -> T) -> Option<T> {
        let mut slots = self.slots.borrow_mut();
        let command = slots.get_mut(task.slot())?.as_mut()?;
        (command.task == task).then(|| f(command))
    }

    /// The data-in of the open command `task`.
    pub(crate) fn data_in(&self, task: TaskId) -> Option<Ref<'_, Payload>> {
        let data_in = Ref::filter_map(self.slots.borrow(), |slots| {
            let command = slots.get(task.slot())?.as_ref()?;
            (command.task == task).then_some(&command.read)
        });
        data_in.ok()
    }

    /// The open commands that came before `mark`, for `lun` or for all; with those for other logical
    /// units that are at work on it.
    pub(crate) fn tasks(&self, nexus: &Nexus, lun: Option<u32>, mark: Mark) -> Vec<TaskId> {
        let slots = self.slots.borrow();
        let is_for = |command: &OpenCommand, lun: u32| {
            command.lun == lun || nexus.is_at_work(command_id(command.task), lun)
        };
        let open = slots.iter().flatten();
        open.filter(|command| command.mark < mark)
            .filter(|command| lun.is_none_or(|lun| is_for(command, lun)))
            .map(|command| command.task)
            .collect()
    }

    /// The commands before `mark`, for `lun` or for all, that are open no more and whose answers
    /// wait.
    pub(crate) fn endings(&self, lun: Option<u32>, mark: Mark) -> Vec<TaskId> {
        let endings = self.endings.borrow();
        endings
            .iter()
            .filter(|ending| ending.mark < mark && lun.is_none_or(|lun| lun == ending.lun))
            .map(|ending| ending.task)
            .collect()
    }

    /// Whether no command is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.borrow().iter().all(Option::is_none)
    }

    /// Notes that a volume works for `task`, on `lun`.
    pub(crate) fn begun(&self, task: TaskId, lun: u32) {
        if !self.order.is_free() {
            self.order.note_begin(|set| set.begun(task, lun));
        }
    }

    /// Notes that an I/O of `task` has ended.
    pub(crate) fn ended(&self, task: TaskId) {
        if !self.order.is_free() {
            self.order.note(|set| set.ended(task));
        }
    }

    /// Has the [order](Self::order) know all that is open and at work, if it does not yet.
    /// `at_work`: the I/Os that run, by command and LUN.
    pub(crate) fn watch(&self, at_work: impl FnOnce() -> Vec<(CommandId, u32)>) {
        if !self.order.is_free() {
            return;
        }
        let mut set = TaskSet::default();
        for command in self.slots.borrow().iter().flatten() {
            set.opened(command.task, command.lun, command.mark);
        }
        for (command, lun) in at_work() {
            set.begun(task_of(command), lun);
        }
        self.order.watch(set);
    }
}

impl OpenCommand {
    /// Which part holds byte `offset` of the data-out, and the range in it up to `len` bytes.
    pub(crate) fn locate(&self, offset: u32, len: u32) -> Option<(usize, Range<usize>)> {
        let mut start = offset as usize;
        for (index, part) in self.write.iter().enumerate() {
            if start < part.len() {
                return Some((index, start..part.len().min(start + len as usize)));
            }
            start -= part.len();
        }
        None
    }

    /// Takes the whole data-out as one payload, with the permits that pay for it.
    pub(crate) fn take_write(&mut self) -> (Payload, Permits) {
        let mut payload = Payload::new();
        for part in self.write.drain(..) {
            payload.push(part.freeze());
        }
        (payload, std::mem::take(&mut self.permits))
    }
}
