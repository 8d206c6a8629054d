//! The reactor of one simulated lane, which forwards everything to the world's [`WorldState`].

use std::{
    cell::{Cell, RefCell},
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    rc::Rc,
    time::Duration,
};

use super::{
    keys::{HostId, LaneKey},
    state::WorldState,
};
use crate::{
    extent,
    handle::Handle,
    instant::Instant,
    op::Op,
    reactor::{Completion, ConnectOptions, Credentials, OpId, Reactor, Store, Wait},
};

pub(super) struct SimReactor {
    pub(super) state: Rc<RefCell<WorldState>>,
    pub(super) host: HostId,
    pub(super) lane: LaneKey,
    /// The lane gets no turn before.
    pub(super) held_until: Rc<Cell<Instant>>,
}

/// The time of day when the world begins: 2026-01-01 00:00 UTC.
const BEGAN: Duration = Duration::from_secs(1_767_225_600);

impl Reactor for SimReactor {
    fn now(&self) -> Instant {
        self.state.borrow().now
    }

    fn since_unix_epoch(&self) -> Duration {
        BEGAN + Duration::from_nanos(self.now().as_ns())
    }

    fn thread_cpu_ns(&self) -> u64 {
        // Nothing that was measured: a run would depend on what else the machine does.
        self.now().as_ns()
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.state.borrow_mut().random.fill(bytes);
        Ok(())
    }

    fn submit(&mut self, id: OpId, op: Op) {
        self.state.borrow_mut().submit(self.host, self.lane, id, op);
    }

    fn cancel(&mut self, id: OpId) {
        self.state.borrow_mut().cancel(self.lane, id);
    }

    fn poll(&mut self, _wait: Wait, completed: &mut Vec<Completion>) {
        // Only the world waits: it advances the clock when no lane has work.
        self.state
            .borrow_mut()
            .take_completions(self.lane, completed);
    }

    fn blocking_delay(&mut self) -> Option<Duration> {
        let mut state = self.state.borrow_mut();
        let range = state.config.blocking_ns.clone();
        Some(Duration::from_nanos(state.random.within(&range)))
    }

    fn machine(&self, name: &str) -> Option<Option<IpAddr>> {
        let state = self.state.borrow();
        let found = state.hosts.iter().find(|host| host.name == name);
        Some(found.map(|host| host.addresses[0]))
    }

    fn extent(&self, file: &Handle, at: u64) -> extent::Answer {
        extent::Answer::Now(self.state.borrow().extent(file.raw, at))
    }

    fn store(&self) -> &dyn Store {
        self
    }

    fn listen(&self, addr: SocketAddr) -> io::Result<(Handle, SocketAddr)> {
        self.state.borrow_mut().listen(self.host, addr)
    }

    fn listen_unix(&self, path: &Path) -> io::Result<Handle> {
        let _ = path; // simulated machines have only a network
        Err(io::ErrorKind::Unsupported.into())
    }

    fn socket(&self, addr: SocketAddr, options: &ConnectOptions) -> io::Result<Handle> {
        let _ = addr; // either address family reaches every machine
        self.state.borrow_mut().fresh_socket(self.host, options)
    }

    fn adopt(&self, raw: i32) -> Handle {
        self.state.borrow().handle(raw)
    }

    fn keep_alive(&self, socket: &Handle, idle: Duration) {
        let _ = (socket, idle); // a simulated peer that ends sends a reset
    }

    fn unacknowledged_bytes(&self, socket: &Handle) -> u64 {
        let _ = socket; // what was sent is on the simulated network
        0
    }

    fn shutdown(&self, socket: &Handle) {
        self.state.borrow_mut().shutdown(socket.raw);
    }

    fn abort(&self, socket: &Handle) {
        let mut state = self.state.borrow_mut();
        state.settle();
        state.abort(socket.raw);
    }

    fn addresses(&self, socket: &Handle) -> io::Result<(SocketAddr, SocketAddr)> {
        self.state.borrow().addresses(socket.raw)
    }

    fn credentials(&self, socket: &Handle) -> io::Result<Credentials> {
        let _ = socket; // simulated machines have only a network
        Err(io::ErrorKind::Unsupported.into())
    }
}
