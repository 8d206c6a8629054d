//! A machine of a simulated world, and what can be done to it.

use std::{
    fmt,
    future::Future,
    net::{IpAddr, SocketAddr},
    path::Path,
    rc::Rc,
    time::Duration,
};

use super::{Direction, Fault, driver::Driver, keys::HostId};
use crate::{
    lane::{LaneHandle, Share},
    task::{self, JoinHandle},
};

/// A machine with lanes, an address and a disk. Clones are the same machine. All of this may be
/// called from outside and from any task of the world.
#[derive(Clone)]
pub struct Host {
    pub(super) world: Rc<Driver>,
    pub(super) id: HostId,
}

impl Host {
    /// Its address.
    pub fn ip(&self) -> IpAddr {
        self.world.state.borrow().hosts[self.id.0].addresses[0]
    }

    /// Gives it another network card with an address of its own: `eth1` for the first, and so on.
    pub fn add_address(&self) -> IpAddr {
        self.world.state.borrow_mut().add_address(self.id)
    }

    /// Lets nothing pass this address in one direction any more: what is sent waits to be sent again,
    /// and nobody is told.
    pub fn cut(&self, ip: IpAddr, direction: Direction) {
        self.world.state.borrow_mut().cut(ip, direction);
    }

    /// Lets everything pass this address again.
    pub fn mend(&self, ip: IpAddr) {
        self.world.state.borrow_mut().mend(ip);
    }

    /// Resets every connection to this address.
    pub fn reset_at(&self, ip: IpAddr) {
        self.world.state.borrow_mut().reset_at(ip);
    }

    /// Its address with `port`.
    pub fn addr(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip(), port)
    }

    /// Starts a task on its first lane. What the handle waits for never comes if the machine
    /// stops.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        self.spawn_on(0, future)
    }

    /// Starts a task on its lane `n`.
    pub fn spawn_on<T: 'static>(
        &self,
        n: usize,
        future: impl Future<Output = T> + 'static,
    ) -> JoinHandle<T> {
        let lane = self.world.lane(self.id, n);
        let _entered = lane.0.enter();
        task::spawn_for(Share::COMMON, future)
    }

    /// Reaches its lane `n` as other lanes do.
    pub fn lane(&self, n: usize) -> LaneHandle {
        self.world.lane(self.id, n).handle()
    }

    /// Whether it is switched on and its software runs.
    pub fn is_on(&self) -> bool {
        self.world.is_on(self.id)
    }

    /// Lets its lane `n` do nothing for `d`, as when the system runs something else on that CPU.
    pub fn hold_lane(&self, n: usize, d: Duration) {
        self.world.hold(self.id, n, d);
    }

    /// Takes its power away: its tasks are gone, its peers get nothing, and of what was not
    /// durable its disk keeps what the seed decides. Called by one of its own tasks it takes
    /// effect after that lane's turn.
    pub fn power_cut(&self) {
        self.world.stop(self.id, true);
    }

    /// Kills its software: its tasks are gone, its connections are closed by the kernel that lives
    /// on, and the files keep every completed write.
    pub fn kill(&self) {
        self.world.stop(self.id, false);
    }

    /// Starts it again after [`Host::power_cut`] or [`Host::kill`]: fresh lanes without tasks,
    /// and the files that were left.
    pub fn restart(&self) {
        assert!(!self.is_on(), "only a machine that has stopped can start");
        {
            let mut state = self.world.state.borrow_mut();
            state.note(&[9, self.id.0 as u64]);
            state.host(self.id).up = true;
            state.release_held();
        }
        self.world.boot(self.id);
    }

    /// Cuts the network between it and `other`: what is sent waits, connections live on until an
    /// end gives up.
    pub fn partition(&self, other: &Host) {
        self.world.state.borrow_mut().partition(self.id, other.id);
    }

    /// Lets it and `other` reach each other again.
    pub fn heal(&self, other: &Host) {
        self.world.state.borrow_mut().heal(self.id, other.id);
    }

    /// Resets every connection between it and `other`.
    pub fn reset_connections(&self, other: &Host) {
        let mut state = self.world.state.borrow_mut();
        state.reset_between(self.id, other.id);
    }

    /// Makes its disk fail from now on as `fault` says.
    pub fn add_fault(&self, fault: Fault) {
        let mut state = self.world.state.borrow_mut();
        state.host(self.id).disk.faults.push(fault);
    }

    /// Ends all faults of its disk.
    pub fn clear_faults(&self) {
        let mut state = self.world.state.borrow_mut();
        state.host(self.id).disk.faults.clear();
    }

    /// Puts a file on its disk, durably.
    pub fn put_file(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        let mut state = self.world.state.borrow_mut();
        state.host(self.id).disk.put(path.as_ref(), bytes);
    }

    /// What a read of all of a file would give; `None` if there is none.
    pub fn read_file(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.world.state.borrow().hosts[self.id.0]
            .disk
            .read(path.as_ref())
    }

    /// Takes a file out of its directory, durably; whether there was one.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> bool {
        let mut state = self.world.state.borrow_mut();
        state.host(self.id).disk.take(path.as_ref()).is_some()
    }

    /// Gives a file, or a directory with all that is in it, another name, durably.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) {
        let mut state = self.world.state.borrow_mut();
        state
            .host(self.id)
            .disk
            .move_all(from.as_ref(), to.as_ref());
    }

    /// The mark of a file ([`crate::store::mark`]); `None` also when there is no file.
    pub fn mark(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let state = self.world.state.borrow();
        let disk = &state.hosts[self.id.0].disk;
        disk.files[disk.names.file(path.as_ref())?].mark.clone()
    }

    /// Marks a file, or takes its mark away, durably.
    pub fn set_mark(&self, path: impl AsRef<Path>, mark: Option<Vec<u8>>) {
        let mut state = self.world.state.borrow_mut();
        let disk = &mut state.host(self.id).disk;
        if let Some(file) = disk.names.file(path.as_ref()) {
            disk.files[file].mark = mark;
            disk.files[file].keep_mark();
        }
    }

    /// From now on its disk takes `d` to tell by [`crate::store`] what files hold. A lane that asks without
    /// [`crate::blocking`] stands still for so long.
    pub fn stall_disk(&self, d: Duration) {
        let mut state = self.world.state.borrow_mut();
        state.host(self.id).disk.stall = d;
    }

    /// Lets its disk make `changes` more changes, syncs among them; from then on everything there fails
    /// with EIO until the machine stops, as in the moment in which its power goes.
    pub fn doom_after(&self, changes: u64) {
        let mut state = self.world.state.borrow_mut();
        state.host(self.id).disk.changes_left = Some(changes);
    }

    /// Whether [`Host::doom_after`] has made anything fail.
    pub fn is_doomed(&self) -> bool {
        let state = self.world.state.borrow();
        state.hosts[self.id.0].disk.changes_left == Some(0)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.world.state.borrow();
        write!(f, "Host({})", state.hosts[self.id.0].name)
    }
}
