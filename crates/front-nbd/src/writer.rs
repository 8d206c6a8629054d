//! The sending side of a connection: gathers all replies that are ready into one send, with heads copied and data by
//! reference, and keeps the data's permits until it has been sent.

use std::rc::Rc;

use engine::{Gather, time};

use crate::{
    connection::{Connection, OutgoingReply},
    service::LUN,
};

/// A send gathers replies up to a limit of bytes or pieces. The byte limit starts low after a pause and doubles with
/// each send, so that the client can start on its next requests while the rest of a burst is being sent.
const FIRST_SEND_BYTES: usize = 64 << 10;
const SEND_BYTES: usize = 1 << 20;
const SEND_PIECES: usize = 960;

/// Sends until the connection ends.
pub(crate) async fn run(connection: Rc<Connection>) {
    let mut gather = Gather::new();
    let mut sending: Vec<OutgoingReply> = Vec::new();
    let mut send_bytes = FIRST_SEND_BYTES;
    while !connection.is_ended() {
        let notified = connection.transmit.notified();
        while gather.len() < send_bytes && gather.pieces() < SEND_PIECES {
            let next = connection.outgoing.borrow_mut().pop_front();
            let Some(reply) = next else { break };
            gather.push_bytes(&reply.head);
            gather.push_payload(&reply.data, 0..reply.data.len());
            sending.push(reply);
        }
        if gather.is_empty() {
            if connection.is_closing() && connection.is_idle() {
                connection.is_sending.set(true);
                connection.wire.say_goodbye().await;
                connection.end("all requests were answered");
                break;
            }
            send_bytes = FIRST_SEND_BYTES;
            notified.await;
            continue;
        }
        send_bytes = (2 * send_bytes).min(SEND_BYTES);
        connection.is_sending.set(true);
        connection.sending.replace(sending);
        let (result, back) = connection.wire.send_all(gather).await;
        sending = connection.sending.take();
        connection.is_sending.set(false);
        gather = back;
        if let Err(error) = result {
            connection.end(&format!("sending failed: {error}"));
            break;
        }
        count(&connection, &sending);
        connection.note_sent(sending.len());
        sending.clear();
    }
}

/// Counts the requests whose replies have just been sent.
fn count(connection: &Connection, sent: &[OutgoingReply]) {
    let Some(nexus) = connection.nexus() else {
        return;
    };
    let now = time::now();
    for (moved, times) in sent.iter().filter_map(|reply| reply.counted.as_ref()) {
        let units = &connection.service.units;
        units.count(nexus, LUN, *moved, times, now);
    }
}
