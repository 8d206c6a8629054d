//! The running I/Os of one nexus. An I/O outlives its command when that is aborted: whatever has to know
//! that no I/O of the past is left waits for it here.

use std::cell::{Cell, RefCell};

use engine::sync::Notify;

/// Names a command of a nexus; its front chooses the number (SAM-5 4.8: command identifier).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommandId(pub u64);

/// A copyable name of a running I/O.
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
    entries: RefCell<Vec<Option<Entry>>>,
    free: RefCell<Vec<usize>>,
    serial: Cell<u64>,
    /// An I/O has ended.
    ended: Notify,
}

impl Running {
    /// Notes that an I/O of `command` begins.
    pub(crate) fn begin(&self, command: CommandId, lun: u32) -> RunningId {
        let serial = self.serial.get() + 1;
        self.serial.set(serial);
        let mut entries = self.entries.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            entries.push(None);
            entries.len() - 1
        });
        debug_assert!(entries[index].is_none(), "a free place is taken");
        entries[index] = Some(Entry {
            serial,
            lun,
            command,
        });
        RunningId { index, serial }
    }

    /// Notes that the volume has ended that I/O.
    pub(crate) fn end(&self, id: RunningId) {
        let ended = self.entries.borrow_mut()[id.index].take();
        debug_assert!(
            ended.is_some_and(|entry| entry.serial == id.serial),
            "an I/O ends once"
        );
        self.free.borrow_mut().push(id.index);
        self.ended.notify();
    }

    /// Whether any runs.
    pub(crate) fn is_any(&self) -> bool {
        self.entries.borrow().iter().any(Option::is_some)
    }

    /// Whether one runs for `command` on `lun`.
    pub(crate) fn is_running(&self, command: CommandId, lun: u32) -> bool {
        let entries = self.entries.borrow();
        let mut entries = entries.iter().flatten();
        entries.any(|entry| entry.command == command && entry.lun == lun)
    }

    /// The command and the LUN of all of them.
    pub(crate) fn at_work(&self) -> Vec<(CommandId, u32)> {
        let entries = self.entries.borrow();
        let entries = entries.iter().flatten();
        entries.map(|entry| (entry.command, entry.lun)).collect()
    }

    /// Those for which `chosen(lun, command)` holds.
    pub(crate) fn chosen(&self, chosen: impl Fn(u32, CommandId) -> bool) -> Vec<RunningId> {
        let entries = self.entries.borrow();
        entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| {
                let entry = entry.as_ref()?;
                chosen(entry.lun, entry.command).then_some(RunningId {
                    index,
                    serial: entry.serial,
                })
            })
            .collect()
    }

    /// Waits until none of `ids` runs any more.
    pub(crate) async fn wait_ended(&self, ids: &[RunningId]) {
        self.ended
            .wait_for(|| {
                let entries = self.entries.borrow();
                let still = ids.iter().any(|id| {
                    entries[id.index]
                        .as_ref()
                        .is_some_and(|entry| entry.serial == id.serial)
                });
                (!still).then_some(())
            })
            .await;
    }
}
