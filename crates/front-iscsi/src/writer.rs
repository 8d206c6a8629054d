//! The sending side of a connection: gathers every PDU that is ready into one send, headers
//! copied, payload by reference, and keeps the memory that it refers to until it is on its way.

use std::rc::Rc;

use engine::{Gather, share, time};
use iscsi::{Transmit, TransmitData, frame::DataDigest};
use unit::Permits;

use crate::{connection::Connection, open::Sent};

/// A send takes further PDUs until it has so many bytes or pieces. The first after a pause takes
/// fewer, each further one twice as many: the initiator begins with its next commands while the rest
/// of a burst is being sent, and a long queue goes out in few sends.
const FIRST_SEND_BYTES: usize = 64 << 10;
const SEND_BYTES: usize = 1 << 20;
const SEND_PIECES: usize = 960;
const PADDING: [u8; 3] = [0; 3];

/// Sends until the connection ends.
pub(crate) async fn run(connection: Rc<Connection>) {
    let mut gather = Gather::new();
    let (mut permits, mut sent) = (Vec::new(), Vec::new());
    let mut send_bytes = FIRST_SEND_BYTES;
    while !connection.is_ended() {
        let notified = connection.transmit.notified();
        while gather.len() < send_bytes && gather.pieces() < SEND_PIECES {
            let pdu = connection.machine.borrow_mut().poll_transmit();
            let Some(pdu) = pdu else { break };
            let ended = add(&connection, &pdu, &mut gather);
            if let Some((of_command, command)) = ended {
                permits.extend(of_command);
                sent.extend(command);
            }
        }
        if gather.is_empty() {
            if connection.is_closing() {
                connection.end("all was sent");
                break;
            }
            send_bytes = FIRST_SEND_BYTES;
            notified.await;
            continue;
        }
        send_bytes = (2 * send_bytes).min(SEND_BYTES);
        connection.sending_since.set(Some(time::turn_began()));
        let (result, back) = connection.stream.send_all(gather).await;
        connection.sending_since.set(None);
        gather = back;
        permits.clear();
        connection.count(&mut sent);
        if let Err(error) = result {
            tracing::debug!(peer = %connection.peer, %error, "sending failed");
            connection.end("sending failed");
        }
        connection.sent.notify();
    }
}

/// Adds a PDU; if it ends a command, gives what pays for it and what there is to count.
fn add(
    connection: &Connection,
    pdu: &Transmit,
    gather: &mut Gather,
) -> Option<(Permits, Option<Sent>)> {
    gather.push_bytes(&pdu.header);
    if let Some(digest) = pdu.header_digest() {
        gather.push_bytes(&digest);
    }
    connection.power_on.sent(pdu);
    let mut digest = pdu.has_data_digest().then(DataDigest::default);
    match &pdu.data {
        TransmitData::None => {}
        TransmitData::Inline(bytes) => {
            gather.push_bytes(bytes);
            if let Some(digest) = &mut digest {
                digest.update(bytes);
            }
        }
        TransmitData::Task { task, offset, len } => {
            let (start, end) = (*offset as usize, *offset as usize + *len as usize);
            let sent = connection.open.with(*task, |command| {
                if let Some(digest) = &mut digest {
                    // No waiting here: the machine has handed it over. A send is short.
                    share::charge(*len as usize);
                    for slice in command.read.slice(start..end).slices() {
                        digest.update(slice);
                    }
                }
                gather.push_payload(&command.read, start..end);
            });
            if sent.is_none() {
                connection.end("data of a command that has ended: the protocol machine is wrong");
            }
        }
    }
    gather.push_bytes(&PADDING[..pdu.padding()]);
    if let Some(digest) = digest {
        gather.push_bytes(&digest.finish());
    }
    pdu.ends.and_then(|task| connection.open.end(task))
}
