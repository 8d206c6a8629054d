//! The commands of a session: those queued for the target's command window, those at the target, and those whose
//! replies have not been taken. The queue is advanced by whoever sees the window open, so that a thousand queued
//! commands cost no wake-up when one completes.

use std::{collections::VecDeque, task::Waker};

use engine::{Buf, Duration, Instant, Payload, time};
use iscsi::{
    Direction, InitiatorConnection, LunField, OutgoingCommand, StageTimes, TaskId, TaskResult,
};

use super::cdb::CdbBytes;
use crate::layers::{self, TargetTimes, Work};

/// The task attribute SIMPLE (RFC 7143 §11.3.1.2).
const SIMPLE: u8 = 1;

/// A command, from submission until its reply is taken.
pub(super) struct SubmittedTask {
    pub(super) request: TaskRequest,
    /// The machine's identifier; `None` while it waits for the command window.
    pub(super) id: Option<TaskId>,
    /// When the machine accepted it.
    pub(super) began: Instant,
    /// How many commands it had accepted before.
    order: u64,
    pub(super) data: TaskData,
    pub(super) waker: Option<Waker>,
    pub(super) result: Option<TaskResult>,
    /// The stage times at the target and on the way, if it is watched.
    work: Option<Box<Work>>,
    /// The caller has gone.
    pub(super) detached: bool,
}

/// What a command asks for.
pub(super) struct TaskRequest {
    pub(super) lun: LunField,
    pub(super) cdb: CdbBytes,
    pub(super) direction: Direction,
    pub(super) data_len: u32,
}

impl SubmittedTask {
    pub(super) fn new(request: TaskRequest, data: TaskData) -> SubmittedTask {
        SubmittedTask {
            request,
            id: None,
            began: Instant::default(),
            order: 0,
            data,
            waker: None,
            result: None,
            work: None,
            detached: false,
        }
    }

    /// The same, reporting to the current watch.
    pub(super) fn watched(self) -> SubmittedTask {
        let work = layers::current().map(|watch| Box::new(Work::new(watch)));
        SubmittedTask { work, ..self }
    }

    /// Records that it was answered or given up.
    pub(super) fn end(&mut self, result: TaskResult) {
        if let Some(work) = self.work.take() {
            if let TaskResult::Completed { stage_times, .. } = &result {
                // The answer arrived in this turn of the lane, whatever ran before it was processed.
                work.end_at_target(stage_times.map(told), time::turn_began());
            }
        }
        self.result = Some(result);
    }

    /// How long the target has had it; `None` if it is queued or answered.
    pub(super) fn waits(&self, now: Instant) -> Option<Duration> {
        (self.id.is_some() && self.result.is_none()).then(|| now - self.began)
    }

    /// Whether it was answered with a status other than GOOD.
    pub(super) fn was_told(&self) -> bool {
        matches!(&self.result, Some(TaskResult::Completed { status, .. }) if *status != 0)
    }
}

fn told(times: StageTimes) -> TargetTimes {
    TargetTimes {
        total: Duration::from_nanos(times.total_ns()),
        medium: times.medium_ns.map(Duration::from_nanos),
    }
}

pub(super) enum TaskData {
    None,
    /// The buffer of a read, allocated when the machine accepts the command.
    In(Buf),
    Out(Payload),
}

/// The commands whose replies have not been taken. The protocol machine reuses a slot as soon as its task has ended,
/// so entries have keys of their own.
#[derive(Default)]
pub(super) struct Tasks {
    pub(super) entries: Vec<Option<SubmittedTask>>,
    free: Vec<usize>,
    /// Entries waiting for room in the target's command window, in order.
    line: VecDeque<usize>,
    /// When the machine last accepted one of them, or when the queue became non-empty.
    line_moved: Instant,
    /// The entry of the latest task in each machine slot.
    by_slot: Vec<usize>,
    /// Commands that the machine has accepted.
    accepted: u64,
}

impl Tasks {
    /// Appends a task to the queue; returns its key.
    pub(super) fn insert(&mut self, task: SubmittedTask) -> usize {
        let key = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[key] = Some(task);
        if self.line.is_empty() {
            self.line_moved = time::turn_began();
        }
        self.line.push_back(key);
        key
    }

    /// Has the machine accept as many queued commands as it can, in order.
    ///
    /// # Errors
    /// The machine's error for a command that it will never accept.
    pub(super) fn submit(
        &mut self,
        machine: &mut InitiatorConnection,
        now: Instant,
    ) -> std::result::Result<(), iscsi::Error> {
        while let Some(&key) = self.line.front() {
            let Some(task) = &mut self.entries[key] else {
                unreachable!("whoever removes an entry removes it from the line");
            };
            let TaskRequest {
                lun,
                cdb,
                direction,
                data_len,
            } = &task.request;
            let id = match machine.submit(OutgoingCommand {
                lun: *lun,
                cdb,
                attribute: SIMPLE,
                direction: *direction,
                data_len: *data_len,
                asks_stage_times: task.work.is_some(),
            }) {
                Ok(id) => id,
                Err(iscsi::Error::WindowClosed) => return Ok(()),
                Err(error) => return Err(error),
            };
            (task.id, task.began, task.order) = (Some(id), now, self.accepted);
            self.accepted += 1;
            if let Some(work) = &mut task.work {
                work.begin(time::now());
            }
            if *direction == Direction::Read {
                task.data = TaskData::In(Buf::new(*data_len as usize));
            }
            self.line.pop_front();
            self.line_moved = now;
            if self.by_slot.len() <= id.slot() {
                self.by_slot.resize(id.slot() + 1, usize::MAX);
            }
            self.by_slot[id.slot()] = key;
        }
        Ok(())
    }

    /// How long the head of the queue has been waiting for the command window.
    pub(super) fn line_waits(&self, now: Instant) -> Duration {
        match self.line.is_empty() {
            true => Duration::ZERO,
            false => now - self.line_moved,
        }
    }

    /// Whether a command that changes the medium is outstanding at the target.
    pub(super) fn has_writes_at_target(&self) -> bool {
        let mut tasks = self.entries.iter().flatten();
        tasks.any(|task| {
            task.id.is_some() && task.result.is_none() && task.request.cdb.changes_medium()
        })
    }

    /// Commands that the machine accepted before that of entry `key`, that are not answered yet, and that a pending unit
    /// attention would have answered.
    pub(super) fn unanswered_before(&self, key: usize) -> impl Iterator<Item = TaskId> {
        let order = self.entries[key].as_ref().map_or(0, |task| task.order);
        let waiting = self.entries.iter().flatten().filter(move |task| {
            task.result.is_none() && task.order < order && task.request.cdb.gets_attentions()
        });
        waiting.filter_map(|task| task.id)
    }

    pub(super) fn remove(&mut self, key: usize) -> Option<SubmittedTask> {
        let task = self.entries.get_mut(key)?.take()?;
        self.free.push(key);
        if task.id.is_none() {
            self.line.retain(|waiting| *waiting != key);
        }
        Some(task)
    }

    /// The entry of the task that the machine calls `id`.
    pub(super) fn key_of(&self, id: TaskId) -> Option<usize> {
        let key = *self.by_slot.get(id.slot())?;
        let task = self.entries.get(key)?.as_ref()?;
        (task.id == Some(id)).then_some(key)
    }

    /// The data of a write.
    pub(super) fn data_out(&self, id: TaskId) -> Option<&Payload> {
        match &self.entries[self.key_of(id)?].as_ref()?.data {
            TaskData::Out(payload) => Some(payload),
            _ => None,
        }
    }

    /// Takes a read's buffer out while the socket fills it.
    pub(super) fn take_buf(&mut self, key: usize) -> Option<Buf> {
        match &mut self.entries[key].as_mut()?.data {
            TaskData::In(buf) => Some(std::mem::replace(buf, Buf::new(0))),
            _ => None,
        }
    }

    pub(super) fn put_buf(&mut self, key: usize, buf: Buf) {
        if let Some(task) = &mut self.entries[key] {
            task.data = TaskData::In(buf);
        }
    }
}
