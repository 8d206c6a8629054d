//! The reactor on io_uring. Operations are queued without a system call and submitted together with
//! the next check for completions, so that one io_uring_enter carries many I/Os.
//!
//! Each operation in flight occupies a slot with a fixed address, because the kernel may hold
//! pointers to its buffers, vectors and addresses until it completes. Slots are recycled.

mod facts;
mod files;
mod slot;
mod socket;
mod store;
mod workers;

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use smallvec::{SmallVec, smallvec};

use crate::{
    clock::{self, Clock},
    congestion, cost, extent,
    handle::{Handle, Keeper},
    instant::Instant,
    op::Op,
    reactor::{Completion, ConnectOptions, Credentials, OpId, Reactor, Store, Wait},
    sockopt,
};

use slot::{OperationSlot, WAIT};
pub(crate) use store::System;
use workers::Workers;

/// user_data of the read on the bell; slots count up from zero.
const BELL: u64 = u64::MAX;
/// user_data of cancellations, whose own results are of no use.
const CANCEL: u64 = u64::MAX - 1;
/// Backlog of a listening socket; the system may allow less (net.core.somaxconn).
const BACKLOG: libc::c_int = 4096;
/// File reads and writes go to the kernel in groups of this size while more are being prepared. The kernel hands a
/// disk the requests of a call only when the call ends, so one large batch would leave the disk idle meanwhile.
const FILE_OPS_A_SUBMIT: u32 = 4;
pub(crate) struct Ring {
    ring: IoUring,
    clock: Clock,
    #[expect(clippy::vec_box, reason = "the kernel holds pointers into the slots")]
    slots: Vec<Box<OperationSlot>>,
    free: Vec<u32>,
    /// Which slot an operation is in, indexed by OpId.
    by_id: Vec<u32>,
    /// Entries that did not fit into the submission queue. Linked ones are queued together.
    overflow: VecDeque<SmallVec<[squeue::Entry; 2]>>,
    bell: RawFd,
    bell_count: Box<u64>,
    /// The ring has IORING_SETUP_TASKRUN_FLAG: the kernel tells when there are completions to fetch.
    has_taskrun_flag: bool,
    /// File reads and writes queued but not submitted yet.
    file_ops_waiting: u32,
    /// Operations on files whose file system may block indefinitely.
    workers: Workers,
}

impl Ring {
    /// A ring and its bell: an eventfd whose write interrupts a waiting poll.
    pub(crate) fn new(entries: u32) -> io::Result<(Ring, OwnedFd)> {
        let (ring, has_taskrun_flag) = build(entries)?;
        // SAFETY: eventfd has no memory arguments; the result is checked.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let bell = unsafe { OwnedFd::from_raw_fd(bell) };
        let mut this = Ring {
            ring,
            clock: Clock::new(),
            slots: Vec::new(),
            free: Vec::new(),
            by_id: Vec::new(),
            overflow: VecDeque::new(),
            bell: bell.as_raw_fd(),
            bell_count: Box::new(0),
            has_taskrun_flag,
            file_ops_waiting: 0,
            workers: Workers::default(),
        };
        this.arm_bell();
        Ok((this, bell))
    }

    fn arm_bell(&mut self) {
        let into: *mut u64 = &mut *self.bell_count;
        let entry = opcode::Read::new(types::Fd(self.bell), into.cast(), 8)
            .build()
            .user_data(BELL);
        self.push(entry);
    }

    fn push(&mut self, entry: squeue::Entry) {
        if self.overflow.is_empty() {
            // SAFETY: every pointer in an entry leads into a slot (or the bell's box), which does
            // not move until the completion is taken.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.overflow.push_back(smallvec![entry]);
    }

    /// Queues two entries, the first linked to the second.
    fn push_linked(&mut self, entries: [squeue::Entry; 2]) {
        if self.overflow.is_empty() {
            // SAFETY: as in `push`.
            if unsafe { self.ring.submission().push_multiple(&entries) }.is_ok() {
                return;
            }
        }
        self.overflow.push_back(entries.into());
    }

    fn refill(&mut self) {
        while let Some(entries) = self.overflow.front() {
            // SAFETY: as in `push`.
            if unsafe { self.ring.submission().push_multiple(entries) }.is_err() {
                break;
            }
            self.overflow.pop_front();
        }
    }

    fn drain(&mut self, completed: &mut Vec<Completion>) {
        let mut rearm = false;
        let mut next = SmallVec::<[squeue::Entry; 4]>::new();
        for entry in self.ring.completion() {
            match entry.user_data() {
                BELL => rearm = true,
                CANCEL => {}
                name => {
                    let index = name as u32;
                    let slot = &mut self.slots[index as usize];
                    assert!(
                        name & !WAIT == slot.name(index),
                        "of the slot's present use"
                    );
                    slot.iov.clear();
                    let op = slot.op.take().expect("a slot completes once");
                    if let Some(file) = op.file().filter(|file| file.waits) {
                        next.extend(self.workers.ended(file.raw));
                    }
                    if let Op::Receive { socket, .. } = &op {
                        let is_drained = !cqueue::sock_nonempty(entry.flags());
                        socket.is_drained.set(is_drained);
                    }
                    completed.push(Completion {
                        id: slot.id,
                        op,
                        result: entry.result(),
                    });
                    self.free.push(index);
                }
            }
        }
        next.into_iter().for_each(|entry| self.push(entry));
        if rearm {
            self.arm_bell();
        }
    }

    /// Submits what is queued. Whatever the kernel does not take now goes with the next poll.
    fn submit_now(&mut self) {
        self.file_ops_waiting = 0;
        cost::count_system_call();
        let _ = self.ring.submit();
    }

    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        self.file_ops_waiting = 0;
        let until = match wait {
            Wait::No => {
                let (unsubmitted, pending) = {
                    let queue = self.ring.submission();
                    (
                        queue.len(),
                        !self.has_taskrun_flag || queue.taskrun() || queue.cq_overflow(),
                    )
                };
                if unsubmitted == 0 && !pending {
                    return Ok(());
                }
                cost::count_system_call();
                // IORING_ENTER_GETEVENTS runs the completions that were deferred to this thread.
                const GETEVENTS: u32 = 1;
                // SAFETY: no argument is passed, so no pointer is.
                return unsafe {
                    self.ring.submitter().enter::<libc::sigset_t>(
                        unsubmitted as u32,
                        0,
                        GETEVENTS,
                        None,
                    )
                }
                .map(drop);
            }
            Wait::Until(deadline) => deadline,
        };
        cost::count_system_call();
        cost::count_sleep();
        let Some(deadline) = until else {
            return self.ring.submit_and_wait(1).map(drop);
        };
        let left = deadline.since(self.now());
        let timespec = types::Timespec::from(left);
        let args = types::SubmitArgs::new().timespec(&timespec);
        self.ring.submitter().submit_with_args(1, &args).map(drop)
    }

    fn cancel_slot(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        let name = slot.name(index);
        if matches!(slot.op, Some(Op::Take { .. })) {
            let wait = opcode::AsyncCancel::new(name | WAIT).build();
            self.push(wait.user_data(CANCEL));
        }
        self.push(opcode::AsyncCancel::new(name).build().user_data(CANCEL));
    }

    /// The slot of operation `id`, while it is in flight.
    fn slot_of(&self, id: OpId) -> Option<u32> {
        let index = *self.by_id.get(id.0 as usize)?;
        let slot = self.slots.get(index as usize)?;
        (slot.id == id && slot.op.is_some()).then_some(index)
    }

    fn slot_for(&mut self, id: OpId) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Box::new(OperationSlot::new(id)));
            self.slots.len() as u32 - 1
        });
        if self.by_id.len() <= id.0 as usize {
            self.by_id.resize(id.0 as usize + 1, u32::MAX);
        }
        self.by_id[id.0 as usize] = index;
        self.slots[index as usize].reuse(id);
        index
    }
}

/// A ring with those work-saving features that this kernel offers, or else a plain one.
fn build(entries: u32) -> io::Result<(IoUring, bool)> {
    let best = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_cqsize(entries * 8)
        .build(entries);
    match best {
        Ok(ring) => Ok((ring, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::builder()
            .setup_cqsize(entries * 8)
            .build(entries)
            .map(|ring| (ring, false))
            .map_err(refused),
        Err(error) => Err(refused(error)),
    }
}

fn refused(error: io::Error) -> io::Error {
    let mend = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no io_uring; Linux 6.1 or newer is needed",
        Some(libc::EPERM) => {
            "io_uring is not permitted here; check `sysctl kernel.io_uring_disabled` (0 allows it), \
             and in a container its seccomp profile"
        }
        Some(libc::ENOMEM) => "no locked memory is left for the ring; raise `ulimit -l`",
        _ => "io_uring could not be set up",
    };
    io::Error::new(error.kind(), format!("{mend} ({error})"))
}

impl Reactor for Ring {
    fn now(&self) -> Instant {
        Instant::from_ns(self.clock.now_ns())
    }

    fn since_unix_epoch(&self) -> Duration {
        clock::since_unix_epoch()
    }

    fn thread_cpu_ns(&self) -> u64 {
        clock::thread_cpu_ns()
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        getrandom::fill(bytes).map_err(|error| io::Error::other(error.to_string()))
    }

    fn submit(&mut self, id: OpId, op: Op) {
        let waits = op.file().filter(|file| file.waits).map(|file| file.raw);
        let is_file_io = waits.is_none() && matches!(op, Op::Read { .. } | Op::Write { .. });
        let index = self.slot_for(id);
        let slot = &mut *self.slots[index as usize];
        let name = slot.name(index);
        let before = match &op {
            Op::Take { device, .. } => Some(slot::wait_for_message(device, name)),
            _ => None,
        };
        let entry = slot.hold(op, self.has_taskrun_flag).user_data(name);
        if let Some(file) = waits {
            let begun = self.workers.begin(file, entry, &self.ring.submitter());
            return begun.into_iter().for_each(|entry| self.push(entry));
        }
        match before {
            None => self.push(entry),
            Some(before) => self.push_linked([before, entry]),
        }
        if is_file_io {
            self.file_ops_waiting += 1;
            debug_assert!(self.file_ops_waiting <= FILE_OPS_A_SUBMIT);
            if self.file_ops_waiting == FILE_OPS_A_SUBMIT {
                self.submit_now();
            }
        }
    }

    fn cancel(&mut self, id: OpId) {
        if let Some(index) = self.slot_of(id) {
            self.cancel_slot(index);
        }
    }

    fn poll(&mut self, wait: Wait, completed: &mut Vec<Completion>) {
        self.refill();
        // If completions are already there, do not sleep.
        let ready = !self.ring.completion().is_empty() || !self.overflow.is_empty();
        let wait = if ready { Wait::No } else { wait };
        if let Err(error) = self.enter(wait) {
            match error.raw_os_error() {
                // The timeout expired, a signal came, or completions must be taken before more can start.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                _ => panic!("io_uring_enter failed in a way that loses operations: {error}"),
            }
        }
        self.drain(completed);
    }

    fn blocking_delay(&mut self) -> Option<Duration> {
        None
    }

    fn machine(&self, _name: &str) -> Option<Option<IpAddr>> {
        None
    }

    fn extent(&self, file: &Handle, at: u64) -> extent::Answer {
        extent::Answer::Ask(extent::Question {
            _keeper: file.keeper.clone(),
            raw: file.raw,
            at,
        })
    }

    fn store(&self) -> &dyn Store {
        &System
    }

    fn listen(&self, addr: SocketAddr) -> io::Result<(Handle, SocketAddr)> {
        let listener = TcpListener::bind(addr)?;
        // The standard library's backlog of 128 overflows when many connect at once, and a client
        // that finds it full retries only a second later. If the call fails, the old backlog stays.
        // SAFETY: no memory arguments; the descriptor is a listening socket of ours.
        unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) };
        congestion::choose(listener.as_raw_fd());
        let addr = listener.local_addr()?;
        Ok((owned(listener.into()), addr))
    }

    fn listen_unix(&self, path: &Path) -> io::Result<Handle> {
        Ok(owned(socket::listen_unix(path)?.into()))
    }

    fn socket(&self, addr: SocketAddr, options: &ConnectOptions) -> io::Result<Handle> {
        let family = if addr.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        // SAFETY: no memory arguments; the result is checked.
        let raw = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // Owned from here on, so that an error closes it.
        let handle = self.adopt(raw);
        congestion::choose(raw);
        sockopt::apply(raw, addr, options)?;
        Ok(handle)
    }

    fn adopt(&self, raw: i32) -> Handle {
        // SAFETY: `raw` is a fresh descriptor from accept or socket that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let on: libc::c_int = 1;
        // SAFETY: passes a live c_int and its size. Failing to set it costs latency only.
        unsafe {
            libc::setsockopt(
                raw,
                libc::IPPROTO_TCP,
                libc::TCP_NODELAY,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        owned(fd)
    }

    fn keep_alive(&self, socket: &Handle, idle: Duration) {
        socket::keep_alive(socket.raw, idle);
    }

    fn unacknowledged_bytes(&self, socket: &Handle) -> u64 {
        socket::unacknowledged_bytes(socket.raw)
    }

    fn shutdown(&self, socket: &Handle) {
        // An orderly end: the close that follows must not cut it short. If this fails, a reset ends the connection.
        let _ = sockopt::set_resets_when_closed(socket.raw, false);
        // SAFETY: no memory arguments. A socket that is not connected (any more) needs no shutdown.
        unsafe { libc::shutdown(socket.raw, libc::SHUT_RDWR) };
    }

    fn abort(&self, socket: &Handle) {
        sockopt::disconnect(socket.raw);
        self.shutdown(socket);
    }

    fn addresses(&self, socket: &Handle) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((
            address_of(socket.raw, libc::getsockname)?,
            address_of(socket.raw, libc::getpeername)?,
        ))
    }

    fn credentials(&self, socket: &Handle) -> io::Result<Credentials> {
        socket::credentials(socket.raw)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may still write into buffers of operations in flight. Cancel what can be
        // cancelled and wait for all of them; only then may the slots go.
        for index in 0..self.slots.len() {
            let op = self.slots[index].op.as_ref();
            if op.is_some_and(Op::is_cancellable) {
                self.cancel_slot(index as u32);
            }
        }
        let mut completed = Vec::new();
        while self.slots.iter().any(|slot| slot.op.is_some()) {
            self.poll(
                Wait::Until(Some(self.now() + std::time::Duration::from_millis(100))),
                &mut completed,
            );
            for Completion { op, result, .. } in completed.drain(..) {
                if matches!(op, Op::Accept { .. }) && result >= 0 {
                    drop(self.adopt(result));
                }
            }
        }
    }
}

fn owned(fd: OwnedFd) -> Handle {
    Handle::new(fd.as_raw_fd(), Keeper::Fd(Arc::new(fd)))
}

type AddressCall =
    unsafe extern "C" fn(RawFd, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn address_of(raw: RawFd, call: AddressCall) -> io::Result<SocketAddr> {
    // SAFETY: sockaddr_storage is plain data for which zero is valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&storage) as libc::socklen_t;
    // SAFETY: passes a live storage and its true size.
    if unsafe { call(raw, (&raw mut storage).cast(), &mut len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that the kernel wrote a sockaddr_in.
            let v4 = unsafe { &*(&raw const storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that the kernel wrote a sockaddr_in6.
            let v6 = unsafe { &*(&raw const storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Ok(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
        }
        family => Err(io::Error::other(format!(
            "a peer of address family {family}, not IPv4 or IPv6"
        ))),
    }
}
