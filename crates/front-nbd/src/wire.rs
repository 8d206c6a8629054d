//! The byte stream of a connection: plaintext at first, and TLS from NBD_OPT_STARTTLS on.
//!
//! rustls is a sans-I/O machine like ours: bytes in, bytes out. The reader decrypts what it receives and the writer
//! encrypts what it sends, both in pieces, so that the memory held for a connection is bounded and other connections
//! get to run in between.

use std::{
    cell::{Cell, OnceCell, RefCell},
    io::{self, ErrorKind, Read, Write},
};

use engine::{
    Buf, Gather,
    net::{Receive, TcpStream},
    spend,
};
use rustls::ServerConnection;

use crate::handshake::{Handshake, digest, seal};

/// Ciphertext received at once.
const RECEIVE_BYTES: usize = 64 << 10;
/// Pieces of ciphertext that the machine takes in a row although they yield no data: more than the longest record has,
/// of 16 KiB, as it takes 4 KiB at a time.
const PIECES_MAX: usize = 6;
/// What so many pieces without data cost, expressed in bytes moved, for the scheduler's accounting.
const EMPTY_COST_BYTES: usize = 64 << 10;
/// Plaintext encrypted and sent at once.
const SEND_BYTES: usize = 256 << 10;

pub(crate) struct Wire {
    stream: TcpStream,
    session: OnceCell<TlsSession>,
}

/// The TLS session of a connection.
struct TlsSession {
    machine: RefCell<ServerConnection>,
    /// Received ciphertext, not decrypted yet. Taken out while more is being received.
    received: RefCell<ReceivedBytes>,
    /// Recycled memory for encrypted data.
    sealed: Cell<Gather>,
}

struct ReceivedBytes {
    buf: Buf,
    start: usize,
    end: usize,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Wire {
        Wire {
            stream,
            session: OnceCell::new(),
        }
    }

    /// Shuts down both directions, like [`TcpStream::shutdown`].
    pub(crate) fn shutdown(&self) {
        self.stream.shutdown();
    }

    /// How many bytes have been sent so far, in clear or encrypted.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.stream.taken_bytes()
    }

    /// How many bytes have been received so far, in clear or encrypted.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.stream.received_bytes()
    }

    /// Performs the TLS handshake as the server. Nothing else may be sent or received during it; everything after it
    /// is encrypted.
    pub(crate) async fn start_tls(&self, handshake: Handshake<'_>) -> io::Result<()> {
        let (machine, rest) = handshake.run(&self.stream).await?;
        let session = TlsSession {
            machine: RefCell::new(machine),
            received: RefCell::new(ReceivedBytes::of(&rest)),
            sealed: Cell::default(),
        };
        assert!(self.session.set(session).is_ok(), "TLS begins once");
        Ok(())
    }

    /// Sends all of `gather`, like [`TcpStream::send_all`].
    pub(crate) async fn send_all(&self, mut gather: Gather) -> (io::Result<()>, Gather) {
        let Some(session) = self.session.get() else {
            return self.stream.send_all(gather).await;
        };
        while !gather.is_empty() {
            let taken = match session.take_in(&gather) {
                Ok(taken) => taken,
                Err(error) => return (Err(error), gather),
            };
            gather.advance(taken);
            spend(taken).await;
            if let Err(error) = self.send_sealed(session).await {
                return (Err(error), gather);
            }
        }
        (Ok(()), gather)
    }

    /// Sends close_notify, so that the client can tell a clean end from a truncation attack.
    pub(crate) async fn say_goodbye(&self) {
        if let Some(session) = self.session.get() {
            session.machine.borrow_mut().send_close_notify();
            // It does not matter whether the client still receives it.
            let _ = self.send_sealed(session).await;
        }
    }

    /// Sends the pending encrypted data.
    async fn send_sealed(&self, session: &TlsSession) -> io::Result<()> {
        let mut sealed = session.sealed.take();
        seal(&mut session.machine.borrow_mut(), &mut sealed)?;
        let (sent, sealed) = self.stream.send_all(sealed).await;
        session.sealed.set(sealed);
        sent
    }
}

impl Receive for Wire {
    async fn receive(&self, mut buf: Buf, start: usize) -> (io::Result<usize>, Buf) {
        let Some(session) = self.session.get() else {
            return self.stream.receive(buf, start).await;
        };
        loop {
            match session.decipher(&mut buf[start..]) {
                // Records that hold nothing cost as much as others.
                Err(error) if error.kind() == ErrorKind::WouldBlock && session.has_more() => {
                    spend(EMPTY_COST_BYTES).await;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                deciphered => {
                    spend(*deciphered.as_ref().unwrap_or(&0)).await;
                    return (deciphered, buf);
                }
            }
            match session.receive(&self.stream).await {
                // Requests are never acted on until complete, so an end without close_notify loses nothing.
                Ok(0) => return (Ok(0), buf),
                Ok(_) => {}
                Err(error) => return (Err(error), buf),
            }
        }
    }
}

impl TlsSession {
    /// Receives ciphertext. Returns how many bytes arrived; 0 if the client closed.
    async fn receive(&self, stream: &TcpStream) -> io::Result<usize> {
        let away = ReceivedBytes::nothing(Buf::new(0));
        let mut received = self.received.replace(away);
        debug_assert!(received.is_empty(), "what came before is deciphered first");
        if received.buf.len() < RECEIVE_BYTES {
            received.buf = Buf::new(RECEIVE_BYTES);
        }
        let (result, buf) = stream.receive(received.buf, 0).await;
        received = ReceivedBytes::nothing(buf);
        received.end = *result.as_ref().unwrap_or(&0);
        self.received.replace(received);
        result
    }

    /// Whether received ciphertext is left.
    fn has_more(&self) -> bool {
        !self.received.borrow().is_empty()
    }

    /// Fills `into` with decrypted data as far as possible. [`ErrorKind::WouldBlock`] if many pieces of ciphertext
    /// held none, or there is no more; 0 bytes if the client has sent close_notify.
    fn decipher(&self, into: &mut [u8]) -> io::Result<usize> {
        let (mut filled, mut pieces) = (0, 0);
        while filled < into.len() {
            let read = self.machine.borrow_mut().reader().read(&mut into[filled..]);
            match read {
                Ok(0) => return Ok(filled),
                Ok(len) => (filled, pieces) = (filled + len, 0),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if pieces == PIECES_MAX || !self.digest()? {
                        break;
                    }
                    pieces += 1;
                }
                Err(error) => return Err(error),
            }
        }
        match filled {
            0 => Err(ErrorKind::WouldBlock.into()),
            _ => Ok(filled),
        }
    }

    /// Feeds some of the received ciphertext to the machine; false if there is none left.
    fn digest(&self) -> io::Result<bool> {
        let mut received = self.received.borrow_mut();
        if received.is_empty() {
            return Ok(false);
        }
        let mut rest = received.bytes();
        digest(&mut self.machine.borrow_mut(), &mut rest)?;
        let left = rest.len();
        received.start = received.end - left;
        Ok(true)
    }

    /// Has the machine encrypt data from the front of `gather`; returns how many bytes.
    fn take_in(&self, gather: &Gather) -> io::Result<usize> {
        let mut machine = self.machine.borrow_mut();
        // No limit needed: the amount is bounded here.
        machine.set_buffer_limit(None);
        let mut taken = 0;
        for chunk in gather.chunks() {
            let len = chunk.len().min(SEND_BYTES - taken);
            machine.writer().write_all(&chunk[..len])?;
            taken += len;
            if taken == SEND_BYTES {
                break;
            }
        }
        Ok(taken)
    }
}

impl ReceivedBytes {
    fn of(ciphertext: &[u8]) -> ReceivedBytes {
        ReceivedBytes {
            buf: Buf::copy_of(ciphertext),
            start: 0,
            end: ciphertext.len(),
        }
    }

    fn nothing(buf: Buf) -> ReceivedBytes {
        ReceivedBytes {
            buf,
            start: 0,
            end: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }
}
