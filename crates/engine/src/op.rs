//! What a lane can ask of its reactor, and the contract that both reactors keep.
//!
//! - An operation is handed over with everything it needs; the reactor holds it, buffers
//!   included, until it completes, even if its task is gone. The completion gives
//!   the operation back with its result.
//! - A result is a count or a handle (≥ 0), or an errno. Reads, writes, receives and sends may be
//!   short; zero bytes received means that the peer has closed.
//! - Cancelling asks an operation to end early; it still completes once, with what it did or with
//!   ECANCELED.
//! - Completions of different operations come in any order.
//! - Bytes sent with one operation on a socket stay together; the caller has at most one send and
//!   one receive outstanding on a socket.
//! - A write that has completed is durable only if it asked for it (`durable`), or after a later
//!   `Sync` has completed without an error.

use std::{io, net::SocketAddr, rc::Rc};

use crate::{
    buf::{Buf, Payload},
    gather::Gather,
    handle::Handle,
};

/// What `Allocate` does to a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateMode {
    /// Frees the range; it reads as zeroes afterwards and the file keeps its length.
    PunchHole,
    /// Makes the range read as zeroes and keeps its space allocated.
    Zero,
    /// Allocates space for the range and extends the file to its end if it is shorter.
    Reserve,
}

/// One operation; see the module's contract.
#[derive(Debug)]
pub enum Op {
    /// Takes the next connection of a listening socket. Result: its raw handle.
    Accept {
        /// The listening socket.
        socket: Rc<Handle>,
    },
    /// Connects a fresh socket to `addr`.
    Connect {
        /// The socket.
        socket: Rc<Handle>,
        /// Where to.
        addr: SocketAddr,
    },
    /// Receives into `buf` from `start` to its length.
    Receive {
        /// The socket.
        socket: Rc<Handle>,
        /// Where to put the bytes.
        buf: Buf,
        /// The first byte of `buf` to fill.
        start: usize,
    },
    /// Sends from the front of `gather`, which the caller then advances by the result.
    Send {
        /// The socket.
        socket: Rc<Handle>,
        /// What to send.
        gather: Gather,
    },
    /// Reads at byte `at` of a file into `buf` from `start` to its length.
    Read {
        /// The file.
        file: Rc<Handle>,
        /// Position in the file, in bytes.
        at: u64,
        /// Where to put the bytes.
        buf: Buf,
        /// The first byte of `buf` to fill.
        start: usize,
    },
    /// Writes `data` from byte `start` on at byte `at` of a file.
    Write {
        /// The file.
        file: Rc<Handle>,
        /// Position in the file of the first byte written, in bytes.
        at: u64,
        /// What to write.
        data: Payload,
        /// The first byte of `data` to write.
        start: usize,
        /// Completes only when these bytes are on persistent media (RWF_DSYNC).
        durable: bool,
        /// All of them or none, also through a power cut (RWF_ATOMIC).
        atomic: bool,
    },
    /// Makes all completed writes of a file durable.
    Sync {
        /// The file.
        file: Rc<Handle>,
    },
    /// Changes the allocation of a range of a file.
    Allocate {
        /// The file.
        file: Rc<Handle>,
        /// How.
        mode: AllocateMode,
        /// Start of the range, in bytes.
        at: u64,
        /// Length of the range, in bytes.
        len: u64,
    },
    /// Takes the next message of a device that has messages, as `/dev/fuse`, as soon as there is one:
    /// its beginning into all of `head`, the rest into `body`. Result: its length. Of several that
    /// wait on one device, by whichever descriptor, one is woken by a message.
    Take {
        /// The device, opened with O_NONBLOCK.
        device: Rc<Handle>,
        /// Where the beginning goes.
        head: Buf,
        /// Where the rest goes.
        body: Buf,
    },
}

impl Op {
    /// The file that it works on, if it is one.
    pub(crate) fn file(&self) -> Option<&Handle> {
        match self {
            Op::Read { file, .. }
            | Op::Write { file, .. }
            | Op::Sync { file }
            | Op::Allocate { file, .. } => Some(file),
            _ => None,
        }
    }

    /// Whether its result is a number of bytes that were moved.
    pub(crate) fn moves_bytes(&self) -> bool {
        !matches!(
            self,
            Op::Accept { .. } | Op::Connect { .. } | Op::Sync { .. } | Op::Allocate { .. }
        )
    }

    /// Whether the operation may be cancelled when nobody waits for it any more: only what
    /// changes nothing on a medium. A write, once begun, runs to its end. (A message that is taken when
    /// nobody waits for it any more is lost: a device is let go then.)
    pub(crate) fn is_cancellable(&self) -> bool {
        matches!(
            self,
            Op::Accept { .. }
                | Op::Connect { .. }
                | Op::Receive { .. }
                | Op::Send { .. }
                | Op::Take { .. }
        )
    }
}

/// A result as the kernel gives it: a count or handle, or minus an errno.
pub(crate) fn to_result(raw: i32) -> io::Result<usize> {
    if raw < 0 {
        Err(io::Error::from_raw_os_error(-raw))
    } else {
        Ok(raw as usize)
    }
}
