//! Operations in flight: each is in a slot, which makes its submission queue entry.

use std::net::SocketAddr;

use io_uring::{opcode, squeue, types};

use crate::{
    buf::Payload,
    gather::Gather,
    handle::Handle,
    op::{AllocateMode, Op},
    reactor::OpId,
};

/// IORING_RECVSEND_POLL_FIRST: a receive waits for readiness before it tries the socket.
const POLL_FIRST: u16 = 1;
/// Set in the user_data of the poll that is linked before a read. The poll posts a completion only
/// if it fails, and then the read does not.
pub(super) const WAIT: u64 = 1 << 63;
/// The most segments that one vectored call takes (UIO_MAXIOV).
const IOV_MAX: usize = 1024;

/// An operation in flight, with everything that the kernel may point to.
pub(super) struct OperationSlot {
    pub(super) id: OpId,
    /// Counts the uses of the slot, so that a late cancellation cannot hit the next operation in it.
    generation: u32,
    pub(super) op: Option<Op>,
    pub(super) iov: Vec<libc::iovec>,
    message: libc::msghdr,
    address: libc::sockaddr_storage,
}

impl OperationSlot {
    pub(super) fn new(id: OpId) -> OperationSlot {
        // SAFETY: msghdr and sockaddr_storage are plain data for which zero is valid.
        let (message, address) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        OperationSlot {
            id,
            generation: 0,
            op: None,
            iov: Vec::new(),
            message,
            address,
        }
    }

    /// Prepares a free slot for operation `id`.
    pub(super) fn reuse(&mut self, id: OpId) {
        assert!(self.op.is_none(), "a free slot holds no operation");
        debug_assert!(self.iov.is_empty(), "a free slot points nowhere");
        self.id = id;
        // Keep clear of the user_data values that are not slots: they and WAIT have the highest bit set.
        self.generation = (self.generation + 1) & 0x7fff_ffff;
    }

    /// The user_data of its operation, where `index` is the slot's own.
    pub(super) fn name(&self, index: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(index)
    }

    /// Holds `op` from now on; returns the entry that starts it. `can_wait_first`: the kernel takes the hint that a
    /// socket has nothing to receive yet.
    pub(super) fn hold(&mut self, op: Op, can_wait_first: bool) -> squeue::Entry {
        let iov = &mut self.iov;
        match self.op.insert(op) {
            Op::Accept { socket } => accept(socket),
            Op::Connect { socket, addr } => connect(socket, *addr, &mut self.address),
            Op::Receive { socket, buf, start } => {
                receive(socket, &mut buf[*start..], can_wait_first)
            }
            Op::Send { socket, gather } => send(socket, gather, iov, &mut self.message),
            Op::Read {
                file,
                at,
                buf,
                start,
            } => {
                let room = &mut buf[*start..];
                opcode::Read::new(types::Fd(file.raw), room.as_mut_ptr(), room.len() as u32)
                    .offset(*at)
                    .build()
            }
            Op::Write {
                file,
                at,
                data,
                start,
                durable,
                atomic,
            } => {
                let durable = if *durable { libc::RWF_DSYNC } else { 0 };
                let flags = durable | if *atomic { libc::RWF_ATOMIC } else { 0 };
                write(file, *at, data, *start, flags, iov)
            }
            Op::Sync { file } => opcode::Fsync::new(types::Fd(file.raw))
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
            Op::Allocate {
                file,
                mode,
                at,
                len,
            } => opcode::Fallocate::new(types::Fd(file.raw), *len)
                .offset(*at)
                .mode(fallocate_mode(*mode))
                .build(),
            Op::Take { device, head, body } => {
                iovecs([&head[..], &body[..]].into_iter(), iov);
                opcode::Readv::new(types::Fd(device.raw), iov.as_ptr(), iov.len() as u32).build()
            }
        }
    }
}

/// The poll that is linked before an [`Op::Take`] called `name`. A blocking read would wait as well, but every message
/// would wake all such readers.
pub(super) fn wait_for_message(device: &Handle, name: u64) -> squeue::Entry {
    let events = libc::POLLIN as u32 | libc::EPOLLEXCLUSIVE as u32;
    let wait = opcode::PollAdd::new(types::Fd(device.raw), events).build();
    let flags = squeue::Flags::IO_LINK | squeue::Flags::SKIP_SUCCESS;
    wait.flags(flags).user_data(name | WAIT)
}

fn accept(socket: &Handle) -> squeue::Entry {
    opcode::Accept::new(
        types::Fd(socket.raw),
        std::ptr::null_mut(),
        std::ptr::null_mut(),
    )
    .flags(libc::SOCK_CLOEXEC)
    .build()
}

fn connect(
    socket: &Handle,
    addr: SocketAddr,
    address: &mut libc::sockaddr_storage,
) -> squeue::Entry {
    let len = encode_address(addr, address);
    opcode::Connect::new(types::Fd(socket.raw), (&raw const *address).cast(), len).build()
}

fn receive(socket: &Handle, room: &mut [u8], can_wait_first: bool) -> squeue::Entry {
    // If the last receive drained the socket, the kernel need not try it before it waits. Only kernels that have the
    // taskrun flag report that, and take the hint.
    let waits_first = can_wait_first && socket.is_drained.get();
    let how = if waits_first { POLL_FIRST } else { 0 };
    opcode::Recv::new(types::Fd(socket.raw), room.as_mut_ptr(), room.len() as u32)
        .ioprio(how)
        .build()
}

fn send(
    socket: &Handle,
    gather: &Gather,
    iov: &mut Vec<libc::iovec>,
    message: &mut libc::msghdr,
) -> squeue::Entry {
    iovecs(gather.chunks(), iov);
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len();
    opcode::SendMsg::new(types::Fd(socket.raw), &raw const *message)
        .flags(libc::MSG_NOSIGNAL as u32)
        .build()
}

/// Writes what is in `data` from its byte `start` on.
fn write(
    file: &Handle,
    at: u64,
    data: &Payload,
    start: usize,
    flags: i32,
    iov: &mut Vec<libc::iovec>,
) -> squeue::Entry {
    let mut skip = start;
    let chunks = data.slices().iter().filter_map(|slice| {
        let from = skip.min(slice.len());
        skip -= from;
        (from < slice.len()).then(|| &slice[from..])
    });
    iovecs(chunks, iov);
    opcode::Writev::new(types::Fd(file.raw), iov.as_ptr(), iov.len() as u32)
        .offset(at)
        .rw_flags(flags)
        .build()
}

fn fallocate_mode(mode: AllocateMode) -> libc::c_int {
    match mode {
        AllocateMode::PunchHole => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        AllocateMode::Zero => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
        AllocateMode::Reserve => 0,
    }
}

fn iovecs<'a>(chunks: impl Iterator<Item = &'a [u8]>, iov: &mut Vec<libc::iovec>) {
    iov.extend(chunks.take(IOV_MAX).map(|chunk| libc::iovec {
        iov_base: chunk.as_ptr().cast_mut().cast(),
        iov_len: chunk.len(),
    }));
}

/// Writes `addr` in the kernel's format and returns its length.
fn encode_address(addr: SocketAddr, storage: &mut libc::sockaddr_storage) -> libc::socklen_t {
    match addr {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is large and aligned enough for every address family.
            unsafe { (&raw mut *storage).cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut *storage).cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}
