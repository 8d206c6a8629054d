//! TCP and Unix sockets as a lane sees them. Every call hands its buffer to the reactor and gets it back.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    ops::Range,
    path::{Path, PathBuf},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use crate::{
    buf::Buf,
    cost::count_copied,
    gather::Gather,
    handle::{Handle, Keeper},
    lane::{Submitted, submit, try_with, with},
    op::{Op, to_result},
    reactor::Reactor,
    time::Duration,
};

pub use crate::{
    reactor::{ConnectOptions, Credentials, LocalEnd, SocketBuffers},
    sockopt::try_buffers,
};

/// A listening socket for TCP.
#[derive(Debug)]
pub struct TcpListener {
    socket: ListeningSocket,
    addr: SocketAddr,
}

/// A listening Unix socket. Dropping it removes its file.
#[derive(Debug)]
pub struct UnixListener {
    socket: ListeningSocket,
    path: PathBuf,
    /// Identity of the socket file when it was created.
    file: (u64, u64),
}

/// A listening socket of either kind.
#[derive(Debug)]
struct ListeningSocket {
    socket: Rc<Handle>,
    /// The accepts in flight. They outlive the tasks that wait for them: a connection that arrives
    /// meanwhile goes to the next caller. (Cancelling an accept and starting another would also
    /// lose wake-ups: accepts wait exclusively, and the kernel may wake the one being cancelled.)
    accepts: RefCell<Vec<Submitted>>,
}

/// Accepts kept in flight. With only one, a lane would take one connection per turn, and under load
/// its turns are long: new clients would wait for those being served.
const ACCEPTS: usize = 16;

impl TcpListener {
    /// Listens on `addr`; port 0 takes any free one.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        let (socket, addr) = with(|lane| lane.reactor().listen(addr))?;
        Ok(TcpListener {
            socket: ListeningSocket::new(socket),
            addr,
        })
    }

    /// The address being listened on.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits for the next connection. Only one task at a time may wait; dropping the future loses
    /// no connection.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        self.socket.accept().await
    }
}

impl UnixListener {
    /// Listens at `path`. Replaces the socket of a process that ended without removing it.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let (socket, file) = with(|lane| {
            let socket = lane.reactor().listen_unix(path)?;
            let file = lane.reactor().store().look(path)?.id;
            io::Result::Ok((socket, file))
        })?;
        Ok(UnixListener {
            socket: ListeningSocket::new(socket),
            path: path.to_owned(),
            file,
        })
    }

    /// As [`TcpListener::accept`]. Such a stream has no [addresses](TcpStream::addresses).
    pub async fn accept(&self) -> io::Result<TcpStream> {
        self.socket.accept().await
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        try_with(|lane| {
            let at_path = lane.reactor().store().look(&self.path);
            // Another listener may have taken over the path.
            if at_path.is_ok_and(|look| look.id == self.file) {
                let _ = lane.reactor().store().remove(&self.path);
            }
        });
    }
}

impl ListeningSocket {
    fn new(socket: Handle) -> ListeningSocket {
        ListeningSocket {
            socket: Rc::new(socket),
            accepts: RefCell::default(),
        }
    }

    async fn accept(&self) -> io::Result<TcpStream> {
        let result = poll_fn(|cx| self.poll_accept(cx)).await;
        let raw = to_result(result)?;
        let socket = with(|lane| lane.reactor().adopt(raw as i32));
        Ok(TcpStream::new(Rc::new(socket)))
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<i32> {
        let mut accepts = self.accepts.borrow_mut();
        while accepts.len() < ACCEPTS {
            let socket = self.socket.clone();
            accepts.push(submit(Op::Accept { socket }));
        }
        for index in 0..accepts.len() {
            if let Poll::Ready((_, result)) = Pin::new(&mut accepts[index]).poll(cx) {
                drop(accepts.swap_remove(index));
                return Poll::Ready(result);
            }
        }
        Poll::Pending
    }
}

/// A connection on its way to another lane.
#[derive(Debug)]
pub struct DetachedStream {
    raw: i32,
    keeper: Keeper,
}

impl DetachedStream {
    /// Continues with the connection on the current lane.
    pub fn on_lane(self) -> TcpStream {
        TcpStream::new(Rc::new(Handle::new(self.raw, self.keeper)))
    }
}

/// One end of a TCP or Unix socket connection. Clones share the connection, which closes when the last one is dropped.
#[derive(Clone, Debug)]
pub struct TcpStream {
    socket: Rc<Handle>,
    traffic: Rc<Traffic>,
}

/// The bytes that a connection has moved.
#[derive(Default, Debug)]
struct Traffic {
    sent: Cell<u64>,
    received: Cell<u64>,
}

impl TcpStream {
    fn new(socket: Rc<Handle>) -> TcpStream {
        TcpStream {
            socket,
            traffic: Rc::default(),
        }
    }

    /// Connects to `addr`.
    pub async fn connect(addr: SocketAddr) -> io::Result<Self> {
        TcpStream::connect_with(addr, &ConnectOptions::default()).await
    }

    /// Connects to `addr` with `options`.
    ///
    /// # Errors
    /// Connection errors, and options that the system does not know; the message says which.
    pub async fn connect_with(addr: SocketAddr, options: &ConnectOptions) -> io::Result<Self> {
        let socket = Rc::new(with(|lane| lane.reactor().socket(addr, options))?);
        let (_, result) = submit(Op::Connect {
            socket: socket.clone(),
            addr,
        })
        .await;
        to_result(result)?;
        Ok(TcpStream::new(socket))
    }

    /// Releases the connection for another lane. Nothing may be outstanding on it here.
    pub fn detach(self) -> DetachedStream {
        DetachedStream {
            raw: self.socket.raw,
            keeper: self.socket.keeper.clone(),
        }
    }

    /// Receives into `buf[start..]`; returns the byte count and the buffer. Zero bytes: the peer closed.
    pub async fn receive(&self, buf: Buf, start: usize) -> (io::Result<usize>, Buf) {
        let op = Op::Receive {
            socket: self.socket.clone(),
            buf,
            start,
        };
        match submit(op).await {
            (Op::Receive { buf, .. }, result) => {
                let result = to_result(result);
                count(&self.traffic.received, *result.as_ref().unwrap_or(&0));
                (result, buf)
            }
            _ => unreachable!("a reactor gives back the operation that it took"),
        }
    }

    /// Receives until `buf[start..]` is full. A stream that ends before is an error.
    pub async fn receive_exact(&self, buf: Buf, start: usize) -> (io::Result<()>, Buf) {
        receive_exact(self, buf, start).await
    }

    /// Sends all of `gather` in as few calls as the system allows; returns it empty.
    pub async fn send_all(&self, mut gather: Gather) -> (io::Result<()>, Gather) {
        while !gather.is_empty() {
            let op = Op::Send {
                socket: self.socket.clone(),
                gather,
            };
            let (Op::Send { gather: back, .. }, result) = submit(op).await else {
                unreachable!("a reactor gives back the operation that it took");
            };
            gather = back;
            match to_result(result) {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), gather),
                Ok(n) => {
                    count(&self.traffic.sent, n);
                    gather.advance(n);
                }
                Err(error) => return (Err(error), gather),
            }
        }
        (Ok(()), gather)
    }

    /// How many bytes the system has taken for sending on this lane so far, those of a send in progress included.
    pub fn sent_bytes(&self) -> u64 {
        self.traffic.sent.get()
    }

    /// How many bytes the peer's system has taken on this lane so far. It takes them step by step as its reader does, where
    /// our own takes many at a time.
    pub fn taken_bytes(&self) -> u64 {
        let waiting = with(|lane| lane.reactor().unacknowledged_bytes(&self.socket));
        self.traffic.sent.get().saturating_sub(waiting)
    }

    /// How many bytes were received on this lane so far.
    pub fn received_bytes(&self) -> u64 {
        self.traffic.received.get()
    }

    /// Closes both directions: pending receives return zero bytes, pending sends an error. Does nothing without a
    /// running lane; nothing can be pending then, and dropping the stream closes it.
    pub fn shutdown(&self) {
        try_with(|lane| lane.reactor().shutdown(&self.socket));
    }

    /// Turns on keepalive: the system probes a peer that has been silent for `idle`. If the peer is
    /// gone, the connection ends some time later.
    pub fn keep_alive(&self, idle: Duration) {
        with(|lane| lane.reactor().keep_alive(&self.socket, idle));
    }

    /// Closes the connection at once, like [`TcpStream::shutdown`], but discards unsent data, so
    /// that a link that comes back does not deliver it. The peer gets a reset if it can be reached.
    pub fn abort(&self) {
        try_with(|lane| lane.reactor().abort(&self.socket));
    }

    /// The local and the peer address.
    pub fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        with(|lane| lane.reactor().addresses(&self.socket))
    }

    /// Who has connected a Unix socket.
    ///
    /// # Errors
    /// The system does not know, or this is no Unix socket.
    pub fn credentials(&self) -> io::Result<Credentials> {
        with(|lane| lane.reactor().credentials(&self.socket))
    }
}

fn count(counter: &Cell<u64>, bytes: usize) {
    counter.set(counter.get() + bytes as u64);
}

/// What a [`FramedReader`] receives from: a connection, or a decrypting layer above one.
pub trait Receive {
    /// Receives into `buf[start..]`; returns the byte count and the buffer. Zero bytes: the peer closed.
    fn receive(&self, buf: Buf, start: usize) -> impl Future<Output = (io::Result<usize>, Buf)>;
}

impl Receive for TcpStream {
    fn receive(&self, buf: Buf, start: usize) -> impl Future<Output = (io::Result<usize>, Buf)> {
        TcpStream::receive(self, buf, start)
    }
}

impl<S: Receive> Receive for Rc<S> {
    fn receive(&self, buf: Buf, start: usize) -> impl Future<Output = (io::Result<usize>, Buf)> {
        S::receive(self, buf, start)
    }
}

async fn receive_exact(
    from: &impl Receive,
    mut buf: Buf,
    mut start: usize,
) -> (io::Result<()>, Buf) {
    while start < buf.len() {
        let result;
        (result, buf) = from.receive(buf, start).await;
        match result {
            Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), buf),
            Ok(n) => start += n,
            Err(error) => return (Err(error), buf),
        }
    }
    (Ok(()), buf)
}

/// Receives a stream of framed messages: headers and small payloads through one buffer, large
/// payloads directly into their destination.
#[derive(Debug)]
pub struct FramedReader<S = TcpStream> {
    stream: S,
    /// Received and not yet consumed: `buf[start..end]`. With the reactor during a receive.
    buf: Option<Buf>,
    start: usize,
    end: usize,
    /// The last payload was large, so the next is likely to be. Its header is then received alone,
    /// so that the payload can be received in place without a copy.
    after_large: bool,
}

/// The rest of a payload is received in place if it is at least this long. Below that, filling the
/// buffer again and copying is cheaper than a receive for so little.
const AIMED_MIN_BYTES: usize = 32 << 10;

impl<S: Receive> FramedReader<S> {
    /// Reads `stream` through a buffer of `capacity` bytes.
    pub fn new(stream: S, capacity: usize) -> Self {
        FramedReader {
            stream,
            buf: Some(Buf::new(capacity)),
            start: 0,
            end: 0,
            after_large: false,
        }
    }

    /// Grows the buffer to `capacity` bytes if it is smaller.
    pub fn reserve(&mut self, capacity: usize) {
        if self.buf().len() < capacity {
            let mut larger = Buf::new(capacity);
            larger[..self.end - self.start].copy_from_slice(self.bytes());
            (self.start, self.end) = (0, self.end - self.start);
            self.buf = Some(larger);
        }
    }

    fn buf(&self) -> &Buf {
        self.buf.as_ref().expect("no receive is under way")
    }

    /// The bytes received and not yet consumed.
    pub fn bytes(&self) -> &[u8] {
        &self.buf()[self.start..self.end]
    }

    /// The number of bytes received and not yet consumed.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether there are no such bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Consumes the first `len` bytes. Panics if there are fewer.
    pub fn consume(&mut self, len: usize) {
        assert!(
            len <= self.end - self.start,
            "{len} of {} bytes",
            self.end - self.start
        );
        self.after_large = false;
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Receives until at least `len` bytes are buffered (at most the buffer's capacity). Returns
    /// false if the peer closed first.
    pub async fn fill(&mut self, len: usize) -> io::Result<bool> {
        let room = self.buf().len();
        assert!(len <= room, "{len} bytes in a buffer of {room}");
        while self.end - self.start < len {
            let mut buf = self.buf.take().expect("no receive is under way");
            if self.start + len > room {
                count_copied(self.end - self.start);
                buf.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            if self.after_large {
                buf.set_len(self.start + len);
            }
            let (result, mut buf) = self.stream.receive(buf, self.end).await;
            buf.set_len(room);
            self.buf = Some(buf);
            match result? {
                0 => return Ok(false),
                n => self.end += n,
            }
        }
        Ok(true)
    }

    /// Copies the next bytes of the stream into all of `to`, if they are already buffered and few.
    pub fn take_at_hand(&mut self, to: &mut [u8]) -> bool {
        let have = self.bytes();
        let may = to.len() <= have.len() && to.len() < AIMED_MIN_BYTES;
        if may {
            count_copied(to.len());
            to.copy_from_slice(&have[..to.len()]);
            self.consume(to.len());
        }
        may
    }

    /// Reads the next `range.len()` bytes of the stream into `range` of `into`. An early end of the
    /// stream is an error.
    pub async fn read_into(&mut self, mut into: Buf, range: Range<usize>) -> (io::Result<()>, Buf) {
        let Range { mut start, end } = range;
        let is_large = end - start >= AIMED_MIN_BYTES;
        loop {
            let have = self.bytes();
            let n = have.len().min(end - start);
            count_copied(n);
            into[start..start + n].copy_from_slice(&have[..n]);
            self.consume(n);
            start += n;
            if start == end {
                self.after_large = is_large;
                return (Ok(()), into);
            }
            if end - start >= AIMED_MIN_BYTES {
                let whole = into.len();
                into.set_len(end);
                let (result, mut into) = receive_exact(&self.stream, into, start).await;
                into.set_len(whole);
                self.after_large = true;
                return (result, into);
            }
            match self.fill(1).await {
                Ok(true) => {}
                Ok(false) => return (Err(io::ErrorKind::UnexpectedEof.into()), into),
                Err(error) => return (Err(error), into),
            }
        }
    }

    /// Skips the next `len` bytes of the stream. An early end of the stream is an error.
    pub async fn skip(&mut self, mut len: usize) -> io::Result<()> {
        while len > 0 {
            if self.bytes().is_empty() && !self.fill(1).await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let n = self.bytes().len().min(len);
            self.consume(n);
            len -= n;
        }
        Ok(())
    }
}
