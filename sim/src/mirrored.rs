//! A mirror over whole daemons: two storages serve a file each, the owner mirrors them, or one of them and a file of its
//! own, and the client uses that as its disk: over iSCSI, and sends again what has no answer, or over NBD, and does not.
//!
//! ```text
//!  client: iscsi ──► owner: serve ──┬─► mirror ──┬─► iscsi ──► storage a: file
//!  or      NBD ────► owner: attach ─┘            └─► iscsi ──► storage b: file      (or a file of the owner)
//! ```
//!
//! Of some, the register is a LUN of a fourth machine.

use std::{cell::RefCell, rc::Rc, time::Duration};

use ::mirror::{CopyId, CopySet, register::Record};
use engine::{
    sim::{Host, Random, World},
    time,
};
use volume::SharedVolume;

use crate::{
    attachment_machine::{AttachmentMachine, VOLUME},
    client,
    daemon_machine::DaemonMachine,
    machine::End,
    mirror_parts::{
        COPY_BYTES, DATA_KIB, LIMITS, LOST_STATE, compare, copy_on, file, kept_in, kept_on,
        record_in, record_on, register_text, remote, settings, storage_text,
    },
    model::Model,
    nbd_volume::NbdVolume,
    workload::Watched,
};

pub use crate::mirror_parts::{COPY, Caches, STATE};

const OWNER: &str = "iqn.2026-11.io.sanstone:owner";
const PORT: u16 = 3260;
/// The record: in its directory, under the identity of volumes that [`DaemonMachine`] creates.
const REGISTER: &str = "/srv/state/mirror-00000000-0000-0000-0000-000000000057.register";
/// How long the client waits for the owner, which may be waiting itself.
const CLIENT_WAITS: Duration = Duration::from_secs(3000);

/// How the mirror is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Use {
    /// The second copy is a file of the owner.
    is_local: bool,
    /// The client does not send again what has no answer.
    is_attached: bool,
    /// Requests fail while the last copy may still answer.
    is_hasty: bool,
    /// Its register is a LUN.
    has_lun: bool,
}

impl Use {
    fn draw(random: &mut Random, seed: u64) -> Use {
        let is_attached = random.chance(0.75);
        Use {
            is_local: random.chance(0.3),
            is_attached,
            is_hasty: is_attached && random.chance(0.25),
            has_lun: seed % 5 == 4,
        }
    }

    fn owner_text(self, random: &mut Random, lanes: usize, caches: Caches) -> String {
        let register = match self.has_lun {
            true => format!("register = {}, ", remote("register", OWNER)),
            false => String::new(),
        };
        let second = match self.is_local {
            true => format!("{{ {} }}", file(random, caches)),
            false => remote("b", OWNER),
        };
        let [copy, request] = match self.is_hasty {
            true => ["1s", "4s"],
            false => ["1s", "2000s"],
        };
        let target = match self.is_attached {
            true => String::new(),
            false => format!("[target.\"{OWNER}\"]\nluns = [\"{VOLUME}\"]\nallow = [\"*\"]\n"),
        };
        let limits = if self.is_attached { "" } else { LIMITS };
        let settings = settings(lanes);
        format!(
            "{settings}{limits}[volume.{VOLUME}]\nmirror = {{ copy_timeout = \"{copy}\", request_timeout = \"{request}\", \
             {register}of = [ {}, {second} ] }}\n{target}",
            remote("a", OWNER)
        )
    }
}

/// One of the machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// With the first copy.
    A,
    /// With the second, unless the owner has it.
    B,
    /// With the mirror.
    Owner,
}

/// The machine with the mirror, and what its client uses.
enum Owner {
    Serves(DaemonMachine),
    Attaches(AttachmentMachine, Rc<NbdVolume>),
}

/// The machines, with their client.
pub struct Mirrored {
    /// The world.
    pub world: World,
    client: Host,
    a: DaemonMachine,
    b: DaemonMachine,
    register: Option<DaemonMachine>,
    owner: Owner,
    used: Use,
    /// The second copy held something else before.
    is_dirty: bool,
    /// What the client may see.
    pub model: RefCell<Model>,
}

impl Watched for Mirrored {
    fn world(&self) -> &World {
        &self.world
    }

    fn model(&self) -> &RefCell<Model> {
        &self.model
    }
}

impl Mirrored {
    /// The machines of `seed`; nothing runs yet.
    pub fn new(seed: u64, caches: Caches) -> Rc<Mirrored> {
        let world = World::new(seed);
        let mut random = world.random();
        let used = Use::draw(&mut random, seed);
        let mut storage = |name: &str| {
            let lanes = 1 + random.index(2);
            let host = world.host_with_lanes(name, lanes);
            DaemonMachine::new(host, &storage_text(&mut random, lanes, caches))
        };
        let (a, b) = (storage("a"), storage("b"));
        let register = used.has_lun.then(|| {
            let host = world.host_with_lanes("register", 1);
            DaemonMachine::new(host, &register_text())
        });
        let lanes = 1 + random.index(2);
        let host = world.host_with_lanes("owner", lanes);
        let text = used.owner_text(&mut random, lanes, caches);
        let owner = match used.is_attached {
            true => Owner::Attaches(
                AttachmentMachine::new(host, lanes, &text),
                NbdVolume::durable(DATA_KIB << 10),
            ),
            false => Owner::Serves(DaemonMachine::new(host, &text)),
        };
        let mut model = Model::new(DATA_KIB << 10, false);
        // All that is acknowledged is durable: what fails is the connection.
        model.flushes_may_fail_once();
        Rc::new(Mirrored {
            client: world.host("client"),
            a,
            b,
            register,
            owner,
            used,
            is_dirty: random.chance(0.2),
            model: RefCell::new(model),
            world,
        })
    }

    /// Runs `scenario` on the client until it ends, and the world with it.
    pub fn run<T>(self: &Rc<Mirrored>, scenario: impl Future<Output = T>) -> T {
        let output = self.world.block_on(&self.client, scenario);
        self.world.end();
        output
    }

    /// Whether the second copy is a file of the owner.
    pub fn is_local(&self) -> bool {
        self.used.is_local
    }

    /// Whether the client does not send again what has no answer.
    pub fn is_attached(&self) -> bool {
        self.used.is_attached
    }

    /// Whether requests may fail although a copy lives: they do not wait as long as it may hang.
    pub fn is_hasty(&self) -> bool {
        self.used.is_hasty
    }

    /// Whether its register is a LUN.
    pub fn has_lun_register(&self) -> bool {
        self.used.has_lun
    }

    /// Whether the second copy has to be filled first.
    pub fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// The machine with the second copy.
    pub fn second(&self) -> Which {
        match self.used.is_local {
            true => Which::Owner,
            false => Which::B,
        }
    }

    /// The machine.
    pub fn host(&self, which: Which) -> &Host {
        match (which, &self.owner) {
            (Which::A, _) => self.a.host(),
            (Which::B, _) => self.b.host(),
            (Which::Owner, Owner::Serves(owner)) => owner.host(),
            (Which::Owner, Owner::Attaches(owner, _)) => owner.host(),
        }
    }

    /// Starts the daemons for the first time, creates the mirror, and returns the client's volume.
    pub async fn begin(&self) -> SharedVolume {
        if self.is_dirty {
            let dirt = vec![0xD1; COPY_BYTES as usize];
            self.host(self.second()).put_file(COPY, &dirt);
        }
        for storage in [&self.a, &self.b].into_iter().chain(&self.register) {
            storage.start();
            storage.ready().await;
        }
        match (&self.owner, self.is_dirty) {
            (Owner::Serves(owner), false) => owner.create_stripe(VOLUME).await,
            (Owner::Serves(owner), true) => owner.create_by_force(VOLUME).await,
            (Owner::Attaches(owner, _), false) => owner.create_stripe().await,
            (Owner::Attaches(owner, _), true) => owner.create_by_force().await,
        }
        self.start_owner();
        self.owner_ready().await;
        match &self.owner {
            Owner::Serves(owner) => {
                let address = owner.host().addr(PORT);
                client::open(address, OWNER, Duration::from_secs(2500), CLIENT_WAITS).await
            }
            Owner::Attaches(_, disk) => disk.clone(),
        }
    }

    fn start_owner(&self) {
        match &self.owner {
            Owner::Serves(owner) => owner.start(),
            Owner::Attaches(owner, _) => owner.start(),
        }
    }

    /// Waits until the owner serves, and connects to it again if the client does not do so itself.
    async fn owner_ready(&self) {
        match &self.owner {
            Owner::Serves(owner) => owner.ready().await,
            Owner::Attaches(owner, disk) => {
                owner.ready().await;
                let connected = disk.connect(owner.address(), false).await;
                connected.expect("its server listens");
            }
        }
    }

    /// Brings a machine down.
    pub async fn end(&self, which: Which, how: End) {
        match (which, &self.owner) {
            (Which::A, _) => self.a.end(how).await,
            (Which::B, _) => self.b.end(how).await,
            (Which::Owner, Owner::Serves(owner)) => owner.end(how).await,
            (Which::Owner, Owner::Attaches(owner, disk)) => {
                owner.end(how).await;
                disk.disconnect();
            }
        }
    }

    /// Brings a machine that is down up again; the owner serves then.
    pub async fn restart(&self, which: Which) {
        match which {
            Which::A => self.a.restart(),
            Which::B => self.b.restart(),
            Which::Owner => {
                self.host(which).restart();
                self.start_owner();
                self.owner_ready().await;
            }
        }
    }

    /// Brings a machine down for `down`, and up again.
    pub async fn fall(&self, which: Which, how: End, down: Duration) {
        self.end(which, how).await;
        time::sleep(down).await;
        self.restart(which).await;
    }

    /// Brings the owner down for `down`, and up again without its state directory; the mirror is taken over, if it
    /// `may_force` without the copies that cannot be reached, where those that can be have all there is.
    pub async fn lose_state(&self, how: End, down: Duration, may_force: bool) {
        self.end(Which::Owner, how).await;
        let may_force = may_force && self.record().in_sync == CopySet::first(2);
        let host = self.host(Which::Owner);
        host.rename(STATE, LOST_STATE);
        time::sleep(down).await;
        host.restart();
        let mut attempts = 0;
        loop {
            let force = may_force && attempts > 2;
            let taken = match &self.owner {
                Owner::Serves(owner) => owner.take_over(VOLUME, force).await,
                Owner::Attaches(owner, _) => owner.take_over(force).await,
            };
            // The process of the command ends, and all of its sessions.
            host.kill();
            host.restart();
            let Err(failure) = taken else { break };
            attempts += 1;
            assert!(attempts < 1000, "it is not taken over: {failure}");
            time::sleep(Duration::from_secs(1)).await;
        }
        self.start_owner();
        self.owner_ready().await;
    }

    /// The machine with the copy at `place`.
    fn with_copy(&self, place: usize) -> Which {
        match place {
            0 => Which::A,
            _ => self.second(),
        }
    }

    /// What the file of the copy at `place` holds.
    pub fn backup(&self, place: usize) -> Vec<u8> {
        copy_on(self.host(self.with_copy(place)))
    }

    /// Whether the copy at `place` keeps the record that the register has.
    pub fn has_noted(&self, place: usize) -> bool {
        kept_on(self.host(self.with_copy(place))).record == self.record()
    }

    /// Brings the machine with the copy at `place` down for `down`, and up again with what the copy held before, if the
    /// other one is in sync and remembers a later heartbeat: nothing else could tell. Returns whether it did.
    pub async fn restore(&self, place: usize, backup: &[u8], down: Duration) -> bool {
        let which = self.with_copy(place);
        self.end(which, End::PowerCut).await;
        let other = CopyId::new(1 - place);
        let known = kept_on(self.host(self.with_copy(other.place()))).heartbeats[place];
        let is_older = kept_in(backup).heartbeats[place] < known;
        let may = is_older && self.record().in_sync.contains(other);
        if may {
            self.host(which).restore_file(COPY, backup);
        }
        time::sleep(down).await;
        self.restart(which).await;
        may
    }

    /// What the register has.
    pub fn record(&self) -> Record {
        match &self.register {
            Some(machine) => record_on(machine.host()),
            None => record_in(self.host(Which::Owner), REGISTER),
        }
    }

    /// Waits until the storages serve and both copies are in sync again.
    ///
    /// # Panics
    /// If that takes more than a quarter of an hour.
    pub async fn in_sync(&self) {
        for storage in [&self.a, &self.b] {
            storage.ready().await;
        }
        for _ in 0..10_000 {
            if self.record().in_sync == CopySet::first(2) {
                return;
            }
            time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the copies do not come in sync again: {:?}", self.record());
    }

    /// Compares the copies of a mirror that nobody writes to.
    ///
    /// # Panics
    /// Where they differ.
    pub fn compare(&self) {
        compare([self.backup(0), self.backup(1)]);
    }
}
