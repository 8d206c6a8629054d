//! Runs units' work for open commands, each in a task of its own that answers the command when done.

use std::{cell::Cell, collections::BTreeSet, rc::Rc};

use engine::{Payload, begin as begin_task, share::charge, spawn};
use iscsi::TaskId;
use scsi::{Change, Ending, MediumOp};
use unit::{Io, Kind, LaneUnits, Nexus, Permits, Unit};

use crate::{
    answer::{finish, respond, send_data},
    connection::Connection,
    open::{OpenCommand, command_id},
};

/// The cost of looking at one unit, in bytes of memory that are moved in that time.
const LUN_BYTES: usize = 128;

/// A medium operation of an open command.
pub(crate) struct MediumWork {
    pub(crate) task: TaskId,
    pub(crate) lun: u32,
    pub(crate) op: MediumOp,
    pub(crate) transfer_len: u64,
    pub(crate) data: Payload,
    pub(crate) permits: Permits,
}

/// Has the unit do the work and answers. The I/O counts as running from this call on.
pub(crate) fn run(
    connection: &Rc<Connection>,
    nexus: &Rc<Nexus>,
    unit: &Rc<Unit>,
    mut work: MediumWork,
) {
    connection.open.begun(work.task, work.lun);
    let mut io = Io::begin(nexus, command_id(work.task), work.lun);
    if connection.tells_stage_times.get() {
        let asks = |command: &mut OpenCommand| command.asks_stage_times;
        if connection.open.with(work.task, asks) == Some(true) {
            io.watch();
        }
    }
    let (connection, unit) = (connection.clone(), unit.clone());
    let read_len = work.op.data_in_len_bytes() as usize;
    if read_len > 0 {
        match nexus.memory.try_take(read_len) {
            Some(free) => work.permits = free,
            None => {
                let nexus = nexus.clone();
                // Thousands may wait here, so a waiting task must stay small.
                spawn(async move {
                    work.permits = nexus.memory.take(read_len).await;
                    work_on(connection, unit, work, io);
                });
                return;
            }
        }
    }
    work_on(connection, unit, work, io);
}

/// Has the unit do work for which memory has been reserved.
#[inline(always)] // as `LaneFuture::new`
fn work_on(connection: Rc<Connection>, unit: Rc<Unit>, work: MediumWork, io: Io) {
    let MediumWork {
        task,
        lun: _,
        op,
        transfer_len,
        data,
        permits,
    } = work;
    let data = Cell::new(data);
    begin_task(async move {
        let read_len = op.data_in_len_bytes() as usize;
        let order = &connection.open.order;
        let is_ordered = !order.is_free() && order.is_ordered(task);
        let units = &connection.service.units;
        let is_open = || connection.open.is_open(task);
        let executed = units.execute(io, &unit, (&op, &data), is_ordered, is_open);
        let executed = executed.await;
        connection.open.ended(task);
        let kind = match (read_len, op.data_out_len_bytes()) {
            (0, 0) => Kind::Other,
            (0, _) => Kind::Write,
            _ => Kind::Read,
        };
        let noted = connection.open.with(task, |command| {
            if let Some((started, ended)) = executed.at_work {
                (command.times.started, command.times.ended) = (started, ended);
                command.kind = Some(kind);
                command.medium_ns = executed.medium.map(|medium| medium.as_nanos() as u64);
            }
        });
        if noted.is_none() {
            return; // aborted meanwhile: the abort answers it, or nothing does
        }
        let (ending, len) = match executed.result {
            Ok(read) if read_len > 0 => {
                send_data(&connection, task, read, permits, transfer_len);
                return connection.transmit.notify();
            }
            Ok(_) => (Ending::GOOD, transfer_len),
            Err(ending) => (ending, 0),
        };
        respond(&connection, task, Some(&unit), &ending, len);
        connection.transmit.notify();
    });
}

/// What a unit does for an open command other than medium operations, in a task of its own.
pub(crate) struct UnitWork {
    connection: Rc<Connection>,
    nexus: Rc<Nexus>,
    unit: Rc<Unit>,
    task: TaskId,
    lun: u32,
    transfer_len: u64,
}

impl UnitWork {
    /// Prepares work of `unit` for the command `task`, whose data-out is `transfer_len` bytes.
    pub(crate) fn begin(
        connection: &Rc<Connection>,
        nexus: &Rc<Nexus>,
        unit: &Rc<Unit>,
        (task, lun): (TaskId, u32),
        transfer_len: u64,
    ) -> UnitWork {
        UnitWork {
            connection: connection.clone(),
            nexus: nexus.clone(),
            unit: unit.clone(),
            task,
            lun,
            transfer_len,
        }
    }

    fn units(&self) -> &Rc<LaneUnits> {
        &self.connection.service.units
    }

    fn is_open(&self) -> bool {
        self.connection.open.is_open(self.task)
    }

    /// Marks I/O as running on the command's own LUN and on `others`, which does not contain it.
    fn begin_io(&self, others: &BTreeSet<u32>) -> Io {
        let (open, lun) = (&self.connection.open, self.lun);
        open.begun(self.task, lun);
        for &other in others {
            open.begun(self.task, other);
        }
        let others = others.iter().copied();
        Io::begin_with(&self.nexus, command_id(self.task), lun, others)
    }

    /// Marks `ios` I/Os, one per LUN, as ended, and answers the command unless it was aborted.
    fn end(&self, ios: usize, ending: Option<Ending>) {
        for _ in 0..ios {
            self.connection.open.ended(self.task);
        }
        if let Some(ending) = ending {
            let (unit, len) = (&self.unit, self.transfer_len);
            finish(&self.connection, self.task, unit, &ending, len);
        }
    }

    /// Performs an EXTENDED COPY. It counts as running on all its logical units from now on; an abort ends it after
    /// the current segment.
    pub(crate) fn copy(self, plan: scsi::Copy) {
        // Each segment names two units, which are looked for among all.
        charge(LUN_BYTES * self.nexus.luns().len() * (1 + 2 * plan.segments.len()));
        let mut others = LaneUnits::luns_of_copy(&self.nexus, &plan);
        others.remove(&self.lun);
        let io = self.begin_io(&others);
        spawn(async move {
            let units = self.units();
            let ending = units.copy(io, self.lun, &plan, || self.is_open()).await;
            self.end(1 + others.len(), Some(ending));
        });
    }

    /// Flushes, ejects, and answers. If aborted meanwhile, it does not eject.
    pub(crate) fn eject(self, eject: scsi::Eject) {
        let io = self.begin_io(&BTreeSet::new());
        spawn(async move {
            let units = self.units();
            let ejected = units.eject(io, &self.unit, &eject, || self.is_open());
            let ending = ejected.await;
            self.end(1, ending);
        });
    }

    /// Changes the unit's state and answers.
    pub(crate) fn change(self, change: Change) {
        let io = self.begin_io(&BTreeSet::new());
        begin_task(async move {
            let open = &self.connection.open;
            let ended = || {
                open.ended(self.task);
                open.mark()
            };
            let is_open = || self.is_open();
            let changed = self.units().change(io, &self.unit, &change, ended, is_open);
            let ending = changed.await;
            self.end(0, ending);
        });
    }
}

/// Runs a sanitize in a task of its own, and answers its command at the start (IMMED) or at the end.
pub(crate) fn sanitize(
    connection: &Rc<Connection>,
    unit: &Rc<Unit>,
    task: TaskId,
    overwrite: scsi::Overwrite,
    transfer_len: u64,
) {
    let (connection, unit) = (connection.clone(), unit.clone());
    spawn(async move {
        let ending = connection.service.units.sanitize(&unit, overwrite).await;
        respond(&connection, task, Some(&unit), &ending, transfer_len);
        connection.transmit.notify();
    });
}
