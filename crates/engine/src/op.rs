//! What a lane can ask of its reactor, and the contract that both reactors keep.
//!
//! - An operation is handed over with everything it needs. The reactor holds it, buffers included,
//!   until it completes, even if its task is gone. The completion returns the operation with its
//!   result.
//! - A result is a count or a handle (≥ 0), or an errno. Reads, writes, receives and sends may be
//!   short; zero bytes received means that the peer has closed.
//! - Cancelling asks an operation to end early. It still completes exactly once, with what it did
//!   or with ECANCELED.
//! - Operations complete in any order.
//! - Bytes sent with one operation on a socket stay together; the caller has at most one send and
//!   one receive outstanding on a socket.
//! - A completed write is durable only if it asked for that (`durable`), or once a later `Sync` has
//!   completed without an error.

use std::{io, net::SocketAddr, rc::Rc};

use crate::{
    buf::{Buf, Payload},
    gather::Gather,
    handle::Handle,
};

/// What `Allocate` does to a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocateMode {
    /// Frees the range. It reads as zeroes afterwards; the file keeps its length.
    PunchHole,
    /// Makes the range read as zeroes and keeps its space allocated.
    Zero,
    /// Allocates space for the range, and extends the file to the range's end if it is shorter.
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
        /// The address to connect to.
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
    /// Sends from the front of `gather`. The caller then advances it by the result.
    Send {
        /// The socket.
        socket: Rc<Handle>,
        /// What to send.
        gather: Gather,
    },
    /// Reads a file from byte `at` into `buf`, from `start` to its length.
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
    /// Writes `data`, from byte `start` on, to a file at byte `at`.
    Write {
        /// The file.
        file: Rc<Handle>,
        /// Position in the file of the first byte written, in bytes.
        at: u64,
        /// What to write.
        data: Payload,
        /// The first byte of `data` to write.
        start: usize,
        /// Completes only once these bytes are on persistent media (RWF_DSYNC).
        durable: bool,
        /// Writes all of them or none, even across a power cut (RWF_ATOMIC).
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
    /// Takes the next message of a message device such as `/dev/fuse`, waiting for one if needed: the beginning fills
    /// `head`, the rest goes into `body`. Result: the message's length. When several operations wait on one device,
    /// through whichever descriptors, a message wakes only one of them.
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
    /// The file that the operation works on, if any.
    pub(crate) fn file(&self) -> Option<&Handle> {
        match self {
            Op::Read { file, .. }
            | Op::Write { file, .. }
            | Op::Sync { file }
            | Op::Allocate { file, .. } => Some(file),
            _ => None,
        }
    }

    /// Whether the result is the number of bytes moved.
    pub(crate) fn moves_bytes(&self) -> bool {
        !matches!(
            self,
            Op::Accept { .. } | Op::Connect { .. } | Op::Sync { .. } | Op::Allocate { .. }
        )
    }

    /// Whether the operation may be cancelled once nobody waits for it: only if it changes nothing on a
    /// medium. A write that has begun runs to its end. (Cancelling a `Take` may lose a message, but
    /// nobody stops waiting for a device that is still in use.)
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

/// Converts a kernel result: a count or handle, or a negated errno.
pub(crate) fn to_result(raw: i32) -> io::Result<usize> {
    if raw < 0 {
        Err(io::Error::from_raw_os_error(-raw))
    } else {
        Ok(raw as usize)
    }
}
