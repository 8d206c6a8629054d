//! The receiving side of a connection: frames what arrives, hands each PDU to the protocol machine,
//! and brings payload from the socket into the command's own memory.

use std::{io::ErrorKind, rc::Rc};

use engine::{net::FramedReader, spend, time};
use iscsi::{RxData, TaskId, frame::frame};
use smallvec::SmallVec;

use crate::{
    connection::Connection,
    data_out,
    data_segment::{Tail, require},
    events::{self, DataOut},
};

/// Headers and small payloads are received through a buffer of this length, in bytes.
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// Before login: a Login Request of the longest text.
const LOGIN_BUFFER_BYTES: usize = 16 << 10;
/// What it costs to act on a PDU, in bytes moved.
const PDU_COST_BYTES: usize = 8 << 10;

/// Reads until the connection ends; says why it did.
pub(crate) async fn run(connection: &Rc<Connection>) -> &'static str {
    let mut reader = FramedReader::new(connection.stream.clone(), LOGIN_BUFFER_BYTES);
    loop {
        let wants_read = || connection.machine.borrow().wants_read();
        connection
            .sent
            .wait_for(|| (connection.is_ended() || wants_read()).then_some(()))
            .await;
        if connection.is_ended() {
            return "ended";
        }
        if connection.is_logged_in() {
            reader.reserve(RECEIVE_BUFFER_BYTES);
        }
        let result = read_pdu(connection, &mut reader).await;
        connection.widen_window();
        connection.transmit.notify();
        match result {
            Ok(()) if connection.is_closing() => return "the protocol is over",
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(peer = %connection.peer, %error, "receiving failed");
                match error.kind() {
                    ErrorKind::UnexpectedEof => connection.end("the peer has closed it"),
                    _ => connection.end(&error.to_string()),
                }
                return "receiving failed";
            }
        }
    }
}

/// Takes one PDU.
async fn read_pdu(connection: &Rc<Connection>, reader: &mut FramedReader) -> std::io::Result<()> {
    // What is at hand needs no wait, which is nearly always.
    if reader.len() < iscsi::pdu::BHS_LEN {
        require(reader, iscsi::pdu::BHS_LEN).await?;
    }
    spend(PDU_COST_BYTES).await;
    let now = time::turn_began();
    connection.last_heard.set(now);
    let limits = connection.machine.borrow().frame_limits();
    let pdu = match frame(reader.bytes(), &limits) {
        Ok(Some(pdu)) => pdu,
        Ok(None) => return Ok(()),
        Err(error) => {
            fail(connection, error);
            return Ok(());
        }
    };
    let at_hand = if pdu.payload {
        pdu.data_offset
    } else {
        pdu.total_len
    };
    reader.reserve(at_hand);
    if reader.len() < at_hand {
        require(reader, at_hand).await?;
    }
    if let Err(error) = pdu.verify_header(reader.bytes()) {
        fail(connection, error);
        return Ok(());
    }
    let mut tail = Tail::new(&pdu);
    connection.is_receiving.set(true);
    {
        let bytes = reader.bytes();
        let bhs = bytes.first_chunk().expect("48 bytes are at hand");
        let data = if pdu.payload {
            RxData::Length(pdu.data_len as u32)
        } else {
            if let Err(error) = tail.check_inline(&pdu, bytes) {
                fail(connection, error);
                return Ok(());
            }
            RxData::Inline(&bytes[pdu.data()])
        };
        connection
            .machine
            .borrow_mut()
            .receive(now.as_ns(), bhs, &bytes[pdu.ahs()], data);
    }
    reader.consume(at_hand);
    let mut complete = SmallVec::<[TaskId; 1]>::new();
    while let Some(data) = events::act(connection) {
        match data {
            DataOut::Place { task, offset, len } => {
                place(connection, reader, &mut tail, task, offset, len).await?;
            }
            DataOut::Complete(task) => complete.push(task),
        }
    }
    if connection.is_closing() {
        return Ok(());
    }
    if !tail.is_done() {
        if let Err(error) = tail.finish(reader).await? {
            fail(connection, error);
            return Ok(());
        }
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
    reader: &mut FramedReader,
    tail: &mut Tail,
    task: TaskId,
    offset: u32,
    len: u32,
) -> std::io::Result<()> {
    let mut done = 0;
    while done < len {
        let part = connection.open.with(task, |command| {
            let (index, range) = command.locate(offset + done, len - done)?;
            let buf = std::mem::replace(&mut command.write[index], engine::Buf::new(0));
            Some((index, range, buf))
        });
        // The command may have been refused, or takes less than it is given.
        let Some(Some((index, range, buf))) = part else {
            break;
        };
        let (result, buf) = reader.read_into(buf, range.clone()).await;
        result?;
        if tail.is_digested() {
            spend(range.len()).await;
        }
        tail.take(&buf[range.clone()]);
        done += range.len() as u32;
        connection
            .open
            .with(task, |command| command.write[index] = buf);
    }
    Ok(())
}

/// Ends the connection for an error that only the driver sees.
fn fail(connection: &Rc<Connection>, error: iscsi::Error) {
    connection.machine.borrow_mut().fail(error);
    events::go_on(connection);
    connection.close_when_sent();
}
