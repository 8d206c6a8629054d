//! A mirror with two owners that relieve each other: two storages serve a file each, a third machine the register, and the
//! owner attaches the mirror. The client uses what both owners show, as an NBD disk, and does not send again what has no
//! answer.
//!
//! ```text
//!  client: NBD ─┬► owner 0: attach ─► mirror ─┬─┬─► iscsi ──► storage 0: file
//!               └► owner 1: attach ─► mirror ─┘ ├─► iscsi ──► storage 1: file
//!                                               └─► iscsi ──► register
//! ```
//!
//! Each machine that is served from has an address for each owner, so that each way can be cut by itself.

use std::{
    cell::{Cell, RefCell},
    net::IpAddr,
    rc::Rc,
    time::Duration,
};

use ::mirror::{CopySet, register::Record};
use engine::{
    sim::{Host, Random, TrafficDirection, World},
    time,
};
use node::DaemonFailure;
use volume::SharedVolume;

use crate::{
    attachment_machine::{AttachmentMachine, VOLUME},
    daemon_machine::DaemonMachine,
    machine::End,
    mirror_parts::{
        COPY_BYTES, Caches, DATA_KIB, LOST_STATE, STATE, compare, copy_on, is_marked, kept_on,
        record_on, register_text, remote, settings, storage_text,
    },
    model::Model,
    nbd_volume::NbdVolume,
    workload::Watched,
};

const OWNERS: usize = 2;
/// The place of the machine with the register; the storages' are 0 and 1.
pub const REGISTER: usize = 2;
/// How long it takes at most until both copies are in sync, once all is well.
const IN_SYNC_WITHIN_S: usize = 900;
/// Attempts to take the mirror over, at most.
const ATTEMPTS_MAX: usize = 200;

/// An owner.
struct OwnerMachine {
    machine: AttachmentMachine,
    lanes: usize,
    /// What the client has of it.
    disk: Rc<NbdVolume>,
}

/// The machines, with their client.
pub struct TwoOwners {
    /// The world.
    pub world: World,
    client: Host,
    /// Storages and register.
    served: [DaemonMachine; 3],
    served_lanes: [usize; 3],
    /// Those of `served`, for each owner.
    addresses: [[IpAddr; OWNERS]; 3],
    owners: [OwnerMachine; OWNERS],
    /// The owner that the mirror was last made the property of.
    owner: Cell<usize>,
    /// What the client may see.
    pub model: RefCell<Model>,
}

impl Watched for TwoOwners {
    fn world(&self) -> &World {
        &self.world
    }

    fn model(&self) -> &RefCell<Model> {
        &self.model
    }
}

/// The configuration of an owner, who reaches the others at `addresses`; a request fails after `request_timeout`.
fn owner_text(
    (owner, lanes): (usize, usize),
    addresses: [IpAddr; 3],
    request_timeout: &str,
) -> String {
    let settings = settings(lanes);
    let initiator = format!("iqn.2026-11.io.sanstone:owner-{owner}");
    let [first, second, register] = addresses.map(|ip| remote(&ip.to_string(), &initiator));
    format!(
        "{settings}[volume.{VOLUME}]\nmirror = {{ copy_timeout = \"1s\", request_timeout = \"{request_timeout}\", \
         register = {register}, of = [ {first}, {second} ] }}\n"
    )
}

impl TwoOwners {
    /// The machines of `seed`; nothing runs yet.
    pub fn new(seed: u64) -> Rc<TwoOwners> {
        TwoOwners::with(seed, |random| ["4s", "2000s", "2000s"][random.index(3)])
    }

    /// The same, in which requests fail after a time that is drawn.
    pub fn with(
        seed: u64,
        request_timeout: impl FnOnce(&mut Random) -> &'static str,
    ) -> Rc<TwoOwners> {
        let world = World::new(seed);
        let mut random = world.random();
        let served_lanes = [1 + random.index(2), 1 + random.index(2), 1];
        let served = [0, 1, REGISTER].map(|far: usize| {
            let (name, lanes) = (["a", "b", "register"][far], served_lanes[far]);
            let host = world.host_with_lanes(name, lanes);
            let text = match far {
                REGISTER => register_text(),
                _ => storage_text(&mut random, lanes, Caches::None),
            };
            DaemonMachine::new(host, &text)
        });
        let addresses = [0, 1, 2].map(|far: usize| {
            let host: &Host = served[far].host();
            [host.ip(), host.add_address()]
        });
        let request_timeout = request_timeout(&mut random);
        let owners = [0, 1].map(|owner: usize| {
            let lanes = 1 + random.index(2);
            let host = world.host_with_lanes(&format!("owner-{owner}"), lanes);
            let addresses = addresses.map(|of_both| of_both[owner]);
            let text = owner_text((owner, lanes), addresses, request_timeout);
            OwnerMachine {
                machine: AttachmentMachine::new(host, lanes, &text),
                lanes,
                disk: NbdVolume::durable(DATA_KIB << 10),
            }
        });
        let mut model = Model::new(DATA_KIB << 10, false);
        // All that is acknowledged is durable: what fails is the connection.
        model.flushes_may_fail_once();
        Rc::new(TwoOwners {
            client: world.host("client"),
            served,
            served_lanes,
            addresses,
            owners,
            owner: Cell::new(0),
            model: RefCell::new(model),
            world,
        })
    }

    /// Runs `scenario` on the client until it ends, and the world with it.
    pub fn run<T>(self: &Rc<TwoOwners>, scenario: impl Future<Output = T>) -> T {
        let output = self.world.block_on(&self.client, scenario);
        self.world.end();
        output
    }

    /// Starts the daemons for the first time, creates the mirror, and has the first owner attach it.
    pub async fn begin(&self) {
        for served in &self.served {
            served.start();
            served.ready().await;
        }
        self.owners[0].machine.create_stripe().await;
        self.attach(0).await;
        self.owners[1].machine.host().kill();
    }

    /// The owner that has it.
    pub fn owner(&self) -> usize {
        self.owner.get()
    }

    /// What the client has of an owner.
    pub fn disk(&self, owner: usize) -> SharedVolume {
        self.owners[owner].disk.clone()
    }

    /// The machine of a storage, or of the register.
    pub fn host(&self, far: usize) -> &Host {
        self.served[far].host()
    }

    /// The machine of an owner.
    pub fn owner_host(&self, owner: usize) -> &Host {
        self.owners[owner].machine.host()
    }

    /// Attaches the mirror on a machine that is on, and connects the client.
    async fn attach(&self, owner: usize) {
        let OwnerMachine { machine, disk, .. } = &self.owners[owner];
        machine.start();
        machine.ready().await;
        let connected = disk.connect(machine.address(), false).await;
        connected.expect("its server listens");
    }

    /// Brings the machine of an owner down, if it is up.
    pub async fn end_owner(&self, owner: usize, how: End) {
        let OwnerMachine { machine, disk, .. } = &self.owners[owner];
        if machine.runs() {
            machine.end(how).await;
        } else if machine.host().is_on() {
            machine.host().kill();
        }
        disk.disconnect();
    }

    /// Starts the machine of an owner again, and has it open the mirror and close it again.
    ///
    /// # Errors
    /// Why it does not open.
    pub async fn try_owner(&self, owner: usize) -> Result<(), DaemonFailure> {
        let machine = &self.owners[owner].machine;
        machine.host().restart();
        machine.try_once().await
    }

    /// Has the owner that has it open it anew.
    pub async fn restart_owner(&self) {
        let owner = self.owner();
        self.end_owner(owner, End::Killed).await;
        self.owner_host(owner).restart();
        self.attach(owner).await;
    }

    /// The machine of an owner does nothing for `d`, and then goes on.
    pub fn pause(&self, owner: usize, d: Duration) {
        let OwnerMachine { machine, lanes, .. } = &self.owners[owner];
        (0..*lanes).for_each(|lane| machine.host().hold_lane(lane, d));
    }

    /// The same of a storage or the register.
    pub fn pause_served(&self, far: usize, d: Duration) {
        (0..self.served_lanes[far]).for_each(|lane| self.host(far).hold_lane(lane, d));
    }

    /// Makes the mirror the property of the other owner, who attaches it. Returns how many attempts that took.
    pub async fn relieve(&self) -> usize {
        let (former, next) = (self.owner(), 1 - self.owner());
        let OwnerMachine { machine, .. } = &self.owners[next];
        self.end_owner(next, End::Killed).await;
        let mut attempts = 0;
        loop {
            machine.host().restart();
            let taken = machine.take_over(false).await;
            attempts += 1;
            if taken.is_ok() {
                break;
            }
            machine.host().kill();
            let why = taken.err();
            assert!(attempts < ATTEMPTS_MAX, "it is not taken over: {why:?}");
            time::sleep(Duration::from_secs(1)).await;
        }
        self.owner.set(next);
        self.owners[former].disk.supersede();
        self.model.borrow_mut().relieved();
        // The process of the command ends, and all of its sessions.
        machine.host().kill();
        machine.host().restart();
        self.attach(next).await;
        attempts
    }

    /// Brings a storage or the register down.
    pub async fn end(&self, far: usize, how: End) {
        self.served[far].end(how).await;
    }

    /// Brings one that is down up again, without its state directory if that `is_lost`.
    pub fn restart(&self, far: usize, is_lost: bool) {
        if is_lost {
            self.host(far).rename(STATE, LOST_STATE);
        }
        self.served[far].restart();
    }

    /// Cuts the way of an owner to a storage or the register, in one direction.
    pub fn cut(&self, owner: usize, far: usize, direction: TrafficDirection) {
        self.host(far).cut(self.addresses[far][owner], direction);
    }

    /// Undoes that.
    pub fn mend(&self, owner: usize, far: usize) {
        self.host(far).mend(self.addresses[far][owner]);
    }

    /// What the register has.
    pub fn record(&self) -> Record {
        record_on(self.host(REGISTER))
    }

    /// Waits until all that is served from serves, and until both copies are in sync again, for a quarter of an hour.
    /// Returns whether they are.
    pub async fn comes_in_sync(&self) -> bool {
        for served in &self.served {
            served.ready().await;
        }
        for _ in 0..10 * IN_SYNC_WITHIN_S {
            if self.record().in_sync == CopySet::first(2) {
                return true;
            }
            time::sleep(Duration::from_millis(100)).await;
        }
        false
    }

    /// Waits until both copies are in sync again.
    ///
    /// # Panics
    /// If that takes more than a quarter of an hour.
    pub async fn in_sync(&self) {
        let are_they = self.comes_in_sync().await;
        assert!(
            are_they,
            "the copies do not come in sync again: {:?}",
            self.record()
        );
    }

    /// What the file of a copy holds.
    pub fn copy(&self, place: usize) -> Vec<u8> {
        let copy = copy_on(self.host(place));
        assert_eq!(copy.len() as u64, COPY_BYTES, "a copy keeps its length");
        copy
    }

    /// Whether a copy keeps the record that the register has.
    pub fn has_noted(&self, place: usize) -> bool {
        kept_on(self.host(place)).record == self.record()
    }

    /// Whether a copy's bitmap marks `region`.
    pub fn is_marked(&self, place: usize, region: usize) -> bool {
        is_marked(self.host(place), region)
    }

    /// Compares the copies of a mirror that nobody writes to.
    ///
    /// # Panics
    /// Where they differ.
    pub fn compare(&self) {
        compare([self.copy(0), self.copy(1)]);
    }
}
