//! The running I/Os of one nexus, each with its unit. An I/O outlives its command if that is aborted, and its unit's
//! place in the nexus, so whoever must know that no earlier I/O is left waits for it here.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
    sync::Arc,
};

use engine::{sync::Notify, time};
use volume::pending::{Pending, Slot};

use crate::{disk::Unit, places::Places};

/// Identifies a command of a nexus; its front chooses the number (SAM-5 4.8: command identifier).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommandId(pub u64);

/// A copyable identifier of a running I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunningId {
    index: usize,
    serial: u64,
}

struct RunningIo {
    serial: u64,
    /// Where the unit was when the I/O began. By now, nothing or another unit may be there.
    lun: u32,
    unit: Rc<Unit>,
    command: CommandId,
    counted: Slot,
}

/// A running I/O, to decide about.
pub(crate) struct At<'a> {
    /// Where its unit was when it began.
    pub(crate) lun: u32,
    pub(crate) unit: &'a Rc<Unit>,
    pub(crate) command: CommandId,
}

impl RunningIo {
    fn at(&self) -> At<'_> {
        At {
            lun: self.lun,
            unit: &self.unit,
            command: self.command,
        }
    }
}

/// The running I/Os of one nexus.
#[derive(Default)]
pub(crate) struct NexusIos {
    entries: RefCell<Places<RunningIo>>,
    serial: Cell<u64>,
    /// How many there are, for other threads.
    pending: Arc<Pending>,
    /// Notified when an I/O has ended.
    ended: Notify,
}

impl NexusIos {
    /// Registers an I/O of `command` on `unit`, which is at `lun`.
    pub(crate) fn begin(&self, command: CommandId, lun: u32, unit: &Rc<Unit>) -> RunningId {
        let serial = self.serial.get() + 1;
        self.serial.set(serial);
        let index = self.entries.borrow_mut().enter(RunningIo {
            serial,
            lun,
            unit: unit.clone(),
            command,
            counted: self.pending.begin(time::last_known()),
        });
        RunningId { index, serial }
    }

    /// Records that the I/O has ended.
    pub(crate) fn end(&self, id: RunningId) {
        let ended = self.entries.borrow_mut().leave(id.index);
        let ended = ended.filter(|entry| entry.serial == id.serial);
        self.pending.end(ended.expect("an I/O ends once").counted);
        self.ended.notify();
    }

    /// How many are running, and since when, for other threads.
    pub(crate) fn pending(&self) -> &Arc<Pending> {
        &self.pending
    }

    /// Whether any I/O is running.
    pub(crate) fn is_any(&self) -> bool {
        !self.entries.borrow().is_empty()
    }

    /// Whether an I/O is running for which `chosen` holds.
    pub(crate) fn has(&self, chosen: impl Fn(At<'_>) -> bool) -> bool {
        let entries = self.entries.borrow();
        entries.iter().any(|(_, entry)| chosen(entry.at()))
    }

    /// The commands for which an I/O is running that began on `lun`.
    pub(crate) fn commands_on(&self, lun: u32) -> BTreeSet<CommandId> {
        let entries = self.entries.borrow();
        let on = entries.iter().filter(|(_, entry)| entry.lun == lun);
        on.map(|(_, entry)| entry.command).collect()
    }

    /// The LUNs on which running I/Os began.
    pub(crate) fn luns(&self) -> BTreeSet<u32> {
        let entries = self.entries.borrow();
        entries.iter().map(|(_, entry)| entry.lun).collect()
    }

    /// How many I/Os are running.
    pub(crate) fn len(&self) -> usize {
        self.entries.borrow().len()
    }

    /// Calls `each` with every running I/O.
    pub(crate) fn for_each(&self, mut each: impl FnMut(At<'_>)) {
        let entries = self.entries.borrow();
        entries.iter().for_each(|(_, entry)| each(entry.at()));
    }

    /// The I/Os for which `chosen` holds.
    pub(crate) fn chosen(&self, chosen: impl Fn(At<'_>) -> bool) -> Vec<RunningId> {
        let entries = self.entries.borrow();
        let running = entries.iter().filter_map(|(index, entry)| {
            let serial = entry.serial;
            chosen(entry.at()).then_some(RunningId { index, serial })
        });
        running.collect()
    }

    /// Whether one of `ids` is running.
    fn is_any_of(&self, ids: &[RunningId]) -> bool {
        let entries = self.entries.borrow();
        ids.iter().any(|id| {
            let entry = entries.get(id.index);
            entry.is_some_and(|entry| entry.serial == id.serial)
        })
    }

    /// Waits until none of `ids` is running.
    pub(crate) async fn wait_ended(&self, ids: &[RunningId]) {
        // What has ended stays ended, so each is looked at until then and never again.
        let mut left = ids;
        let mut have_ended = || {
            while let [first, rest @ ..] = left {
                if self.is_any_of(&[*first]) {
                    return None;
                }
                left = rest;
            }
            Some(())
        };
        self.ended.wait_for(&mut have_ended).await;
    }
}
