//! A SCSI command from its CDB to its answer: the logical unit says what to do, data-out is
//! collected into memory that has been paid for, the volume does the work in a task of its own.

use std::{cell::Cell, pin::pin, rc::Rc};

use engine::{Buf, Payload, begin as begin_task, spawn, time};
use iscsi::{CommandRequest, Direction, Outcome, TaskId};
use scsi::{Action, Asc, Change, Changed, Ending, MediumOp, NexusId, Sense, SenseKey, Status};
use smallvec::smallvec;

use crate::{
    abort::{self, Abort, Whose},
    connection::Connection,
    copy,
    front::{Target, Unit},
    medium,
    open::{Mark, OpenCommand, Pending, Permits, RunningId, WriteParts},
    order::{self, Attribute},
    sanitize,
    stages::{Kind, Times},
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
    let Some(target) = connection.target() else {
        return connection.end("a command came without a target: the protocol machine is wrong");
    };
    let lun = scsi::Lun::decode(request.lun.0.to_be_bytes()).map_or(NO_UNIT, scsi::Lun::number);
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
        let unit = target.units.get(&lun);
        return refuse(connection, offer, unit, &Ending::check(sense), 0);
    }
    let attribute = match Attribute::read(request.attribute) {
        Ok(attribute) => attribute,
        Err(sense) => {
            let unit = target.units.get(&lun);
            return refuse(connection, offer, unit, &Ending::check(sense), 0);
        }
    };
    let nexus = NexusId(connection.id);
    connection.introductions.heard(
        |stat_sn| connection.machine.borrow().is_acknowledged(stat_sn),
        |lun| target.units[&lun].disk.borrow().meet(nexus),
    );
    let action = match target.units.get(&lun) {
        Some(unit) => unit.disk.borrow_mut().begin(nexus, &request.cdb),
        None => scsi::absent::begin(&target.bare, &request.cdb),
    };
    connection.introductions.answered(lun, offer.task, &action);
    if attribute == Attribute::Simple && connection.open.order.is_free() {
        act(connection, &target, offer, action);
    } else {
        order::begin(connection, &target, offer, action, attribute);
    }
}

/// Goes on with a command whose data-out is complete.
pub(crate) fn execute(connection: &Rc<Connection>, task: TaskId) {
    let Some(target) = connection.target() else {
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
    let list = match pending {
        Pending::Medium(op) => return run(connection, &target, work(op, data)),
        Pending::Parameters(list) => list,
    };
    let Some(unit) = target.units.get(&lun) else {
        return;
    };
    let action = unit.disk.borrow_mut().resume(list, &data.to_vec());
    match action {
        Action::End(ending) => respond(connection, task, Some(unit), &ending, transfer_len),
        Action::Medium(op) => run(connection, &target, work(op, Payload::new())),
        Action::Copy(plan) => {
            let (connection, target) = (connection.clone(), target.clone());
            let copying = extended_copy(connection, target, (task, lun), plan, transfer_len);
            spawn(copying);
        }
        Action::Overwrite(overwrite) => {
            sanitize(connection, &target, (task, lun), overwrite, transfer_len);
        }
        Action::Change(wanted) => {
            change(connection, &target, (task, lun), wanted, transfer_len);
        }
        other => {
            tracing::error!(?other, "a parameter list asked for data-in");
            respond(connection, task, Some(unit), &Ending::BUSY, 0);
        }
    }
}

/// Does what the logical unit says a fresh command needs.
pub(crate) fn act(connection: &Rc<Connection>, target: &Rc<Target>, offer: Offer, action: Action) {
    let unit = target.units.get(&offer.lun);
    if let Err(sense) = action.check_offered(offer.write_len.into()) {
        let wanted = action.data_out_len_bytes();
        return refuse(connection, offer, unit, &Ending::check(sense), wanted);
    }
    match action {
        Action::End(ending) => refuse(connection, offer, unit, &ending, 0),
        Action::Reply(data) => reply(connection, offer, &data),
        Action::Overwrite(overwrite) => {
            sanitize(connection, target, (offer.task, offer.lun), overwrite, 0);
        }
        Action::Copy(_) => {
            tracing::error!("a copy came without its parameter list");
            respond(connection, offer.task, unit, &Ending::BUSY, 0);
        }
        Action::Eject(ejecting) => {
            let open = offer.open(None, 0, WriteParts::new());
            connection.open.insert(open);
            eject(connection, target, (offer.task, offer.lun), ejecting);
        }
        Action::Change(wanted) => {
            let open = offer.open(None, 0, WriteParts::new());
            connection.open.insert(open);
            change(connection, target, (offer.task, offer.lun), wanted, 0);
        }
        Action::ReportLuns(request) => {
            let luns: Vec<_> = target
                .units
                .keys()
                .filter_map(|&n| scsi::Lun::new(n).ok())
                .collect();
            act(connection, target, offer, request.reply(&luns));
        }
        Action::Parameters(list) => {
            let len = list.len_bytes();
            collect(
                connection,
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
            let block = u64::from(target.block_size_bytes(offer.lun));
            let room = match is_write {
                true => offer.write_len.into(),
                false => u64::from(offer.read_len).div_ceil(block) * block,
            };
            let op = match transfer_len > room {
                true => medium::shortened(op, room),
                false => Some(op),
            };
            let Some(op) = op else {
                return refuse(connection, offer, unit, &Ending::GOOD, transfer_len);
            };
            if is_write {
                let len = op.data_out_len_bytes() as u32;
                collect(connection, offer, Pending::Medium(op), len, transfer_len);
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
                run(connection, target, work);
            }
        }
    }
}

/// Does a sanitize in a task of its own, and answers its command at the beginning or the end.
fn sanitize(
    connection: &Rc<Connection>,
    target: &Rc<Target>,
    (task, lun): (TaskId, u32),
    overwrite: scsi::Overwrite,
    transfer_len: u64,
) {
    let (connection, target) = (connection.clone(), target.clone());
    spawn(async move {
        let unit = &target.units[&lun];
        let answer = |ending: &Ending| {
            respond(&connection, task, Some(unit), ending, transfer_len);
            connection.transmit.notify();
        };
        let immediate = overwrite.immediate;
        let begun = match sanitize::begin(&connection.front, unit, &overwrite).await {
            Ok(begun) => begun,
            Err(ending) => return answer(&ending),
        };
        if immediate {
            answer(&Ending::GOOD);
        }
        let ending = sanitize::overwrite(&connection.front, unit, begun, &overwrite).await;
        if !immediate {
            answer(&ending);
        }
    });
}

/// Does an EXTENDED COPY. It is known as running on all its logical units from its first poll on; an
/// abort ends it after the segment in hand.
async fn extended_copy(
    connection: Rc<Connection>,
    target: Rc<Target>,
    (task, lun): (TaskId, u32),
    plan: scsi::Copy,
    transfer_len: u64,
) {
    let mut luns = copy::luns(&target, &plan);
    luns.insert(lun);
    let running: Vec<_> = luns
        .into_iter()
        .map(|lun| connection.open.begin_io(task, lun))
        .collect();
    let mut done = 0;
    let mut ending = Ending::GOOD;
    for segment in &plan.segments {
        if connection.open.with(task, |_| ()).is_none() {
            break; // aborted meanwhile
        }
        if let Err(error) = copy::segment(&connection, &target, segment).await {
            ending = error.ending();
            break;
        }
        done += 1;
    }
    for running in running {
        connection.open.end_io(running);
    }
    let unit = &target.units[&lun];
    plan.ended(&unit.disk.borrow(), NexusId(connection.id), done, &ending);
    finish(&connection, task, unit, &ending, transfer_len);
}

/// Flushes, ejects, and answers its open command. One that was aborted meanwhile does not eject.
fn eject(
    connection: &Rc<Connection>,
    target: &Rc<Target>,
    (task, lun): (TaskId, u32),
    eject: scsi::Eject,
) {
    let running = connection.open.begin_io(task, lun);
    let (connection, target) = (connection.clone(), target.clone());
    spawn(async move {
        let unit = &target.units[&lun];
        let steps = &connection.steps;
        let flushed = medium::perform(&*unit.volume, &eject.flush, Payload::new(), steps).await;
        if connection.open.with(task, |_| ()).is_some() {
            let ending = eject.flushed(&unit.disk.borrow(), flushed.map(drop));
            finish(&connection, task, unit, &ending, 0);
        }
        connection.open.end_io(running);
    });
}

/// Makes a change of a unit's state and answers its open command. Who waits for the command's end
/// waits until the change is made or given up, as for a write.
fn change(
    connection: &Rc<Connection>,
    target: &Rc<Target>,
    (task, lun): (TaskId, u32),
    change: Change,
    transfer_len: u64,
) {
    let running = connection.open.begin_io(task, lun);
    let (connection, target) = (connection.clone(), target.clone());
    begin_task(async move {
        let unit = &target.units[&lun];
        let front = &connection.front;
        let is_open = || connection.open.with(task, |_| ()).is_some();
        let made = front.change(unit, &change, is_open).await;
        // Before others are aborted: they may wait for this one's end in the same way.
        connection.open.end_io(running);
        let ending = match made {
            None => return, // aborted meanwhile
            Some(Err(ending)) => ending,
            Some(Ok(changed)) => {
                abort_others(&connection, unit, changed).await;
                Ending::GOOD
            }
        };
        finish(&connection, task, unit, &ending, transfer_len);
    });
}

/// Ends the commands that a change ends.
async fn abort_others(connection: &Connection, unit: &Unit, changed: Changed) {
    if changed.abort.is_empty() {
        return;
    }
    // Without the one that waits here for the answer.
    let own = NexusId(connection.id);
    let nexuses = changed.abort.into_iter().filter(|nexus| *nexus != own);
    let abort = Abort {
        volumes: vec![unit.volume_name.clone()],
        of: Whose::These(nexuses.collect()),
        spare: None,
        by: own,
        before: connection.open.mark(),
        attention: None, // of the loss of their registrations they hear anyway
    };
    connection.front.abort_everywhere(abort).await;
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

impl Target {
    fn block_size_bytes(&self, lun: u32) -> u32 {
        self.units
            .get(&lun)
            .map_or(512, |unit| unit.volume.shape().block_size_bytes)
    }
}

/// Opens a command that has to wait for its turn, with room for what comes unasked meanwhile;
/// false if there is none, and then it has been answered.
pub(crate) fn admit(connection: &Connection, offer: Offer, action: &Action) -> bool {
    // More than is offered is refused later, and never asked for.
    let len = action.data_out_len_bytes().min(offer.write_len.into());
    open_write(connection, offer, None, len as u32, 0)
}

/// Opens a command with room for what comes unasked of its `len` bytes of data-out.
fn open_write(
    connection: &Connection,
    offer: Offer,
    pending: Option<Pending>,
    len: u32,
    transfer_len: u64,
) -> bool {
    let first = offer.unsolicited_len.min(len);
    let Some(permit) = connection.memory.take_at_once(first as usize) else {
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
    offer: Offer,
    pending: Pending,
    len: u32,
    transfer_len: u64,
) {
    let task = offer.task;
    let is_new = connection.open.with(task, |_| ()).is_none();
    if is_new {
        if !open_write(connection, offer, Some(pending), len, transfer_len) {
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
    let connection = connection.clone();
    begin_task(async move {
        let rest = (len - first) as usize;
        let permits = connection.memory.take(rest).await;
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
    connection.execute_complete();
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

/// Has the volume do the work and answers. The I/O is known as running from this call on.
fn run(connection: &Rc<Connection>, target: &Rc<Target>, mut work: Work) {
    let running = connection.open.begin_io(work.task, work.lun);
    let (connection, target) = (connection.clone(), target.clone());
    let read_len = work.op.data_in_len_bytes() as usize;
    if read_len > 0 {
        match connection.memory.try_take(read_len) {
            Some(free) => work.permits = free,
            None => {
                // Thousands may wait: not each with all that its work is going to need.
                spawn(async move {
                    work.permits = connection.memory.take(read_len).await;
                    work_on(connection, target, work, running);
                });
                return;
            }
        }
    }
    work_on(connection, target, work, running);
}

/// Has the volume do work whose memory is there.
fn work_on(connection: Rc<Connection>, target: Rc<Target>, work: Work, running: RunningId) {
    let Work {
        task,
        lun,
        op,
        transfer_len,
        data,
        permits,
    } = work;
    begin_task(async move {
        let read_len = op.data_in_len_bytes() as usize;
        let unit = &target.units[&lun];
        let started = Cell::new(None);
        // The initiator may have been fenced off while its data or turn came, or a sanitize begun.
        let recheck = || unit.disk.borrow_mut().recheck(NexusId(connection.id), &op);
        let perform = pin!(async {
            match connection.open.with(task, |_| ()) {
                None => Ok(Payload::new()), // aborted meanwhile
                Some(()) => {
                    recheck()?;
                    started.set(Some(time::now()));
                    let steps = &connection.steps;
                    let result = medium::perform(&*unit.volume, &op, data, steps).await;
                    result.map_err(|error| unit.disk.borrow().complete(Err(error)))
                }
            }
        });
        // Not behind a sanitize: its end would be waited for by whoever waits for this one's.
        let exclusively = async |extent, perform| match recheck() {
            Ok(()) => connection.front.exclusively(unit, extent, perform).await,
            Err(ending) => Err(ending),
        };
        let is_ordered = !connection.open.order.is_free() && connection.open.order.is_ordered(task);
        let result = match op.span() {
            Some(extent) if is_ordered || op.is_exclusive() => exclusively(extent, perform).await,
            Some(extent) => match unit.gate.enter(extent, recheck).await {
                Ok(_at_work) => perform.await,
                Err(ending) => Err(ending),
            },
            None => perform.await,
        };
        connection.open.end_io(running);
        if let Some(started) = started.get() {
            let kind = match (read_len, op.data_out_len_bytes()) {
                (0, 0) => Kind::Other,
                (0, _) => Kind::Write,
                _ => Kind::Read,
            };
            connection.open.with(task, |command| {
                (command.times.started, command.times.ended) = (started, time::now());
                command.kind = Some(kind);
            });
        }
        match result {
            Ok(read) if read_len > 0 => {
                send_data(&connection, task, read, permits, transfer_len);
                connection.transmit.notify();
            }
            Ok(_) => finish(&connection, task, unit, &Ending::GOOD, transfer_len),
            Err(ending) => finish(&connection, task, unit, &ending, 0),
        }
    });
}

/// Answers with bytes that are at hand.
fn reply(connection: &Connection, offer: Offer, data: &[u8]) {
    if data.is_empty() {
        return respond(connection, offer.task, None, &Ending::GOOD, 0);
    }
    let Some(permit) = connection.memory.take_at_once(data.len()) else {
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
fn finish(connection: &Connection, task: TaskId, unit: &Unit, ending: &Ending, transfer_len: u64) {
    if connection.open.with(task, |_| ()).is_some() {
        respond(connection, task, Some(unit), ending, transfer_len);
        connection.transmit.notify();
    }
}

/// Ends a command that was not opened, or not since its turn came. Its initiator may still owe data,
/// and its answer waits for them.
fn refuse(
    connection: &Connection,
    offer: Offer,
    unit: Option<&Unit>,
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
    unit: Option<&Unit>,
    ending: &Ending,
    transfer_len: u64,
) {
    let format = unit.map_or(scsi::SenseFormat::Fixed, |unit| {
        unit.disk.borrow().sense_format()
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
    } else if let (Some(unit), Status::CheckCondition) = (unit, ending.status) {
        abort::after_error(connection, unit, task);
    }
}
