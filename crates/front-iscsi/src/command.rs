//! The start of a SCSI command: asks the logical unit what the CDB means, then begins it at once or in task-attribute
//! order.

use std::rc::Rc;

use engine::{Payload, share::charge, spawn};
use iscsi::{CommandRequest, Direction};
use scsi::{Action, Asc, Ending, Sense, SenseKey, absent};
use unit::{Nexus, Permits, Unit};

use crate::{
    answer::{refuse, reply},
    connection::Connection,
    data_out::{admit, collect},
    offer::Offer,
    open::Pending,
    order::Attribute,
    work::{MediumWork, UnitWork, run, sanitize},
};

/// A LUN that no unit has, for commands to logical units that do not exist.
const NO_UNIT: u32 = u32::MAX;

/// The cost of one LUN in a list of them, in bytes of memory that are moved in that time.
const LUN_BYTES: usize = 128;

/// Starts a command. Its immediate data, if any, is received right after.
pub(crate) fn begin(connection: &Rc<Connection>, request: &CommandRequest) {
    let Some(nexus) = connection.nexus() else {
        return connection.end("a command arrived without a target: a bug in the protocol machine");
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
        asks_stage_times: request.asks_stage_times,
    };
    if connection.is_finishing() {
        return refuse(connection, offer, None, &Ending::BUSY, 0);
    }
    if request.direction == Direction::Bidirectional {
        // No disk command transfers data in both directions.
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
    connection.unacknowledged.acknowledge(
        |stat_sn| connection.machine.borrow().is_acknowledged(stat_sn),
        |lun, attention| nexus.acknowledged(lun, attention),
    );
    let action = match unit {
        Some(unit) => {
            let mut logical = unit.logical.borrow_mut();
            let action = logical.begin(nexus.id, &request.cdb);
            charge(logical.take_work());
            action
        }
        None => connection
            .target()
            .map_or(Action::End(Ending::BUSY), |target| {
                absent::begin(&target.bare, &request.cdb)
            }),
    };
    connection.unacknowledged.answered(lun, offer.task, &action);
    if attribute == Attribute::Simple && connection.open.order.is_free() {
        act(connection, nexus, unit, offer, action);
    } else {
        begin_in_order(connection, nexus, unit, offer, action, attribute);
    }
}

/// Carries out what the logical unit says a new command requires.
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
        (Action::Reply(data), _) => reply(connection, offer, data),
        (Action::ReportLuns(request), _) => {
            let luns = nexus.luns();
            charge(LUN_BYTES * luns.len());
            let numbers = luns.keys().filter_map(|&n| scsi::Lun::new(n).ok());
            let luns: Vec<_> = numbers.collect();
            act(connection, nexus, unit, offer, request.reply(&luns));
        }
        (action, Some(unit)) => act_on(connection, nexus, unit, offer, action),
        (_, None) => refuse(connection, offer, None, &absent::TAKEN_AWAY, 0),
    }
}

/// Carries out what a new command requires of its unit.
fn act_on(
    connection: &Rc<Connection>,
    nexus: &Rc<Nexus>,
    unit: &Rc<Unit>,
    offer: Offer,
    action: Action,
) {
    let (task, lun) = (offer.task, offer.lun);
    let open_and_work = || {
        connection
            .open
            .insert(offer.task, offer.lun, |mark| offer.open(mark, 0));
        UnitWork::begin(connection, nexus, unit, (task, lun), 0)
    };
    match action {
        Action::Overwrite(overwrite) => sanitize(connection, unit, task, overwrite, 0),
        Action::Eject(ejecting) => open_and_work().eject(ejecting),
        Action::Change(wanted) => open_and_work().change(wanted),
        Action::Parameters(list) => {
            let len = list.len_bytes();
            collect(
                connection,
                (nexus, unit),
                offer,
                (unit.clone(), Pending::Parameters(list)),
                len,
                len.into(),
            );
        }
        Action::Medium(op) => {
            let transfer_len = op.data_in_len_bytes() + op.data_out_len_bytes();
            let is_write = op.data_out_len_bytes() > 0;
            // If the initiator expects less data than the CDB says, only the blocks that fit are transferred and an
            // overflow residual reports the rest (RFC 7143 §11.4.5.1).
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
                    (nexus, unit),
                    offer,
                    (unit.clone(), Pending::Medium(op)),
                    len,
                    transfer_len,
                );
            } else {
                connection
                    .open
                    .insert(offer.task, offer.lun, |mark| offer.open(mark, transfer_len));
                let work = MediumWork {
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
            tracing::error!(?other, "an action arrived without its parameter list");
            refuse(connection, offer, Some(unit), &Ending::BUSY, 0);
        }
    }
}

/// Begins a command that is not SIMPLE, or that arrives after one that is not: once it is enabled.
fn begin_in_order(
    connection: &Rc<Connection>,
    nexus: &Rc<Nexus>,
    unit: Option<&Rc<Unit>>,
    offer: Offer,
    action: Action,
    attribute: Attribute,
) {
    if action.is_attention() {
        // At once: if a waiting command were aborted, its unit attention would be lost.
        return act(connection, nexus, unit, offer, action);
    }
    let task = offer.task;
    let open = &connection.open;
    if attribute == Attribute::HeadOfQueue {
        act(connection, nexus, unit, offer, action);
        if open.is_open(task) {
            open.watch(|| nexus.at_work());
            open.order.hold_back(task);
        }
        return;
    }
    open.watch(|| nexus.at_work());
    if !admit(connection, (nexus, unit), offer, &action) {
        return open.order.note(|_| ());
    }
    let is_ordered = attribute == Attribute::Ordered;
    let signal = open.order.stand_in_line(task, is_ordered);
    let (connection, nexus, unit) = (connection.clone(), nexus.clone(), unit.cloned());
    spawn(async move {
        connection.open.order.take(task, signal).await;
        // The command may have been aborted while it waited.
        if connection.open.is_open(task) {
            act(&connection, &nexus, unit.as_ref(), offer, action);
            connection.transmit.notify();
        }
    });
}
