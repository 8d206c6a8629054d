//! A SCSI command from its CDB to its answer: the logical unit says what to do, data-out is
//! collected into memory that has been paid for, the volume does the work in a task of its own.

use std::{cell::Cell, collections::BTreeSet, rc::Rc};

use engine::{Buf, Payload, begin as begin_task, spawn, time};
use iscsi::{CommandRequest, Direction, Outcome, TaskId};
use scsi::{Action, Asc, Change, Ending, MediumOp, Sense, SenseKey, Status, absent};
use smallvec::smallvec;
use unit::{Io, Kind, LaneUnits, Mark, Nexus, Permits, Times, Unit};

use crate::{
    connection::Connection,
    open::{OpenCommand, Pending, WriteParts, command_id},
    order::Attribute,
};

/// A LUN number that no unit has, for commands to what does not exist.
const NO_UNIT: u32 = u32::MAX;

/// There is no memory for it now: the initiator may send it again (SAM-5 5.3.1).
const TASK_SET_FULL: Ending = Ending {
    status: Status::TaskSetFull,
    sense: None,
};

/// What an initiator gives and takes for one command.
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) task: TaskId,
    pub(crate) lun: u32,
    read_len: u32,
    write_len: u32,
    unsolicited_len: u32,
}

/// Starts a command. Its immediate data, if any, is received right after.
pub(crate) fn begin(connection: &Rc<Connection>, request: CommandRequest) {
    let Some(nexus) = connection.nexus() else {
        return connection.end("a command came without a target: the protocol machine is wrong");
    };
    let lun = scsi::Lun::decode(request.lun.0.to_be_bytes()).map_or(NO_UNIT, scsi::Lun::number);
    let unit = nexus.unit(lun);
    let unit = unit.as_ref();
    let offer = Offer {
        task: request.task,
        lun,
        read_len: request.read_len,
        write_len: request.write_len,
        unsolicited_len: request.unsolicited_len,
    };
    if connection.is_finishing() {
        return refuse(connection, offer, None, &Ending::BUSY, 0);
    }
    if request.direction == Direction::Bidirectional {
        // No command of a disk moves data both ways.
        let sense = Sense::new(
            SenseKey::IllegalRequest,
            Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT,
        );
        return refuse(connection, offer, unit, &Ending::check(sense), 0);
    }
    let attribute = match Attribute::read(request.attribute) {
        Ok(attribute) => attribute,
        Err(sense) => return refuse(connection, offer, unit, &Ending::check(sense), 0),
    };
    connection.power_on.acknowledge(
        |stat_sn| connection.machine.borrow().is_acknowledged(stat_sn),
        |lun| nexus.power_on_heard(lun),
    );
    let action = match unit {
        Some(unit) => unit.logical.borrow_mut().begin(nexus.id, &request.cdb),
        None => connection
            .target()
            .map_or(Action::End(Ending::BUSY), |target| {
                absent::begin(&target.bare, &request.cdb)
            }),
    };
    connection.power_on.answered(lun, offer.task, &action);
    if attribute == Attribute::Simple && connection.open.order.is_free() {
        act(connection, nexus, unit, offer, action);
    } else {
        begin_in_order(connection, nexus, offer, action, attribute);
    }
}

/// Goes on with a command whose data-out is complete.
pub(crate) fn execute(connection: &Rc<Connection>, task: TaskId) {
    let Some(nexus) = connection.nexus() else {
        return;
    };
    let taken = connection.open.with(task, |command| {
        command.times.complete = time::turn_began();
        let (data, permits) = command.take_write();
        let pending = command.pending.take();
        (pending, command.lun, command.transfer_len, data, permits)
    });
    let Some((Some(pending), lun, transfer_len, data, permits)) = taken else {
        return;
    };
    let work = |op, data| Work {
        task,
        lun,
        op,
        transfer_len,
        data,
        permits,
    };
    let Some(unit) = &nexus.unit(lun) else {
        return respond(connection, task, None, &absent::TAKEN_AWAY, transfer_len);
    };
    let list = match pending {
        Pending::Medium(op) => return run(connection, nexus, unit, work(op, data)),
        Pending::Parameters(list) => list,
    };
    let action = unit.logical.borrow_mut().resume(list, &data.to_vec());
    let at_work = || AtWork::begin(connection, nexus, unit, (task, lun), transfer_len);
    match action {
        Action::End(ending) => respond(connection, task, Some(unit), &ending, transfer_len),
        Action::Medium(op) => run(connection, nexus, unit, work(op, Payload::new())),
        Action::Copy(plan) => at_work().copy(plan),
        Action::Overwrite(overwrite) => {
            sanitize(connection, unit, task, overwrite, transfer_len);
        }
        Action::Change(wanted) => at_work().change(wanted),
        other => {
            tracing::error!(?other, "a parameter list asked for data-in");
            respond(connection, task, Some(unit), &Ending::BUSY, 0);
        }
    }
}

/// Does what the logical unit says a fresh command needs.
fn act(
    connection: &Rc<Connection>,
    nexus: &Rc<Nexus>,
    unit: Option<&Rc<Unit>>,
    offer: Offer,
    action: Action,
) {
    if let Err(sense) = action.check_offered(offer.write_len.into()) {
        let wanted = action.data_out_len_bytes();
        return refuse(connection, offer, unit, &Ending::check(sense), wanted);
    }
    match (action, unit) {
        (Action::End(ending), _) => refuse(connection, offer, unit, &ending, 0),
        (Action::Reply(data), _) => reply(connection, offer, &data),
        (Action::ReportLuns(request), _) => {
            let luns = nexus.luns();
            let numbers = luns.keys().filter_map(|&n| scsi::Lun::new(n).ok());
            let luns: Vec<_> = numbers.collect();
            act(connection, nexus, unit, offer, request.reply(&luns));
        }
        (action, Some(unit)) => act_on(connection, nexus, unit, offer, action),
        (_, None) => refuse(connection, offer, None, &absent::TAKEN_AWAY, 0),
    }
}

/// Does what a fresh command needs of its unit.
fn act_on(
    connection: &Rc<Connection>,
    nexus: &Rc<Nexus>,
    unit: &Rc<Unit>,
    offer: Offer,
    action: Action,
) {
    let (task, lun) = (offer.task, offer.lun);
    let open_and_work = || {
        let open = offer.open(None, 0, WriteParts::new());
        connection.open.insert(open);
        AtWork::begin(connection, nexus, unit, (task, lun), 0)
    };
    match action {
        Action::Overwrite(overwrite) => sanitize(connection, unit, task, overwrite, 0),
        Action::Eject(ejecting) => open_and_work().eject(ejecting),
        Action::Change(wanted) => open_and_work().change(wanted),
        Action::Parameters(list) => {
            let len = list.len_bytes();
            collect(
                connection,
                nexus,
                offer,
                Pending::Parameters(list),
                len,
                len.into(),
            );
        }
        Action::Medium(op) => {
            let transfer_len = op.data_in_len_bytes() + op.data_out_len_bytes();
            let is_write = op.data_out_len_bytes() > 0;
            // An initiator that takes or gives less than the command says moves the blocks that
            // fit, and learns of the rest by an overflow residual (RFC 7143 §11.4.5.1).
            let block = u64::from(unit.block_size_bytes());
            let room = match is_write {
                true => offer.write_len.into(),
                false => u64::from(offer.read_len).div_ceil(block) * block,
            };
            let op = match transfer_len > room {
                true => unit::shortened(op, room),
                false => Some(op),
            };
            let Some(op) = op else {
                return refuse(connection, offer, Some(unit), &Ending::GOOD, transfer_len);
            };
            if is_write {
                let len = op.data_out_len_bytes() as u32;
                collect(
                    connection,
                    nexus,
                    offer,
                    Pending::Medium(op),
                    len,
                    transfer_len,
                );
            } else {
                connection
                    .open
                    .insert(offer.open(None, transfer_len, WriteParts::new()));
                let work = Work {
                    task: offer.task,
                    lun: offer.lun,
                    op,
                    transfer_len,
                    data: Payload::new(),
                    permits: Permits::new(),
                };
                run(connection, nexus, unit, work);
            }
        }
        other => {
            tracing::error!(?other, "an action came without its parameter list");
            refuse(connection, offer, Some(unit), &Ending::BUSY, 0);
        }
    }
}

/// Begins a command that is not SIMPLE, or that comes after such a one, when its turn has come.
fn begin_in_order(
    connection: &Rc<Connection>,
    nexus: &Rc<Nexus>,
    offer: Offer,
    action: Action,
    attribute: Attribute,
) {
    let unit = nexus.unit(offer.lun);
    let unit = unit.as_ref();
    if action.is_attention() {
        // At once: nobody would be told if it waited and was aborted.
        return act(connection, nexus, unit, offer, action);
    }
    let task = offer.task;
    let open = &connection.open;
    open.watch(|| nexus.at_work());
    if attribute == Attribute::HeadOfQueue {
        act(connection, nexus, unit, offer, action);
        // Where it has ended already, so has the watch.
        open.watch(|| nexus.at_work());
        return open.order.hold_back(task);
    }
    if !admit(connection, nexus, offer, &action) {
        return open.order.note(|_| ());
    }
    let is_ordered = attribute == Attribute::Ordered;
    let turn = open.order.stand_in_line(task, is_ordered);
    let (connection, nexus) = (connection.clone(), nexus.clone());
    spawn(async move {
        connection.open.order.take(task, turn).await;
        // Unless it was aborted meanwhile.
        if connection.open.is_open(task) {
            let unit = nexus.unit(offer.lun);
            act(&connection, &nexus, unit.as_ref(), offer, action);
            connection.transmit.notify();
        }
    });
}

/// Does a sanitize in a task of its own, and answers its command at the beginning or the end.
fn sanitize(
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

/// An open command on its way through its unit, in a task of its own.
struct AtWork {
    connection: Rc<Connection>,
    nexus: Rc<Nexus>,
    unit: Rc<Unit>,
    task: TaskId,
    lun: u32,
    transfer_len: u64,
}

impl AtWork {
    fn begin(
        connection: &Rc<Connection>,
        nexus: &Rc<Nexus>,
        unit: &Rc<Unit>,
        (task, lun): (TaskId, u32),
        transfer_len: u64,
    ) -> AtWork {
        AtWork {
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

    /// Volumes work for it from now on, on its own LUN and on `others`.
    fn begin_io(&self, others: &BTreeSet<u32>) -> Io {
        let (open, lun) = (&self.connection.open, self.lun);
        let further = others.iter().copied().filter(|other| *other != lun);
        open.begun(self.task, lun);
        further.clone().for_each(|lun| open.begun(self.task, lun));
        Io::begin_with(&self.nexus, command_id(self.task), lun, further)
    }

    /// As many of its I/Os have ended as there were LUNs, and it ends if it was not aborted.
    fn end(&self, ios: usize, ending: Option<Ending>) {
        for _ in 0..ios {
            self.connection.open.ended(self.task);
        }
        if let Some(ending) = ending {
            let (unit, len) = (&self.unit, self.transfer_len);
            finish(&self.connection, self.task, unit, &ending, len);
        }
    }

    /// Does an EXTENDED COPY. It is known as running on all its logical units from now on; an abort
    /// ends it after the segment in hand.
    fn copy(self, plan: scsi::Copy) {
        let mut luns = LaneUnits::luns_of_copy(&self.nexus, &plan);
        luns.insert(self.lun);
        let io = self.begin_io(&luns);
        spawn(async move {
            let units = self.units();
            let ending = units.copy(io, self.lun, &plan, || self.is_open()).await;
            self.end(luns.len(), Some(ending));
        });
    }

    /// Flushes, ejects, and answers. One that was aborted meanwhile does not eject.
    fn eject(self, eject: scsi::Eject) {
        let io = self.begin_io(&BTreeSet::new());
        spawn(async move {
            let units = self.units();
            let ejected = units.eject(io, &self.unit, &eject, || self.is_open());
            let ending = ejected.await;
            self.end(1, ending);
        });
    }

    /// Makes a change of a unit's state and answers.
    fn change(self, change: Change) {
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

impl Offer {
    fn open(self, pending: Option<Pending>, transfer_len: u64, write: WriteParts) -> OpenCommand {
        OpenCommand {
            task: self.task,
            mark: Mark::default(),
            lun: self.lun,
            times: Times::at(time::turn_began()),
            kind: None,
            pending,
            transfer_len,
            write,
            read: Payload::new(),
            permits: Permits::new(),
        }
    }
}

/// Opens a command that has to wait for its turn, with room for what comes unasked meanwhile;
/// false if there is none, and then it has been answered.
fn admit(connection: &Connection, nexus: &Nexus, offer: Offer, action: &Action) -> bool {
    // More than is offered is refused later, and never asked for.
    let len = action.data_out_len_bytes().min(offer.write_len.into());
    open_write(connection, nexus, offer, None, len as u32, 0)
}

/// Opens a command with room for what comes unasked of its `len` bytes of data-out.
fn open_write(
    connection: &Connection,
    nexus: &Nexus,
    offer: Offer,
    pending: Option<Pending>,
    len: u32,
    transfer_len: u64,
) -> bool {
    let first = offer.unsolicited_len.min(len);
    let Some(permit) = nexus.memory.take_at_once(first as usize) else {
        refuse(connection, offer, None, &TASK_SET_FULL, 0);
        return false;
    };
    let mut write = WriteParts::new();
    if first > 0 {
        write.push(Buf::new(first as usize));
    }
    let mut command = offer.open(pending, transfer_len, write);
    command.permits.push(permit);
    connection.open.insert(command);
    true
}

/// Finds memory for `len` bytes of data-out and asks for them. What may come unasked needs room
/// at once; the rest waits for its turn and is solicited then.
fn collect(
    connection: &Rc<Connection>,
    nexus: &Rc<Nexus>,
    offer: Offer,
    pending: Pending,
    len: u32,
    transfer_len: u64,
) {
    let task = offer.task;
    let is_new = connection.open.with(task, |_| ()).is_none();
    if is_new {
        if !open_write(connection, nexus, offer, Some(pending), len, transfer_len) {
            return;
        }
    } else {
        // It has waited for its turn, and what came unasked is where it belongs.
        connection.open.with(task, |command| {
            command.pending = Some(pending);
            command.transfer_len = transfer_len;
        });
    }
    let first = offer.unsolicited_len.min(len);
    if first == len {
        return solicit(connection, task, len);
    }
    let (connection, nexus) = (connection.clone(), nexus.clone());
    begin_task(async move {
        let rest = (len - first) as usize;
        let permits = nexus.memory.take(rest).await;
        if connection
            .open
            .with(task, |command| {
                command.write.push(Buf::new(rest));
                command.permits.extend(permits);
            })
            .is_some()
        {
            solicit(&connection, task, len);
            connection.transmit.notify();
        }
    });
}

fn solicit(connection: &Rc<Connection>, task: TaskId, len: u32) {
    let solicited = connection.machine.borrow_mut().solicit(task, len);
    if let Err(error) = solicited {
        tracing::debug!(%error, "a command ended while it waited for memory");
    }
    execute_complete(connection);
}

/// A medium operation on its way.
struct Work {
    task: TaskId,
    lun: u32,
    op: MediumOp,
    transfer_len: u64,
    data: Payload,
    permits: Permits,
}

/// Goes on with commands whose data were all there when they were asked for. Not while a PDU's
/// payload is on its way to its place, which may be theirs: the reader does it then.
pub(crate) fn execute_complete(connection: &Rc<Connection>) {
    while !connection.is_receiving.get() {
        let complete = connection.machine.borrow_mut().poll_complete();
        let Some(task) = complete else { break };
        execute(connection, task);
    }
}

/// Has the unit do the work and answers. The I/O is known as running from this call on.
fn run(connection: &Rc<Connection>, nexus: &Rc<Nexus>, unit: &Rc<Unit>, mut work: Work) {
    connection.open.begun(work.task, work.lun);
    let io = Io::begin(nexus, command_id(work.task), work.lun);
    let (connection, unit) = (connection.clone(), unit.clone());
    let read_len = work.op.data_in_len_bytes() as usize;
    if read_len > 0 {
        match nexus.memory.try_take(read_len) {
            Some(free) => work.permits = free,
            None => {
                let nexus = nexus.clone();
                // Thousands may wait: not each with all that its work is going to need.
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

/// Has the unit do work whose memory is there.
fn work_on(connection: Rc<Connection>, unit: Rc<Unit>, work: Work, io: Io) {
    let Work {
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
            }
        });
        if noted.is_none() {
            return; // aborted meanwhile: who did that answers it, or nobody
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

/// Answers with bytes that are at hand.
fn reply(connection: &Connection, offer: Offer, data: &[u8]) {
    if data.is_empty() {
        return respond(connection, offer.task, None, &Ending::GOOD, 0);
    }
    let permit = connection
        .nexus()
        .map(|nexus| nexus.memory.take_at_once(data.len()));
    let Some(Some(permit)) = permit else {
        return respond(connection, offer.task, None, &TASK_SET_FULL, 0);
    };
    connection
        .open
        .insert(offer.open(None, data.len() as u64, WriteParts::new()));
    let payload = Buf::copy_of(data).into();
    send_data(
        connection,
        offer.task,
        payload,
        smallvec![permit],
        data.len() as u64,
    );
}

fn send_data(
    connection: &Connection,
    task: TaskId,
    data: Payload,
    permits: Permits,
    transfer_len: u64,
) {
    let len = data.len() as u32;
    let open = connection.open.with(task, |command| {
        command.read = data;
        command.permits = permits;
    });
    if open.is_none() {
        return; // aborted meanwhile
    }
    let good = Outcome {
        status: Status::Good as u8,
        sense: &[],
        transfer_len,
    };
    if let Err(error) = connection
        .machine
        .borrow_mut()
        .data_in(task, len, Some(good))
    {
        tracing::debug!(%error, "a reply to a command that has ended");
    }
}

/// Ends a command that has been at work. One that was aborted meanwhile is answered by who aborted
/// it, or not at all.
fn finish(
    connection: &Connection,
    task: TaskId,
    unit: &Rc<Unit>,
    ending: &Ending,
    transfer_len: u64,
) {
    if connection.open.is_open(task) {
        respond(connection, task, Some(unit), ending, transfer_len);
        connection.transmit.notify();
    }
}

/// Ends a command that was not opened, or not since its turn came. Its initiator may still owe data,
/// and its answer waits for them.
fn refuse(
    connection: &Connection,
    offer: Offer,
    unit: Option<&Rc<Unit>>,
    ending: &Ending,
    transfer_len: u64,
) {
    let task = offer.task;
    if offer.write_len > 0 && connection.open.with(task, |_| ()).is_none() {
        connection.open.note_ending(task, offer.lun);
    }
    respond(connection, task, unit, ending, transfer_len);
}

/// Ends a command without data-in.
fn respond(
    connection: &Connection,
    task: TaskId,
    unit: Option<&Rc<Unit>>,
    ending: &Ending,
    transfer_len: u64,
) {
    let format = unit.map_or(scsi::SenseFormat::Fixed, |unit| {
        unit.logical.borrow().sense_format()
    });
    let sense = ending
        .sense
        .as_ref()
        .map(|sense| sense.encode(format))
        .unwrap_or_default();
    let outcome = Outcome {
        status: ending.status as u8,
        sense: &sense,
        transfer_len,
    };
    let responded = connection.machine.borrow_mut().respond(task, outcome);
    if let Err(error) = responded {
        tracing::debug!(%error, "a reply to a command that has ended");
    } else if let (Some(unit), Some(nexus), Status::CheckCondition) =
        (unit, connection.nexus(), ending.status)
    {
        let before = connection.open.mark();
        let units = &connection.service.units;
        units.after_error(nexus, unit, command_id(task), before);
    }
}
