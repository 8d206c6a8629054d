//! TCP as a lane sees it. Every call hands its buffer to the reactor and gets it back.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use crate::{
    buf::{Buf, Gather},
    lane::{Submitted, submit, with},
    op::{Op, to_result},
    reactor::Handle,
};

/// A listening socket.
#[derive(Debug)]
pub struct TcpListener {
    socket: Rc<Handle>,
    addr: SocketAddr,
    /// The accept in flight. It outlives whoever waits for it: a connection that comes meanwhile
    /// is the next caller's. (Cancelling it and starting another loses wake-ups, too: accepts wait
    /// exclusively, and the kernel may wake the one that is being cancelled.)
    accept: RefCell<Option<Submitted>>,
}

impl TcpListener {
    /// Listens on `addr`; port 0 takes any free one.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        let (socket, addr) = with(|lane| lane.reactor.borrow().listen(addr))?;
        Ok(TcpListener {
            socket: Rc::new(socket),
            addr,
            accept: RefCell::default(),
        })
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits for the next connection. One task at a time may wait; dropping the wait loses no
    /// connection.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        let result = poll_fn(|cx| self.poll_accept(cx)).await;
        let raw = to_result(result)?;
        Ok(TcpStream {
            socket: Rc::new(with(|lane| lane.reactor.borrow().adopt(raw as i32))),
        })
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<i32> {
        let mut accept = self.accept.borrow_mut();
        let submitted = accept.get_or_insert_with(|| {
            submit(Op::Accept {
                socket: self.socket.clone(),
            })
        });
        let (_, result) = std::task::ready!(Pin::new(submitted).poll(cx));
        *accept = None;
        Poll::Ready(result)
    }
}

/// One end of a connection. Clones are the same connection; it closes with the last of them.
#[derive(Clone, Debug)]
pub struct TcpStream {
    socket: Rc<Handle>,
}

impl TcpStream {
    /// Connects to `addr`.
    pub async fn connect(addr: SocketAddr) -> io::Result<Self> {
        let socket = Rc::new(with(|lane| lane.reactor.borrow().socket(addr))?);
        let (_, result) = submit(Op::Connect {
            socket: socket.clone(),
            addr,
        })
        .await;
        to_result(result)?;
        Ok(TcpStream { socket })
    }

    /// Receives into `buf[start..]`: how many bytes, and the buffer back. Zero bytes: the peer closed.
    pub async fn receive(&self, buf: Buf, start: usize) -> (io::Result<usize>, Buf) {
        let op = Op::Receive {
            socket: self.socket.clone(),
            buf,
            start,
        };
        match submit(op).await {
            (Op::Receive { buf, .. }, result) => (to_result(result), buf),
            _ => unreachable!("a reactor gives back the operation that it took"),
        }
    }

    /// Receives until `buf[start..]` is full. An early end is an error.
    pub async fn receive_exact(&self, mut buf: Buf, mut start: usize) -> (io::Result<()>, Buf) {
        while start < buf.len() {
            let result;
            (result, buf) = self.receive(buf, start).await;
            match result {
                Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), buf),
                Ok(n) => start += n,
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Sends all of `gather`, in as few calls as the system allows; gives the empty one back.
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
                Ok(n) => gather.advance(n),
                Err(error) => return (Err(error), gather),
            }
        }
        (Ok(()), gather)
    }

    /// Ends both directions; pending receives give zero bytes, pending sends an error.
    pub fn shutdown(&self) {
        with(|lane| lane.reactor.borrow().shutdown(&self.socket));
    }

    /// The address of this end and that of the peer.
    pub fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        with(|lane| lane.reactor.borrow().addresses(&self.socket))
    }
}
