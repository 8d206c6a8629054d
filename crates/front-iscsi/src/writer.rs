//! The sending side of a connection: gathers all PDUs that are ready into one send, with headers copied and payload
//! by reference, and keeps the referenced memory until it has been sent.

use std::rc::Rc;

use engine::{Gather, task::either};

use crate::connection::Connection;

/// A send gathers PDUs up to a byte limit. It starts low after a pause and doubles with each send: the initiator can
/// start on its next commands while the rest of a burst is being sent, and a long queue still goes out in few sends.
const FIRST_SEND_BYTES: usize = 64 << 10;
const SEND_BYTES: usize = 1 << 20;

/// Sends until the connection ends.
pub(crate) async fn run(connection: Rc<Connection>) {
    let mut gather = Gather::new();
    let mut answered = Vec::new();
    let mut send_bytes = FIRST_SEND_BYTES;
    while !connection.is_ended() {
        let notified = connection.transmit.notified();
        connection.promise();
        while iscsi_stream::has_room(&gather, send_bytes) {
            let pdu = connection.machine.borrow_mut().poll_transmit();
            let Some(mut pdu) = pdu else { break };
            connection.tell_stage_times(&mut pdu);
            connection.unacknowledged.sent(&pdu);
            let data_of = |task| connection.open.data_in(task);
            if let Err(error) = iscsi_stream::push(&mut gather, &pdu, data_of) {
                return connection.end(&error.to_string());
            }
            answered.extend(pdu.ends.and_then(|task| connection.open.end(task)));
        }
        if gather.is_empty() {
            if connection.is_closing() {
                connection.end("everything was sent");
                break;
            }
            if connection.machine.borrow_mut().tell_window() {
                continue;
            }
            send_bytes = FIRST_SEND_BYTES;
            match connection.nexus() {
                Some(nexus) => {
                    either(notified, nexus.memory.room()).await;
                }
                None => notified.await,
            }
            continue;
        }
        send_bytes = (2 * send_bytes).min(SEND_BYTES);
        connection.is_sending.set(true);
        connection.sending.replace(answered);
        let (result, back) = connection.stream.send_all(gather).await;
        answered = connection.sending.take();
        connection.is_sending.set(false);
        gather = back;
        connection.count(&answered);
        answered.clear();
        if let Err(error) = result {
            tracing::debug!(peer = %connection.peer, %error, "sending failed");
            connection.end("sending failed");
        }
        connection.sent.notify();
    }
}
