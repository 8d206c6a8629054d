//! The bytes of a connection: as they are on the wire or, from NBD_OPT_STARTTLS on, as TLS protects them.
//!
//! rustls is a machine as ours are: bytes in, bytes out. The reader deciphers what it receives, the writer enciphers what it
//! sends, and each does so in pieces, so that what is held for a connection has a bound and other connections have
//! their turns in between.

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

use crate::tls::Tls;

/// What is received at once to be deciphered.
const RECEIVE_BYTES: usize = 64 << 10;
/// What is enciphered and sent at once.
const SEND_BYTES: usize = 256 << 10;

pub(crate) struct Wire {
    stream: TcpStream,
    session: OnceCell<Session>,
}

/// TLS on a connection.
struct Session {
    machine: RefCell<ServerConnection>,
    /// Received and not deciphered yet. It is away while more is being received.
    received: RefCell<Received>,
    /// Memory for what has been enciphered.
    sealed: Cell<Gather>,
}

struct Received {
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

    /// Ends both directions, as [`TcpStream::shutdown`].
    pub(crate) fn shutdown(&self) {
        self.stream.shutdown();
    }

    /// Does the handshake of TLS as its server. Nothing else may be sent or received meanwhile; what comes after is
    /// under its protection.
    pub(crate) async fn start_tls(&self, tls: &Tls) -> io::Result<()> {
        let machine = ServerConnection::new(tls.0.clone()).map_err(io::Error::other)?;
        let session = Session {
            machine: RefCell::new(machine),
            received: RefCell::new(Received::nothing(Buf::new(0))),
            sealed: Cell::default(),
        };
        while session.machine.borrow().is_handshaking() {
            let taken = session.receive(&self.stream).await;
            // Also when it failed: the client is told why.
            let sent = self.send_sealed(&session).await;
            match taken? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                _ => sent?,
            }
        }
        assert!(self.session.set(session).is_ok(), "TLS begins once");
        Ok(())
    }

    /// Sends all of `gather`, as [`TcpStream::send_all`].
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

    /// Tells the client that nothing more comes, so that it need not suspect that somebody has cut it off.
    pub(crate) async fn say_goodbye(&self) {
        if let Some(session) = self.session.get() {
            session.machine.borrow_mut().send_close_notify();
            // Whether it still listens does not matter.
            let _ = self.send_sealed(session).await;
        }
    }

    /// Sends what has been enciphered.
    async fn send_sealed(&self, session: &Session) -> io::Result<()> {
        let mut sealed = session.sealed.take();
        session.seal(&mut sealed)?;
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
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                deciphered => {
                    spend(*deciphered.as_ref().unwrap_or(&0)).await;
                    return (deciphered, buf);
                }
            }
            match session.receive(&self.stream).await {
                // Requests are whole or not begun: an end without a farewell takes nothing from anybody.
                Ok(0) => return (Ok(0), buf),
                Ok(_) => {}
                Err(error) => return (Err(error), buf),
            }
        }
    }
}

impl Session {
    /// Receives, and deciphers some of it. Gives how many bytes came; none: the client closed.
    async fn receive(&self, stream: &TcpStream) -> io::Result<usize> {
        let away = Received::nothing(Buf::new(0));
        let mut received = self.received.replace(away);
        debug_assert!(received.is_empty(), "what came before is deciphered first");
        if received.buf.is_empty() {
            received.buf = Buf::new(RECEIVE_BYTES);
        }
        let (result, buf) = stream.receive(received.buf, 0).await;
        received = Received::nothing(buf);
        received.end = *result.as_ref().unwrap_or(&0);
        self.received.replace(received);
        let len = result?;
        // A handshake has nothing to read; what follows it in the same bytes stays.
        while self.machine.borrow().is_handshaking() && self.digest()? {}
        Ok(len)
    }

    /// Fills `into` with what has been deciphered, as far as it goes. Nothing yet: [`ErrorKind::WouldBlock`]; zero
    /// bytes: the client has said that nothing more comes.
    fn decipher(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            let read = self.machine.borrow_mut().reader().read(&mut into[filled..]);
            match read {
                Ok(0) => return Ok(filled),
                Ok(len) => filled += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !self.digest()? {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        match filled {
            0 => Err(ErrorKind::WouldBlock.into()),
            _ => Ok(filled),
        }
    }

    /// Has the machine take some of what was received. False: there is nothing left.
    fn digest(&self) -> io::Result<bool> {
        let mut received = self.received.borrow_mut();
        if received.is_empty() {
            return Ok(false);
        }
        let mut machine = self.machine.borrow_mut();
        let taken = machine.read_tls(&mut received.bytes())?;
        received.start += taken;
        machine
            .process_new_packets()
            .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        Ok(true)
    }

    /// Has the machine encipher the front of `gather`: how many bytes.
    fn take_in(&self, gather: &Gather) -> io::Result<usize> {
        let mut machine = self.machine.borrow_mut();
        // What it holds is bounded here.
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

    /// Adds to `sealed` what is ready to be sent.
    fn seal(&self, sealed: &mut Gather) -> io::Result<()> {
        let mut machine = self.machine.borrow_mut();
        while machine.wants_write() {
            machine.write_tls(&mut Sink(sealed))?;
        }
        Ok(())
    }
}

impl Received {
    fn nothing(buf: Buf) -> Received {
        Received {
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

/// Where rustls writes to.
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
