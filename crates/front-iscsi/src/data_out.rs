//! A command's data-out: it is collected into memory reserved for it, and the command continues once all of it has
//! arrived.

use std::rc::Rc;

use engine::{Buf, Payload, begin as begin_task, share::charge, time};
use iscsi::TaskId;
use scsi::{Action, Ending};
use unit::{Nexus, Unit};

use crate::{
    answer::{TASK_SET_FULL, refuse, respond},
    connection::Connection,
    offer::Offer,
    open::{OpenCommand, Pending, WriteParts},
    work::{MediumWork, UnitWork, run, sanitize},
};

/// Opens a command that starts dormant, with memory for its unsolicited data. False if there is no memory; the
/// command has then been answered.
pub(crate) fn admit(
    connection: &Connection,
    (nexus, unit): (&Nexus, Option<&Rc<Unit>>),
    offer: Offer,
    action: &Action,
) -> bool {
    // A command that wants more data than the initiator offers is refused later, and no R2T asks for the rest.
    let len = action.data_out_len_bytes().min(offer.write_len.into());
    open_write(connection, (nexus, unit), offer, None, len as u32, 0)
}

/// Opens a command with memory for the unsolicited part of its `len` bytes of data-out.
fn open_write(
    connection: &Connection,
    (nexus, unit): (&Nexus, Option<&Rc<Unit>>),
    offer: Offer,
    pending: Option<(Rc<Unit>, Pending)>,
    len: u32,
    transfer_len: u64,
) -> bool {
    let first = offer.unsolicited_len.min(len);
    // A dormant command must leave the memory of solicited data to those that it waits for.
    let disk = unit.map(|unit| unit.memory());
    let permits = match first == len && pending.is_some() {
        true => nexus.memory.take_all_at_once(disk, first as usize),
        false => nexus.memory.take_at_once(disk, first as usize),
    };
    // What was promised is there. This one was immediate, and so came without a promise.
    let Some(permits) = permits else {
        refuse(connection, offer, None, &TASK_SET_FULL, 0);
        return false;
    };
    let mut write = WriteParts::new();
    if first > 0 {
        write.push(Buf::new(first as usize));
    }
    connection
        .open
        .insert(offer.task, offer.lun, |mark| OpenCommand {
            pending,
            write,
            permits,
            ..offer.open(mark, transfer_len)
        });
    true
}

/// Reserves memory for `len` bytes of data-out and solicits them. Unsolicited data has been promised its memory; the rest
/// waits until memory is available.
pub(crate) fn collect(
    connection: &Rc<Connection>,
    (nexus, unit): (&Rc<Nexus>, &Rc<Unit>),
    offer: Offer,
    pending: (Rc<Unit>, Pending),
    len: u32,
    transfer_len: u64,
) {
    let task = offer.task;
    let is_new = connection.open.with(task, |_| ()).is_none();
    if is_new {
        let whose = (&**nexus, Some(unit));
        if !open_write(connection, whose, offer, Some(pending), len, transfer_len) {
            return;
        }
    } else {
        // The command was dormant, and its unsolicited data has already been placed.
        connection.open.with(task, |command| {
            command.pending = Some(pending);
            command.transfer_len = transfer_len;
        });
    }
    let first = offer.unsolicited_len.min(len);
    if first == len {
        return solicit(connection, task, len);
    }
    let (connection, nexus, unit) = (connection.clone(), nexus.clone(), unit.clone());
    begin_task(async move {
        let rest = (len - first) as usize;
        let permits = nexus.memory.take(Some(unit.memory()), rest);
        let Some(permits) = connection.open.while_open(task, permits).await else {
            return; // aborted meanwhile
        };
        if connection
            .open
            .with(task, |command| {
                let waited = time::now().since(command.times.received);
                command.admission_ns = waited.as_nanos() as u64;
                command.write.push(Buf::new(rest));
                command.permits.pay_rest(permits);
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

/// Continues commands whose data was already complete when it was solicited. Does nothing while a PDU's payload is
/// being received, since the payload may be theirs: the reader continues them afterwards.
pub(crate) fn execute_complete(connection: &Rc<Connection>) {
    while !connection.is_receiving.get() {
        let complete = connection.machine.borrow_mut().poll_complete();
        let Some(task) = complete else { break };
        execute(connection, task);
    }
}

/// Continues a command whose data-out is complete.
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
    let Some((Some((unit, pending)), lun, transfer_len, data, permits)) = taken else {
        return;
    };
    let unit = &unit;
    let work = |op, data| MediumWork {
        task,
        lun,
        op,
        transfer_len,
        data,
        permits,
    };
    let list = match pending {
        Pending::Medium(op) => return run(connection, nexus, unit, work(op, data)),
        Pending::Parameters(list) => list,
    };
    let action = {
        let mut logical = unit.logical.borrow_mut();
        let action = logical.resume(list, &data.to_vec());
        charge(logical.take_work());
        action
    };
    let at_work = || UnitWork::begin(connection, nexus, unit, (task, lun), transfer_len);
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
