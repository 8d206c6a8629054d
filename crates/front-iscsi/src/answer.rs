//! How commands are answered: with data-in, or with a status and sense data.

use std::rc::Rc;

use engine::{Buf, Payload, share::charge, spawn};
use iscsi::{Outcome, TaskId};
use scsi::{Ending, Status};
use unit::{Permits, Unit};

use crate::{connection::Connection, offer::Offer, open::command_id};

/// While there is no memory for replies, a session may have this many bytes of them wait for some.
const WAITING_REPLIES_BYTES_MAX: usize = 64 << 10;

/// There is no memory for the command now; the initiator may retry (SAM-5 5.3.1).
pub(crate) const TASK_SET_FULL: Ending = Ending {
    status: Status::TaskSetFull,
    sense: None,
};

/// Answers with data that is already available.
pub(crate) fn reply(connection: &Rc<Connection>, offer: Offer, data: Vec<u8>) {
    let (task, len) = (offer.task, data.len());
    charge(2 * len);
    let Some(nexus) = connection.nexus().filter(|_| len > 0) else {
        return respond(connection, task, None, &Ending::GOOD, 0);
    };
    let permits = nexus.memory.take_all_at_once(None, len);
    let waiting = connection.waiting_replies_bytes.get() + len;
    if permits.is_none() && waiting > WAITING_REPLIES_BYTES_MAX {
        return respond(connection, task, None, &TASK_SET_FULL, 0);
    }
    let open = |mark| offer.open(mark, len as u64);
    connection.open.insert(task, offer.lun, open);
    if let Some(permits) = permits {
        let payload = Buf::copy_of(&data).into();
        return send_data(connection, task, payload, permits, len as u64);
    }
    connection.waiting_replies_bytes.set(waiting);
    let (connection, nexus) = (connection.clone(), nexus.clone());
    spawn(async move {
        let permits = nexus.memory.take(None, len);
        let permits = connection.open.while_open(task, permits).await;
        let waiting = &connection.waiting_replies_bytes;
        waiting.set(waiting.get() - len);
        if let Some(permits) = permits {
            let payload = Buf::copy_of(&data).into();
            send_data(&connection, task, payload, permits, len as u64);
            connection.transmit.notify();
        }
    });
}

/// Answers with data-in and GOOD.
pub(crate) fn send_data(
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
        tracing::debug!(%error, "a reply to a command that has already ended");
    }
}

/// Answers a command that has done work. If it was aborted meanwhile, the abort has either answered it or suppressed
/// the answer.
pub(crate) fn finish(
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

/// Answers a command that has not begun its work. The response waits for any data its initiator still owes.
pub(crate) fn refuse(
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

/// Answers a command without data-in.
pub(crate) fn respond(
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
        tracing::debug!(%error, "a reply to a command that has already ended");
    } else if let (Some(unit), Some(nexus), Status::CheckCondition) =
        (unit, connection.nexus(), ending.status)
    {
        let before = connection.open.mark();
        let units = &connection.service.units;
        units.after_error(nexus, unit, command_id(task), before);
    }
}
