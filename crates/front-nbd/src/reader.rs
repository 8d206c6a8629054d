//! The receiving side of a connection: feeds what arrives to the protocol machine, handles its events, and receives
//! the data of writes from the socket into memory of their own.

use std::{
    io::{self, ErrorKind},
    pin::pin,
    rc::Rc,
};

use engine::{
    Buf,
    net::FramedReader,
    share::charge,
    spend,
    task::{self, Either},
    time,
};
use nbd::{NbdCommand, NbdEvent, ReceiveOutcome};
use unit::Held;

use crate::{
    connection::{Connection, OutgoingReply},
    handshake::Handshake,
    notices::NbdNotice,
    request,
    service::LUN,
    wire::Wire,
};

type Reader = FramedReader<Rc<Wire>>;

/// The size of the initial receive buffer, for the handshake.
const HANDSHAKE_BUFFER_BYTES: usize = 4 << 10;
/// The size of the receive buffer in transmission, for requests and the data of short writes.
const RECEIVE_BUFFER_BYTES: usize = 64 << 10;
/// The cost of processing one request, expressed in bytes moved, for the scheduler's accounting.
const REQUEST_COST_BYTES: usize = 8 << 10;

/// The longest header of a request, in bytes.
const REQUEST_BYTES: usize = 32;
/// The cost of a byte of an option, expressed in bytes moved.
const OPTION_COST: usize = 16;

/// Reads until the connection ends or closes.
pub(crate) async fn run(connection: &Rc<Connection>) {
    let mut reader = Reader::new(connection.wire.clone(), HANDSHAKE_BUFFER_BYTES);
    if let Err(error) = receive_all(connection, &mut reader).await {
        tracing::debug!(peer = connection.peer, %error, "receiving failed");
        match error.kind() {
            // Requests that it sent before may still be answered.
            ErrorKind::UnexpectedEof => connection.note_ending("it closed the connection"),
            _ => connection.end(&error.to_string()),
        }
    }
}

async fn receive_all(connection: &Rc<Connection>, reader: &mut Reader) -> io::Result<()> {
    // In NBD the server speaks first.
    act(connection, reader).await?;
    loop {
        let may_go_on = || connection.is_closing() || connection.has_room();
        connection.sent.wait_for(|| may_go_on().then_some(())).await;
        if connection.is_closing() {
            return Ok(());
        }
        let received = connection.machine.borrow_mut().receive(reader.bytes());
        match received {
            Ok(ReceiveOutcome::Took(len)) => {
                if connection.nexus().is_none() {
                    connection.step();
                }
                // An option may have thousands of parts; a request has none.
                if len > REQUEST_BYTES {
                    charge(OPTION_COST * len);
                }
                reader.consume(len);
                act(connection, reader).await?;
            }
            Ok(ReceiveOutcome::Needs(len)) => {
                // The handshake has its own time limit, and between requests a client may be silent.
                let is_begun = !reader.is_empty();
                reader.reserve(len);
                connection.receiving.set(is_begun.then(Held::default));
                let is_there = reader.fill(len).await?;
                connection.receiving.set(None);
                if !is_there {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            }
            Err(violation) => {
                charge(OPTION_COST * reader.bytes().len());
                connection.dismiss(&violation.to_string());
                return Ok(());
            }
        }
    }
}

/// Handles the machine's events.
async fn act(connection: &Rc<Connection>, reader: &mut Reader) -> io::Result<()> {
    loop {
        let event = connection.machine.borrow_mut().poll_event();
        let Some(event) = event else { return Ok(()) };
        match event {
            NbdEvent::Send(bytes) => {
                spend(REQUEST_COST_BYTES).await;
                connection.begin();
                let head = bytes.into();
                connection.answer(OutgoingReply {
                    head,
                    ..OutgoingReply::default()
                });
            }
            NbdEvent::Skip(len) => {
                connection.receiving.set(Some(Held::default()));
                let skipped = reader.skip(len as usize).await;
                connection.receiving.set(None);
                skipped?;
            }
            NbdEvent::Transmission => {
                reader.reserve(RECEIVE_BUFFER_BYTES);
                begin_transmission(connection);
            }
            NbdEvent::Request(request) => {
                spend(REQUEST_COST_BYTES).await;
                take_request(connection, reader, request).await?;
            }
            NbdEvent::AskedWithoutTls => tell_of_tls(connection),
            NbdEvent::StartTls => start_tls(connection, reader).await,
            NbdEvent::End => {
                connection.note_ending("it asked to disconnect");
                connection.close();
            }
        }
    }
}

/// Logs why a client is refused that may not know about TLS.
fn tell_of_tls(connection: &Connection) {
    let everywhere = &connection.service.everywhere;
    if let Some(suppressed) = everywhere.notices.may_say(NbdNotice::Trouble, time::now()) {
        tracing::warn!(
            peer = connection.peer,
            suppressed,
            "a client was refused: it asked for the volume without TLS"
        );
    }
}

/// Starts TLS once the reply that announces it has been sent.
async fn start_tls(connection: &Connection, reader: &Reader) {
    let Some(offered) = &connection.service.tls else {
        unreachable!("the machine knows whether there is TLS");
    };
    let is_sent = || connection.is_idle() || connection.is_closing();
    connection.sent.wait_for(|| is_sent().then_some(())).await;
    if !reader.is_empty() {
        let why = "it sent data between NBD_OPT_STARTTLS and the reply to it";
        return connection.dismiss(why);
    }
    let handshake = Handshake {
        offered,
        signing: &connection.service.signing,
        reached: &|progress| connection.reach(progress),
        awaits_us: &|awaits_us| {
            // What it has sent is whole, or it would wait for more.
            if awaits_us {
                connection.step();
            }
            connection.awaits_us(awaits_us);
        },
    };
    let over = pin!(connection.over());
    let started = pin!(connection.wire.start_tls(handshake));
    // Whoever is gone must not have its signature made.
    if let Either::Other(Err(error)) = task::either(over, started).await {
        connection.dismiss(&format!(
            "the TLS handshake failed: {}",
            front::explain(&error)
        ));
    }
}

fn begin_transmission(connection: &Connection) {
    if let Err(why) = connection.enter() {
        return connection.dismiss(why);
    }
    let everywhere = &connection.service.everywhere;
    if let Some(suppressed) = everywhere.notices.may_say(NbdNotice::Client, time::now()) {
        tracing::info!(peer = connection.peer, suppressed, "a client has connected");
    }
}

/// Begins a request once its data has been received.
async fn take_request(
    connection: &Rc<Connection>,
    reader: &mut Reader,
    request: nbd::NbdRequest,
) -> io::Result<()> {
    let received = time::turn_began();
    let Some(nexus) = connection.nexus() else {
        return Ok(()); // it was dismissed
    };
    let NbdCommand::Write { len, .. } = request.command() else {
        request::begin(connection, request, received);
        return Ok(());
    };
    let len = len as usize;
    let over = pin!(connection.over());
    let permits = match task::either(over, nexus.take_memory(LUN, len)).await {
        // Do not wait any longer. The reads ahead of this write may wait for memory, too, and are given up only when the
        // nexus leaves, which it does after this reader has ended.
        Either::One(()) => return Ok(()),
        Either::Other(permits) => permits,
    };
    connection.receiving.set(Some(permits.held()));
    let (result, data) = reader.read_into(Buf::new(len), 0..len).await;
    connection.receiving.set(None);
    result?;
    request::begin_write(connection, request, received, (data.into(), permits));
    Ok(())
}
