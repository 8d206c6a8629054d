//! The TLS handshake of a connection, as its server. A signature takes a CPU for up to several milliseconds, and anybody
//! may ask for one: so a thread computes what the handshake needs, for one connection of a lane at a time, and the lane
//! only collects whole records for it. Whoever has had a signature made for it is harder to displace than those who merely
//! connect, and whoever has shown a certificate is hardest.

use std::{
    io::{self, ErrorKind, Write},
    ops::RangeInclusive,
    rc::Rc,
};

use engine::{
    Buf, Gather,
    blocking::{self, WorkKind},
    net::TcpStream,
    spend,
    sync::Budget,
};
use front::{Progress, Tls};
use rustls::ServerConnection;

/// Ciphertext received at once.
const RECEIVE_BYTES: usize = 4 << 10;
/// What a thread's turn costs the lane, expressed in bytes moved, for the scheduler's accounting.
const TURN_COST_BYTES: usize = 32 << 10;
/// A record's header: its type, a version, and its length.
const HEADER_BYTES: usize = 5;
/// The types of records (RFC 8446 5.1, RFC 6520).
const CONTENT_TYPES: RangeInclusive<u8> = 20..=24;
/// The longest record (RFC 5246 6.2.3).
const RECORD_MAX_BYTES: usize = (16 << 10) + 2048;

/// What a handshake needs.
pub(crate) struct Handshake<'a> {
    pub(crate) offered: &'a Tls,
    /// The lane's turn to have a thread compute.
    pub(crate) signing: &'a Rc<Budget>,
    /// Told how far it is.
    pub(crate) reached: &'a dyn Fn(Progress),
    /// Told when the client has sent whole records and waits for us, and when it has our answer.
    pub(crate) awaits_us: &'a dyn Fn(bool),
}

impl Handshake<'_> {
    /// Performs the handshake. Returns the machine, and the ciphertext that came after it.
    pub(crate) async fn run(self, stream: &TcpStream) -> io::Result<(ServerConnection, Vec<u8>)> {
        // Made for who has sent a whole record: thousands may have sent less.
        let mut begun = None;
        let (mut buf, mut received) = (Buf::new(RECEIVE_BYTES), Vec::new());
        loop {
            let (len, back) = stream.receive(buf, 0).await;
            buf = back;
            match len? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                len => received.extend_from_slice(&buf[..len]),
            }
            let incomplete = received.split_off(whole_records(&received));
            if received.is_empty() {
                received = incomplete;
                continue;
            }
            let machine = match begun.take() {
                Some(machine) => machine,
                None => ServerConnection::new(self.offered.config()).map_err(io::Error::other)?,
            };
            (self.awaits_us)(true);
            spend(TURN_COST_BYTES).await;
            let turn = self.signing.take(1).await;
            let advance = move || advance(machine, &received);
            let advanced = blocking::run(WorkKind::Signatures, advance).await?;
            drop(turn);
            let mut machine = advanced.machine;
            received = [advanced.rest, incomplete].concat();
            let mut sealed = Gather::new();
            seal(&mut machine, &mut sealed)?;
            if !sealed.is_empty() {
                (self.reached)(Progress::Signed);
            }
            // Sent even on failure, so that the client gets the alert that says why.
            let (sent, _) = stream.send_all(sealed).await;
            advanced.outcome.and(sent)?;
            (self.awaits_us)(false);
            if !machine.is_handshaking() {
                if machine.peer_certificates().is_some() {
                    (self.reached)(Progress::Proven);
                }
                return Ok((machine, received));
            }
            begun = Some(machine);
        }
    }
}

/// What a thread has done.
struct Advanced {
    machine: ServerConnection,
    /// What came after the handshake.
    rest: Vec<u8>,
    outcome: io::Result<()>,
}

/// Feeds records to the machine for as long as the handshake lasts.
fn advance(mut machine: ServerConnection, mut records: &[u8]) -> Advanced {
    let mut outcome = Ok(());
    while outcome.is_ok() && machine.is_handshaking() && !records.is_empty() {
        outcome = digest(&mut machine, &mut records);
    }
    Advanced {
        machine,
        rest: records.to_vec(),
        outcome,
    }
}

/// Feeds some of `ciphertext` to the machine.
pub(crate) fn digest(machine: &mut ServerConnection, ciphertext: &mut &[u8]) -> io::Result<()> {
    machine.read_tls(ciphertext)?;
    let processed = machine.process_new_packets();
    processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    Ok(())
}

/// Appends to `sealed` the encrypted data that is ready to be sent.
pub(crate) fn seal(machine: &mut ServerConnection, sealed: &mut Gather) -> io::Result<()> {
    while machine.wants_write() {
        machine.write_tls(&mut Sink(sealed))?;
    }
    Ok(())
}

/// The sink rustls writes to.
struct Sink<'a>(&'a mut Gather);

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push_bytes(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The length of the whole records at the front of `received`; all of it if these are no records, which the machine
/// finds out.
fn whole_records(received: &[u8]) -> usize {
    let mut whole = 0;
    while let Some((header, rest)) = received[whole..].split_at_checked(HEADER_BYTES) {
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if !CONTENT_TYPES.contains(&header[0]) || len > RECORD_MAX_BYTES {
            return received.len();
        }
        if rest.len() < len {
            break;
        }
        whole += HEADER_BYTES + len;
    }
    whole
}

#[cfg(test)]
mod tests;
