//! The open commands of a connection: for each slot of the protocol machine, the data received or to be sent and the
//! memory permits that pay for it.

use std::{
    cell::{Cell, Ref, RefCell},
    collections::{BTreeMap, BTreeSet},
    future::poll_fn,
    ops::Range,
    pin::pin,
    rc::Rc,
    task::{Poll, Waker},
};

use engine::{Buf, Instant, Payload, share::charge};
use iscsi::{StageTimes, TaskId};
use scsi::{MediumOp, ParameterList};
use smallvec::SmallVec;
use unit::{CommandId, CommandKind, Held, Mark, Nexus, Permits, StageStamps, Unit};

use crate::order::{CommandOrder, TaskSet};

/// A command's data-out: the unsolicited part, then the rest.
pub(crate) type WriteParts = SmallVec<[Buf; 2]>;

/// What an open command does once its data-out is complete, with the unit that it was sent to: by then, another one may
/// have its LUN.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    Medium(MediumOp),
    Parameters(ParameterList),
}

/// The cost of looking at one command, in bytes of memory that are moved in that time.
const LOOK_BYTES: usize = 128;
/// The same for tracking one.
const TRACK_BYTES: usize = 1 << 10;

/// The number under which units know a task of this connection.
pub(crate) fn command_id(task: TaskId) -> CommandId {
    CommandId(u64::from(task.generation()) << 16 | task.slot() as u64)
}

/// The task that units know as `command`; inverse of [`command_id`].
pub(crate) fn task_of(command: CommandId) -> TaskId {
    TaskId::new(command.0 as u16, (command.0 >> 16) as u32)
}

/// A command that has been answered, kept until its response has been sent.
pub(crate) struct Answered {
    pub(crate) lun: u32,
    /// `None` if no volume worked for it.
    pub(crate) kind: Option<CommandKind>,
    pub(crate) transfer_len: u64,
    pub(crate) times: StageStamps,
    /// The permits for its data, released on drop.
    pub(crate) permits: Permits,
}

/// Whoever waits for something that a command needs, woken when the command ends.
#[derive(Debug, Default)]
pub(crate) struct Waiter(Option<Waker>);

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

/// One open command.
#[derive(Debug)]
pub(crate) struct OpenCommand {
    pub(crate) task: TaskId,
    /// Its position in the order of arrival.
    pub(crate) mark: Mark,
    pub(crate) lun: u32,
    pub(crate) times: StageStamps,
    /// Whether the initiator asked for the command's stage times.
    pub(crate) asks_stage_times: bool,
    /// How long it waited for data-out memory, in nanoseconds.
    pub(crate) admission_ns: u64,
    /// How long a medium worked for it, in nanoseconds, if this was asked for and is known.
    pub(crate) medium_ns: Option<u64>,
    /// What the volume did for it, once it has done so.
    pub(crate) kind: Option<CommandKind>,
    pub(crate) pending: Option<(Rc<Unit>, Pending)>,
    /// Bytes the command transfers according to its CDB, for residual counts.
    pub(crate) transfer_len: u64,
    /// Data-out buffers, by ascending offset.
    pub(crate) write: WriteParts,
    /// Data-in being sent.
    pub(crate) read: Payload,
    /// The permits for its data-in and data-out.
    pub(crate) permits: Permits,
    pub(crate) waiter: Waiter,
}

/// A command that has ended but whose response is delayed, by its I/O or by data that its initiator still owes. Once
/// a task management function of that initiator covering it has been answered, the response is suppressed.
#[derive(Debug)]
struct DelayedResponse {
    lun: u32,
    mark: Mark,
}

/// The commands of one connection.
#[derive(Debug, Default)]
pub(crate) struct OpenCommands {
    slots: RefCell<Vec<Option<OpenCommand>>>,
    endings: RefCell<BTreeMap<TaskId, DelayedResponse>>,
    /// Commands inserted so far.
    inserted: Cell<u64>,
    /// Tracks which commands hold others back.
    pub(crate) order: CommandOrder,
}

impl OpenCommands {
    /// Opens the command `task` for `lun`, built by `make` from its mark. A dormant command that is already open gets
    /// what it needs to continue, and keeps its mark.
    // Inlined so that the command is built in place.
    #[inline(always)]
    pub(crate) fn insert(&self, task: TaskId, lun: u32, make: impl FnOnce(Mark) -> OpenCommand) {
        let known = self.with(task, |waited| waited.mark);
        let mark = known.unwrap_or_else(|| self.next_mark());
        let mut slots = self.slots.borrow_mut();
        let slot = task.slot();
        if slots.len() <= slot {
            slots.resize_with(slot + 1, || None);
        }
        let is_others = |other: &OpenCommand| other.task != task;
        assert!(
            !slots[slot].as_ref().is_some_and(is_others),
            "a command would take the place of one that is still open"
        );
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

    /// Records a command that was answered before it was opened and whose response waits for data.
    pub(crate) fn note_ending(&self, task: TaskId, lun: u32) {
        let mark = self.next_mark();
        self.endings
            .borrow_mut()
            .insert(task, DelayedResponse { lun, mark });
    }

    /// The current position: after every command that has arrived, before every later one.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.inserted.get())
    }

    /// Whether `task` is open and arrived after `mark`.
    pub(crate) fn is_after(&self, task: TaskId, mark: Mark) -> bool {
        self.with(task, |command| command.mark >= mark) == Some(true)
    }

    /// Drops a command; false if it has already ended.
    pub(crate) fn remove(&self, task: TaskId) -> bool {
        self.end(task).is_some()
    }

    /// Whether `task` is open.
    pub(crate) fn is_open(&self, task: TaskId) -> bool {
        self.with(task, |_| ()).is_some()
    }

    /// Ends a command and returns the part that must be kept until its response has been sent.
    pub(crate) fn end(&self, task: TaskId) -> Option<Answered> {
        self.endings.borrow_mut().remove(&task);
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(task.slot())?;
        // Accessed in place, because moving the command out costs more than everything else here.
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

    /// Removes a command that will still be answered. False if its data-in is already being sent, or if it has ended.
    pub(crate) fn remove_unanswered(&self, task: TaskId) -> bool {
        let unanswered = self.with(task, |command| {
            let (lun, mark) = (command.lun, command.mark);
            command
                .read
                .is_empty()
                .then_some(DelayedResponse { lun, mark })
        });
        let Some(Some(ending)) = unanswered else {
            return false;
        };
        self.remove(task);
        self.endings.borrow_mut().insert(task, ending);
        true
    }

    /// Runs `f` on the open command `task`; `None` if it has ended or was aborted.
    pub(crate) fn with<T>(&self, task: TaskId, f: impl FnOnce(&mut OpenCommand) -> T) -> Option<T> {
        let mut slots = self.slots.borrow_mut();
        let command = slots.get_mut(task.slot())?.as_mut()?;
        (command.task == task).then(|| f(command))
    }

    /// What `waited` returns; `None`, at once, if `task` has ended or was aborted.
    pub(crate) async fn while_open<T>(
        &self,
        task: TaskId,
        waited: impl Future<Output = T>,
    ) -> Option<T> {
        let mut waited = pin!(waited);
        poll_fn(|cx| {
            if let Poll::Ready(result) = waited.as_mut().poll(cx) {
                return Poll::Ready(Some(result));
            }
            let waits = self.with(task, |command| command.waiter.0 = Some(cx.waker().clone()));
            match waits {
                Some(()) => Poll::Pending,
                None => Poll::Ready(None),
            }
        })
        .await
    }

    /// The data-in of the open command `task`.
    pub(crate) fn data_in(&self, task: TaskId) -> Option<Ref<'_, Payload>> {
        let data_in = Ref::filter_map(self.slots.borrow(), |slots| {
            let command = slots.get(task.slot())?.as_ref()?;
            (command.task == task).then_some(&command.read)
        });
        data_in.ok()
    }

    /// The memory for the data-out of `tasks`.
    pub(crate) fn held_by(&self, tasks: &[TaskId]) -> Held {
        let held = |&task| self.with(task, |command| command.permits.held());
        tasks.iter().filter_map(held).sum()
    }

    /// The memory of the data-in that is ready to be sent or, in part, being sent.
    pub(crate) fn held_by_data_in(&self) -> Held {
        let slots = self.slots.borrow();
        let open = slots.iter().flatten();
        let replies = open.filter(|command| !command.read.is_empty());
        replies.map(|command| command.permits.held()).sum()
    }

    /// The open commands for `lun` (`None`: all LUNs) that arrived before `mark`, including commands addressed to
    /// other LUNs that are working on this one.
    pub(crate) fn tasks(&self, nexus: &Nexus, lun: Option<u32>, mark: Mark) -> Vec<TaskId> {
        self.charge_look();
        let slots = self.slots.borrow();
        let at_work = lun.map(|lun| (lun, nexus.commands_on(lun)));
        let is_for = |command: &OpenCommand| {
            at_work.as_ref().is_none_or(|(lun, at_work)| {
                command.lun == *lun || at_work.contains(&command_id(command.task))
            })
        };
        let open = slots.iter().flatten();
        open.filter(|command| command.mark < mark && is_for(command))
            .map(|command| command.task)
            .collect()
    }

    /// Charges a look at all commands.
    pub(crate) fn charge_look(&self) {
        charge(LOOK_BYTES * self.slots.borrow().len());
    }

    /// The LUNs of the commands that are open, or whose responses are delayed.
    pub(crate) fn luns(&self) -> BTreeSet<u32> {
        let (slots, endings) = (self.slots.borrow(), self.endings.borrow());
        charge(LOOK_BYTES * (slots.len() + endings.len()));
        let open = slots.iter().flatten().map(|command| command.lun);
        open.chain(endings.values().map(|ending| ending.lun))
            .collect()
    }

    /// The commands for `lun` (`None`: all LUNs) that arrived before `mark`, are no longer open, and whose responses
    /// are delayed.
    pub(crate) fn endings(&self, lun: Option<u32>, mark: Mark) -> Vec<TaskId> {
        let endings = self.endings.borrow();
        charge(LOOK_BYTES * endings.len());
        endings
            .iter()
            .filter(|(_, ending)| ending.mark < mark && lun.is_none_or(|lun| lun == ending.lun))
            .map(|(task, _)| *task)
            .collect()
    }

    /// Whether no command is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.borrow().iter().all(Option::is_none)
    }

    /// Records that a volume started an I/O for `task` on `lun`.
    pub(crate) fn begun(&self, task: TaskId, lun: u32) {
        if !self.order.is_free() {
            self.order.note_begin(|set| set.begun(task, lun));
        }
    }

    /// Records that an I/O of `task` has ended.
    pub(crate) fn ended(&self, task: TaskId) {
        if !self.order.is_free() {
            self.order.note(|set| set.ended(task));
        }
    }

    /// Gives the [order](Self::order) everything that is open or running, unless it is watching already.
    /// `at_work`: the running I/Os, as (command, LUN).
    pub(crate) fn watch(&self, at_work: impl FnOnce() -> Vec<(CommandId, u32)>) {
        if !self.order.is_free() {
            return;
        }
        let mut set = TaskSet::default();
        charge(TRACK_BYTES * self.slots.borrow().len());
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
    /// The command's stage times when it is answered at `now`.
    pub(crate) fn stage_times(&self, now: Instant) -> StageTimes {
        let ns = |from: Instant, to: Instant| to.since(from).as_nanos() as u64;
        let times = &self.times;
        // A command that no volume worked for spent all its time waiting.
        let (started, ended) = match self.kind {
            Some(_) => (times.started, times.ended),
            None => (now, now),
        };
        let volume_ns = ns(started, ended);
        StageTimes {
            queue_ns: self.admission_ns + ns(times.complete, started),
            volume_ns,
            medium_ns: self.medium_ns.map(|medium_ns| medium_ns.min(volume_ns)),
            reply_ns: ns(ended, now),
        }
    }

    /// The part that holds byte `offset` of the data-out, and the range of up to `len` bytes within that part.
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

    /// Takes all the data-out as one payload, with the permits that pay for it.
    pub(crate) fn take_write(&mut self) -> (Payload, Permits) {
        let mut payload = Payload::new();
        for part in self.write.drain(..) {
            payload.push(part.freeze());
        }
        (payload, std::mem::take(&mut self.permits))
    }
}
