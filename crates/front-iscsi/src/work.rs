//! Runs units' work for open commands, each in a task of its own that answers the command when done.

use std::{cell::Cell, rc::Rc};

use engine::{LaneFuture, Payload, begin as begin_task, share::charge, spawn};
use iscsi::TaskId;
use scsi::{Change, Ending, MediumOp};
use unit::{CommandKind, Copying, Io, LaneUnits, Nexus, Permits, Unit, Wanted};

use crate::{
    answer::{finish, respond, send_data},
    connection::Connection,
    open::{OpenCommand, command_id},
    sense,
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
    let mut io = Io::begin(nexus, command_id(work.task), work.lun, unit);
    if connection.tells_stage_times.get() {
        let asks = |command: &mut OpenCommand| command.asks_stage_times;
        if connection.open.with(work.task, asks) == Some(true) {
            io.watch();
        }
    }
    let (connection, unit) = (connection.clone(), unit.clone());
    let read_len = work.op.data_in_len_bytes() as usize;
    if read_len > 0 {
        match nexus.memory.try_take(Some(unit.memory()), read_len) {
            Some(free) => work.permits = free,
            None => {
                let nexus = nexus.clone();
                // Thousands may wait here, so a waiting task must stay small.
                spawn(async move {
                    let permits = nexus.memory.take(Some(unit.memory()), read_len);
                    match connection.open.while_open(work.task, permits).await {
                        Some(permits) => work.permits = permits,
                        // Aborted: whoever waits for its I/O need not wait for memory.
                        None => {
                            io.finish();
                            return connection.open.ended(work.task);
                        }
                    }
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
        let wanted = WhileOpen {
            connection: &connection,
            task,
        };
        let executed = units.execute(io, (&op, &data), is_ordered, wanted);
        let executed = executed.await;
        connection.open.ended(task);
        let kind = match (read_len, op.data_out_len_bytes()) {
            (0, 0) => CommandKind::Other,
            (0, _) => CommandKind::Write,
            _ => CommandKind::Read,
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
            Err(error) => (sense::ending(error), 0),
        };
        respond(&connection, task, Some(&unit), &ending, len);
        connection.transmit.notify();
    });
}

/// A command is wanted while it is open.
struct WhileOpen<'a> {
    connection: &'a Connection,
    task: TaskId,
}

impl Wanted for WhileOpen<'_> {
    fn is_wanted(&self) -> bool {
        self.connection.open.is_open(self.task)
    }

    fn until_unwanted(&self) -> LaneFuture<'_, ()> {
        LaneFuture::new(async {
            let forever = std::future::pending::<()>();
            self.connection.open.while_open(self.task, forever).await;
        })
    }
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

    /// Marks I/O as running on the command's unit.
    fn begin_io(&self) -> Io {
        self.connection.open.begun(self.task, self.lun);
        Io::begin(&self.nexus, command_id(self.task), self.lun, &self.unit)
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
    /// the current piece.
    pub(crate) fn copy(self, plan: scsi::Copy) {
        // Each segment names two units, which are looked for among all.
        charge(LUN_BYTES * self.nexus.luns().len() * (1 + 2 * plan.segments.len()));
        let (command, own) = (command_id(self.task), (self.lun, &self.unit));
        let copying = Copying::begin(&self.nexus, command, own, plan);
        let mut ios = 0;
        for lun in [self.lun].into_iter().chain(copying.others()) {
            self.connection.open.begun(self.task, lun);
            ios += 1;
        }
        spawn(async move {
            let units = self.units();
            let wanted = WhileOpen {
                connection: &self.connection,
                task: self.task,
            };
            let ending = units.copy(copying, wanted).await;
            self.end(ios, Some(ending));
        });
    }

    /// Flushes, ejects, and answers. If aborted meanwhile, it does not eject.
    pub(crate) fn eject(self, eject: scsi::Eject) {
        let io = self.begin_io();
        spawn(async move {
            let units = self.units();
            let ejected = units.eject(io, &eject, || self.is_open());
            let ejected = ejected.await;
            let ending = ejected.map(|ejected| ejected.unwrap_or_else(sense::ending));
            self.end(1, ending);
        });
    }

    /// Changes the unit's state and answers.
    pub(crate) fn change(self, change: Change) {
        let io = self.begin_io();
        begin_task(async move {
            let open = &self.connection.open;
            let ended = || {
                open.ended(self.task);
                open.mark()
            };
            let is_open = || self.is_open();
            let changed = self.units().change(io, &change, ended, is_open);
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
