//! A machine of a simulated world, and what a test can do to it.

use std::{
    fmt,
    future::Future,
    net::{IpAddr, SocketAddr},
    path::Path,
    rc::Rc,
    time::Duration,
};

use super::{
    InjectedFault, TrafficDirection,
    disk::{Hangs, medium::FileState},
    driver::Driver,
    keys::HostId,
};
use crate::{
    lane::{LaneHandle, Share},
    reactor::{FileMark, PathKind},
    task::{self, JoinHandle},
};

/// A machine with lanes, addresses and a disk. Clones are the same machine. Every method may be
/// called from outside the world and from any of its tasks.
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

    /// Adds a network card with an address of its own: `eth1` for the first, and so on.
    pub fn add_address(&self) -> IpAddr {
        self.world.state.borrow_mut().add_address(self.id)
    }

    /// Cuts this address off in one direction: packets wait to be retransmitted, and no error is
    /// reported.
    pub fn cut(&self, ip: IpAddr, direction: TrafficDirection) {
        self.world.state.borrow_mut().cut(ip, direction);
    }

    /// Undoes all cuts of this address.
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

    /// Starts a task on the first lane. If the machine stops, the handle never resolves.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        self.spawn_on(0, future)
    }

    /// Starts a task on lane `n`.
    pub fn spawn_on<T: 'static>(
        &self,
        n: usize,
        future: impl Future<Output = T> + 'static,
    ) -> JoinHandle<T> {
        let lane = self.world.lane(self.id, n);
        let _entered = lane.0.enter();
        task::spawn_for(Share::COMMON, future)
    }

    /// A handle to lane `n`, as other lanes use.
    pub fn lane(&self, n: usize) -> LaneHandle {
        self.world.lane(self.id, n).handle()
    }

    /// Whether it is switched on and its software runs.
    pub fn is_on(&self) -> bool {
        self.world.is_on(self.id)
    }

    /// Gives lane `n` no turn for `d`, as if the system ran something else on that CPU.
    pub fn hold_lane(&self, n: usize, d: Duration) {
        self.world.hold(self.id, n, d);
    }

    /// Cuts the power: its tasks are gone, its peers are told nothing, and the seed decides what
    /// its disk keeps of data that was not durable. If one of its own tasks calls this, it takes
    /// effect after that lane's turn.
    pub fn power_cut(&self) {
        self.world.stop(self.id, true);
    }

    /// Kills its software: its tasks are gone, the kernel survives and closes its connections, and
    /// files keep every completed write.
    pub fn kill(&self) {
        self.world.stop(self.id, false);
    }

    /// Starts it again after [`Host::power_cut`] or [`Host::kill`]: fresh lanes without tasks, and
    /// the files as they were left.
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

    /// Cuts the network between it and `other`: packets wait, and connections survive until an end
    /// gives up.
    pub fn partition(&self, other: &Host) {
        self.world.state.borrow_mut().partition(self.id, other.id);
    }

    /// Ends the partition between it and `other`.
    pub fn heal(&self, other: &Host) {
        self.world.state.borrow_mut().heal(self.id, other.id);
    }

    /// Resets every connection between it and `other`.
    pub fn reset_connections(&self, other: &Host) {
        let mut state = self.world.state.borrow_mut();
        state.reset_between(self.id, other.id);
    }

    /// Makes its disk fail from now on as `fault` says.
    pub fn add_fault(&self, fault: InjectedFault) {
        let mut state = self.world.state.borrow_mut();
        state.host(self.id).disk.faults.push(fault);
    }

    /// Removes all faults of its disk.
    pub fn clear_faults(&self) {
        let mut state = self.world.state.borrow_mut();
        state.host(self.id).disk.faults.clear();
    }

    /// Creates or replaces a file on its disk, durably.
    pub fn put_file(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        let mut state = self.world.state.borrow_mut();
        state.host(self.id).disk.put(path.as_ref(), bytes);
    }

    /// Gives a file these permission bits, durably. The machine's software is its owner.
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) {
        self.change_file(path.as_ref(), |file| file.mode = mode);
    }

    /// Makes a file something else, such as a pipe, durably.
    pub fn set_kind(&self, path: impl AsRef<Path>, kind: PathKind) {
        self.change_file(path.as_ref(), |file| file.kind = kind);
    }

    fn change_file(&self, path: &Path, change: impl FnOnce(&mut FileState)) {
        let mut state = self.world.state.borrow_mut();
        let disk = &mut state.host(self.id).disk;
        let file = disk.names.file(path).expect("the file is there");
        change(&mut disk.files[file]);
    }

    /// The content of a file as a read would return it; `None` if there is no such file.
    pub fn read_file(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.read_file_at(path, 0, u64::MAX)
    }

    /// At most `len` bytes of it from `at` on.
    pub fn read_file_at(&self, path: impl AsRef<Path>, at: u64, len: u64) -> Option<Vec<u8>> {
        self.world.state.borrow().hosts[self.id.0]
            .disk
            .read(path.as_ref(), at, len)
    }

    /// Removes a file, durably. Returns whether it existed.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> bool {
        let mut state = self.world.state.borrow_mut();
        state.host(self.id).disk.take(path.as_ref()).is_some()
    }

    /// Renames a file, or a directory with everything in it, durably.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) {
        let mut state = self.world.state.borrow_mut();
        state
            .host(self.id)
            .disk
            .move_all(from.as_ref(), to.as_ref());
    }

    /// The mark of a file ([`crate::store::mark`]); also `None` if there is no such file.
    pub fn mark(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let state = self.world.state.borrow();
        let disk = &state.hosts[self.id.0].disk;
        disk.files[disk.names.file(path.as_ref())?].marks[FileMark::Disk as usize].clone()
    }

    /// Sets or removes the mark of a file, durably.
    pub fn set_mark(&self, path: impl AsRef<Path>, mark: Option<Vec<u8>>) {
        let mut state = self.world.state.borrow_mut();
        let disk = &mut state.host(self.id).disk;
        if let Some(file) = disk.names.file(path.as_ref()) {
            disk.files[file].marks[FileMark::Disk as usize] = mark;
            disk.files[file].keep_marks();
        }
    }

    /// From now on each sync of an open file takes `d` more, and whoever opens, looks at, reads or changes a file by its
    /// path, or asks for its length, waits that long: blocked is a lane that does it without [`crate::blocking`].
    pub fn stall_disk(&self, d: Duration) {
        let mut state = self.world.state.borrow_mut();
        state.host(self.id).disk.stall = d;
    }

    /// From now on a write to an open file takes up to `longest` more, each by itself, with this probability: others
    /// overtake it. With 0 none does.
    pub fn hang_writes(&self, probability: f64, longest: Duration) {
        let mut state = self.world.state.borrow_mut();
        let hangs = Hangs {
            probability,
            longer_ns: 0..longest.as_nanos() as u64 + 1,
        };
        state.host(self.id).disk.hangs = (probability > 0.0).then_some(hangs);
    }

    /// Replaces the content of a file, durably. Its marks and its name stay, as when a backup is copied over it.
    pub fn restore_file(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        let mut state = self.world.state.borrow_mut();
        let disk = &mut state.host(self.id).disk;
        let file = disk.names.file(path.as_ref()).expect("the file is there");
        disk.rewrite(file, bytes);
        disk.sync_file(file);
    }

    /// Lets its disk make `changes` more changes, syncs included. From then on everything on it fails
    /// with EIO until the machine stops, as at the moment of a power loss.
    pub fn doom_after(&self, changes: u64) {
        let mut state = self.world.state.borrow_mut();
        state.host(self.id).disk.changes_left = Some(changes);
    }

    /// Whether [`Host::doom_after`] has taken effect.
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
