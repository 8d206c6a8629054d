//! The running I/Os of one nexus. An I/O outlives its command if that is aborted, so whoever must know
//! that no earlier I/O is left waits for it here.

use std::cell::{Cell, RefCell};

use engine::sync::Notify;

use crate::places::Places;

/// Identifies a command of a nexus; its front chooses the number (SAM-5 4.8: command identifier).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommandId(pub u64);

/// A copyable identifier of a running I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunningId {
    index: usize,
    serial: u64,
}

#[derive(Debug)]
struct Entry {
    serial: u64,
    lun: u32,
    command: CommandId,
}

/// The running I/Os of one nexus.
#[derive(Debug, Default)]
pub(crate) struct Running {
    entries: RefCell<Places<Entry>>,
    serial: Cell<u64>,
    /// Notified when an I/O has ended.
    ended: Notify,
}

impl Running {
    /// Registers an I/O of `command`.
    pub(crate) fn begin(&self, command: CommandId, lun: u32) -> RunningId {
        let serial = self.serial.get() + 1;
        self.serial.set(serial);
        let index = self.entries.borrow_mut().enter(Entry {
            serial,
            lun,
            command,
        });
        RunningId { index, serial }
    }

    /// Records that the I/O has ended.
    pub(crate) fn end(&self, id: RunningId) {
        let ended = self.entries.borrow_mut().leave(id.index);
        assert!(
            ended.is_some_and(|entry| entry.serial == id.serial),
            "an I/O ends once"
        );
        self.ended.notify();
    }

    /// Whether any I/O is running.
    pub(crate) fn is_any(&self) -> bool {
        !self.entries.borrow().is_empty()
    }

    /// Whether an I/O is running for `command` on `lun`.
    pub(crate) fn is_running(&self, command: CommandId, lun: u32) -> bool {
        let entries = self.entries.borrow();
        let mut entries = entries.iter();
        entries.any(|(_, entry)| entry.command == command && entry.lun == lun)
    }

    /// The identifier, LUN and command of each.
    pub(crate) fn all(&self) -> Vec<(RunningId, u32, CommandId)> {
        let entries = self.entries.borrow();
        let all = entries.iter().map(|(index, entry)| {
            let serial = entry.serial;
            (RunningId { index, serial }, entry.lun, entry.command)
        });
        all.collect()
    }

    /// The I/Os for which `chosen(id, lun, command)` holds.
    pub(crate) fn chosen(
        &self,
        chosen: impl Fn(RunningId, u32, CommandId) -> bool,
    ) -> Vec<RunningId> {
        let entries = self.entries.borrow();
        let running = entries.iter().filter_map(|(index, entry)| {
            let serial = entry.serial;
            let id = RunningId { index, serial };
            chosen(id, entry.lun, entry.command).then_some(id)
        });
        running.collect()
    }

    /// Whether one of `ids` is running.
    pub(crate) fn is_any_of(&self, ids: &[RunningId]) -> bool {
        let entries = self.entries.borrow();
        ids.iter().any(|id| {
            let entry = entries.get(id.index);
            entry.is_some_and(|entry| entry.serial == id.serial)
        })
    }

    /// Waits until none of `ids` is running.
    pub(crate) async fn wait_ended(&self, ids: &[RunningId]) {
        self.ended
            .wait_for(|| (!self.is_any_of(ids)).then_some(()))
            .await;
    }
}
