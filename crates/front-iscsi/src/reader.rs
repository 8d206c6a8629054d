//! The receiving side of a connection: frames the byte stream, hands each PDU to the protocol machine, and receives
//! payload straight into the command's own memory.

use std::rc::Rc;

use engine::{Buf, share::charge, spend, time};
use iscsi::{RxData, TaskId};
use iscsi_stream::{ReceiveError, Receiver};
use smallvec::SmallVec;

use crate::{
    connection::Connection,
    data_out,
    events::{self, DataOut},
};

/// Length of the buffer for headers and small payloads, in bytes.
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// The same before login and in discovery, in bytes: enough for what initiators send. It grows for who sends more.
const LOGIN_BUFFER_BYTES: usize = 4 << 10;
/// The cost of processing one PDU, expressed in bytes moved, for the scheduler's accounting.
const PDU_COST_BYTES: usize = 8 << 10;

/// The cost of a byte of data that the machine itself processes, nearly always text, expressed in bytes moved.
const TEXT_COST: usize = 16;

/// Reads until the connection ends; returns why it did.
pub(crate) async fn run(connection: &Rc<Connection>) -> &'static str {
    let mut receiver = Receiver::new(connection.stream.clone(), LOGIN_BUFFER_BYTES);
    loop {
        let wants_read = || connection.machine.borrow().wants_read();
        if !wants_read() {
            connection
                .sent
                .wait_for(|| (connection.is_ended() || wants_read()).then_some(()))
                .await;
        }
        if connection.is_ended() {
            return "ended";
        }
        // A discovery session goes on with what it has: anybody may have one.
        if connection.nexus().is_some() {
            receiver.reserve(RECEIVE_BUFFER_BYTES);
        }
        let result = read_pdu(connection, &mut receiver).await;
        connection.widen_window();
        connection.transmit.notify();
        match result {
            Ok(()) => {}
            Err(ReceiveError::Protocol(error)) => fail(connection, *error),
            Err(error) => {
                tracing::debug!(peer = %connection.peer, %error, "receiving failed");
                connection.end(&error.to_string());
                return "receiving failed";
            }
        }
        if connection.is_closing() {
            return "the protocol is over";
        }
    }
}

/// Receives one PDU.
async fn read_pdu(
    connection: &Rc<Connection>,
    receiver: &mut Receiver,
) -> iscsi_stream::ReceiveResult<()> {
    let limits = connection.machine.borrow().frame_limits();
    receiver.next(&limits).await?;
    spend(PDU_COST_BYTES).await;
    let now = time::turn_began();
    connection.last_heard.set(now);
    connection.is_receiving.set(true);
    if connection.nexus().is_none() {
        let sessions = &connection.service.sessions;
        sessions.admission.step(connection.id);
    }
    let is_used_up = {
        let (header, ahs, data) = receiver.head();
        if let RxData::Inline(text) = data {
            charge(TEXT_COST * text.len());
        }
        let mut machine = connection.machine.borrow_mut();
        let promised = machine.promised();
        machine.receive(now.as_ns(), header, ahs, data);
        if let (true, Some(nexus)) = (machine.promised() < promised, connection.nexus()) {
            nexus.memory.arrived();
        }
        machine.promised() == Some(0)
    };
    let mut complete = SmallVec::<[TaskId; 1]>::new();
    while let Some(data) = events::act(connection) {
        match data {
            DataOut::Place { task, offset, len } => {
                place(connection, receiver, task, offset, len).await?;
            }
            DataOut::Complete(task) => complete.push(task),
        }
    }
    if connection.is_closing() {
        return Ok(());
    }
    // The next may be on its way already, sent without regard to the window: it is taken if there is room beside what
    // this one has brought.
    if is_used_up {
        connection.promise();
    }
    if receiver.has_rest() {
        receiver.finish().await?;
    }
    connection.is_receiving.set(false);
    for task in complete {
        data_out::execute(connection, task);
    }
    data_out::execute_complete(connection);
    Ok(())
}

/// Receives the next `len` bytes of the PDU's payload into the command's memory.
async fn place(
    connection: &Connection,
    receiver: &mut Receiver,
    task: TaskId,
    offset: u32,
    len: u32,
) -> iscsi_stream::ReceiveResult<()> {
    let mut done = 0;
    while done < len {
        let part = connection.open.with(task, |command| {
            let (index, range) = command.locate(offset + done, len - done)?;
            let buf = &mut command.write[index];
            done += range.len() as u32;
            // A short payload has nearly always arrived together with its header.
            let to_come = match receiver.place_at_hand(&mut buf[range.clone()]) {
                true => None,
                false => Some((index, range, std::mem::replace(buf, Buf::new(0)))),
            };
            Some(to_come)
        });
        // The command may have been refused, or may take less data than was sent.
        let Some(Some(to_come)) = part else { break };
        let Some((index, range, buf)) = to_come else {
            continue;
        };
        let buf = receiver.place(buf, range).await?;
        connection
            .open
            .with(task, |command| command.write[index] = buf);
    }
    Ok(())
}

/// Ends the connection because of an error that only the driver can detect.
fn fail(connection: &Rc<Connection>, error: iscsi::Error) {
    connection.machine.borrow_mut().fail(error);
    events::go_on(connection);
    connection.close_when_sent();
}
