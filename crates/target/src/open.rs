//! The commands that a connection has open: for each slot of the protocol machine the data that
//! has come in or is to go out, and the memory permits that pay for it. And, apart from them, the
//! I/Os that a volume is working on: these outlive a command that was aborted.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
};

use engine::{Buf, Payload, sync::Notify};
use iscsi::TaskId;
use scsi::{MediumOp, ParameterList};
use smallvec::SmallVec;

use crate::{
    memory::Paid,
    order::{Order, TaskSet},
    stages::{Kind, Sent, Times},
};

/// What pays for a transfer: parts of the lane's memory and of the session's share, for what came
/// unasked and for the rest.
pub(crate) type Permits = SmallVec<[Paid; 3]>;
/// A command's data-out: what came unasked, and the rest.
pub(crate) type WriteParts = SmallVec<[Buf; 2]>;

/// What an open command waits to do when its data-out is complete.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    Medium(MediumOp),
    Parameters(ParameterList),
}

/// A moment between two commands of a connection.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Mark(u64);

/// One open command.
#[derive(Debug)]
pub(crate) struct OpenCommand {
    pub(crate) task: TaskId,
    /// The moment before it came, which `insert` notes.
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

/// A command that is open no more, and whose answer waits: for its I/O, or for data that its
/// initiator owes. It is over for others, but when a function of that initiator has been answered
/// there is no answer to it any more.
#[derive(Debug)]
struct Ending {
    task: TaskId,
    lun: u32,
    mark: Mark,
}

/// A copyable name of a running I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RunningId {
    index: usize,
    serial: u64,
}

#[derive(Debug)]
struct Running {
    serial: u64,
    lun: u32,
    task: TaskId,
}

/// The commands and I/Os of one connection.
#[derive(Debug, Default)]
pub(crate) struct OpenCommands {
    slots: RefCell<Vec<Option<OpenCommand>>>,
    endings: RefCell<Vec<Ending>>,
    running: RefCell<Vec<Option<Running>>>,
    free: RefCell<Vec<usize>>,
    serial: Cell<u64>,
    /// Commands so far.
    inserted: Cell<u64>,
    /// An I/O has ended.
    ended: Notify,
    /// Which of them hold others back.
    pub(crate) order: Order,
}

impl OpenCommands {
    /// Opens a command, or gives one that has waited for its turn what it needs to go on: that came
    /// when it came.
    pub(crate) fn insert(&self, mut command: OpenCommand) {
        let (task, lun) = (command.task, command.lun);
        let known = self.with(task, |waited| waited.mark);
        let mark = known.unwrap_or_else(|| self.next_mark());
        command.mark = mark;
        let mut slots = self.slots.borrow_mut();
        let slot = task.slot();
        if slots.len() <= slot {
            slots.resize_with(slot + 1, || None);
        }
        slots[slot] = Some(command);
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

    /// Ends a command: gives what pays for its answer until that has left, and what there is to
    /// count then. In its place, because moving it out costs more than all else here.
    pub(crate) fn end(&self, task: TaskId) -> Option<(Permits, Option<Sent>)> {
        self.endings
            .borrow_mut()
            .retain(|ending| ending.task != task);
        let ended = self.with(task, |command| {
            let sent = command.kind.map(|kind| Sent {
                lun: command.lun,
                kind,
                times: command.times,
            });
            (std::mem::take(&mut command.permits), sent)
        })?;
        self.slots.borrow_mut()[task.slot()] = None;
        if !self.order.is_free() {
            self.order.note(|set| set.ended(task));
        }
        Some(ended)
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

    /// The open commands that came before `mark`, for `lun` or for all; with those for other logical
    /// units that are at work on it.
    pub(crate) fn tasks(&self, lun: Option<u32>, mark: Mark) -> Vec<TaskId> {
        let slots = self.slots.borrow();
        let running = self.running.borrow();
        let is_for = |command: &OpenCommand, lun: u32| {
            let mut running = running.iter().flatten();
            command.lun == lun || running.any(|io| io.lun == lun && io.task == command.task)
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

    /// Whether a volume works for any command, open or forgotten.
    pub(crate) fn is_running(&self) -> bool {
        self.running.borrow().iter().any(Option::is_some)
    }

    /// Notes that a volume works for `task` from now on.
    pub(crate) fn begin_io(&self, task: TaskId, lun: u32) -> RunningId {
        let serial = self.serial.get() + 1;
        self.serial.set(serial);
        let mut running = self.running.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            running.push(None);
            running.len() - 1
        });
        running[index] = Some(Running { serial, lun, task });
        if !self.order.is_free() {
            self.order.note_begin(|set| set.begun(task, lun));
        }
        RunningId { index, serial }
    }

    /// Notes that the volume has ended that I/O.
    pub(crate) fn end_io(&self, id: RunningId) {
        let ended = self.running.borrow_mut()[id.index].take();
        self.free.borrow_mut().push(id.index);
        if let Some(io) = ended.filter(|_| !self.order.is_free()) {
            self.order.note(|set| set.ended(io.task));
        }
        self.ended.notify();
    }

    /// The I/Os that run now for which `chosen(lun, task)` holds.
    pub(crate) fn running(&self, chosen: impl Fn(u32, TaskId) -> bool) -> Vec<RunningId> {
        let running = self.running.borrow();
        running
            .iter()
            .enumerate()
            .filter_map(|(index, io)| {
                let io = io.as_ref()?;
                chosen(io.lun, io.task).then_some(RunningId {
                    index,
                    serial: io.serial,
                })
            })
            .collect()
    }

    /// Waits until none of `ios` runs any more.
    pub(crate) async fn wait_ended(&self, ios: &[RunningId]) {
        self.ended
            .wait_for(|| {
                let running = self.running.borrow();
                let still = ios.iter().any(|id| {
                    running[id.index]
                        .as_ref()
                        .is_some_and(|io| io.serial == id.serial)
                });
                (!still).then_some(())
            })
            .await;
    }

    /// Has the [order](Self::order) know all that is open and at work, if it does not yet.
    pub(crate) fn watch(&self) {
        if !self.order.is_free() {
            return;
        }
        let mut set = TaskSet::default();
        for command in self.slots.borrow().iter().flatten() {
            set.opened(command.task, command.lun, command.mark);
        }
        for io in self.running.borrow().iter().flatten() {
            set.begun(io.task, io.lun);
        }
        self.order.watch(set);
    }

    /// Waits until no I/O runs.
    pub(crate) async fn wait_idle(&self) {
        let all = self.running(|_, _| true);
        self.wait_ended(&all).await;
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
