//! Two whole daemons, each from the text of its configuration, and a client: the storage serves four file disks, the
//! gateway serves a stripe of them, perhaps through a cache, and the client uses that as its disk.
//!
//! ```text
//!  client: iscsi ──► gateway: cache? ──► stripe ──► iscsi × 4 ──► storage: file × 4
//! ```

use std::{cell::RefCell, collections::BTreeMap, net::SocketAddr, rc::Rc, time::Duration};

use engine::sim::{Host, Random, World};
use uuid::Uuid;
use volume::{IscsiDisk, SharedVolume};

use crate::{
    client,
    daemon_machine::DaemonMachine,
    machine::End,
    model::Model,
    raw::{RawSession, register_lasting, registered_keys},
    workload::Watched,
};

const STORAGE: &str = "iqn.2026-11.io.sanstone:storage";
/// A disk of the storage that belongs to no stripe, so that nobody else reserves it.
const NOTES: &str = "iqn.2026-11.io.sanstone:notes";
const GATEWAY: &str = "iqn.2026-11.io.sanstone:gateway";
const PORT: u16 = 3260;
const DISKS: usize = 4;
/// Data of each disk, after the superblock.
const DATA_KIB: u64 = 96;
/// The key that a client registers with each of the two daemons.
const KEY: u8 = 7;

/// How long the gateway waits for an absent storage: longer than it is ever absent.
const GATEWAY_WAITS: &str = "300s";
/// How long the client waits for the gateway, which may be waiting itself.
const CLIENT_WAITS: Duration = Duration::from_secs(900);

/// The start of both configurations: low limits, so that they are reached, and short timeouts.
fn settings(lanes: usize) -> String {
    format!(
        "lanes = {lanes}\nmemory = \"32MiB\"\nping_interval = \"2s\"\npeer_timeout = \"5s\"\n\
         [limits]\ncommands = 16\ntransfer = \"64KiB\"\ndata_segment = \"16KiB\"\n"
    )
}

fn storage_text(random: &mut Random, lanes: usize) -> String {
    // Volatile caches are drawn more often: they can lose more.
    let modes = [
        "write-back",
        "direct",
        "write-back",
        "direct",
        "write-through",
    ];
    let mode = modes[random.index(modes.len())];
    let mut text = settings(lanes);
    for disk in 0..DISKS {
        let size = 1024 + DATA_KIB;
        text += &format!(
            "[volume.d{disk}]\nfile = {{ path = \"d{disk}\", size = \"{size}KiB\", cache = \"{mode}\" }}\n"
        );
    }
    text += "[volume.notes]\nfile = { path = \"notes\", size = \"64KiB\" }\n";
    for (name, luns) in [
        (STORAGE, "\"d0\", \"d1\", \"d2\", \"d3\""),
        (NOTES, "\"notes\""),
    ] {
        text += &format!("[target.\"{name}\"]\nluns = [{luns}]\nallow = [\"*\"]\n");
    }
    text
}

fn gateway_text(lanes: usize, is_cached: bool) -> String {
    let leaf = |lun: usize| {
        format!(
            "{{ iscsi = {{ url = \"iscsi://storage/{STORAGE}/{lun}\", initiator = \"{GATEWAY}\", \
             connect_timeout = \"1s\", request_timeout = \"2s\", reconnect_timeout = \"{GATEWAY_WAITS}\" }} }}"
        )
    };
    let leaves: Vec<String> = (0..DISKS).map(leaf).collect();
    let stripe = format!(
        "stripe = {{ unit = \"8KiB\", of = [{}] }}",
        leaves.join(", ")
    );
    let db = match is_cached {
        true => format!("cache = {{ size = \"1MiB\", of = {{ {stripe} }} }}"),
        false => stripe,
    };
    let settings = settings(lanes);
    format!(
        "{settings}[volume.db]\n{db}\n[target.\"{GATEWAY}\"]\nluns = [\"db\"]\nallow = [\"*\"]\n"
    )
}

/// One of the two daemons.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// The one with the disks.
    Storage,
    /// The one with the stripe.
    Gateway,
}

/// The two daemons, with their client.
pub struct Daemons {
    /// The world.
    pub world: World,
    /// Where the disk is used.
    pub client: Host,
    /// Serves four disks.
    pub storage: DaemonMachine,
    /// Serves a stripe of them.
    pub gateway: DaemonMachine,
    /// What the client may see.
    pub model: RefCell<Model>,
    disk: RefCell<Option<Rc<IscsiDisk>>>,
    /// The identities of the disks when they were first served.
    known: RefCell<BTreeMap<String, Uuid>>,
    /// The name of the client's disk at that time.
    name: RefCell<Option<String>>,
}

impl Watched for Daemons {
    fn world(&self) -> &World {
        &self.world
    }

    fn model(&self) -> &RefCell<Model> {
        &self.model
    }
}

impl Daemons {
    /// The daemons of `seed`; nothing runs yet.
    pub fn new(seed: u64) -> Rc<Daemons> {
        let world = World::new(seed);
        let mut random = world.random();
        let is_cached = random.chance(0.4);
        let mut machine = |name: &str, text: &dyn Fn(&mut Random, usize) -> String| {
            let lanes = 1 + random.index(3);
            let host = world.host_with_lanes(name, lanes);
            DaemonMachine::new(host, &text(&mut random, lanes))
        };
        let storage = machine("storage", &storage_text);
        let gateway = machine("gateway", &|_, lanes| gateway_text(lanes, is_cached));
        Rc::new(Daemons {
            client: world.host("client"),
            storage,
            gateway,
            model: RefCell::new(Model::new(DISKS as u64 * (DATA_KIB << 10), is_cached)),
            disk: RefCell::default(),
            known: RefCell::default(),
            name: RefCell::default(),
            world,
        })
    }

    /// Runs `scenario` on the client until it ends, and the world with it.
    pub fn run<T>(self: &Rc<Daemons>, scenario: impl Future<Output = T>) -> T {
        let output = self.world.block_on(&self.client, scenario);
        self.world.end();
        output
    }

    /// Starts both daemons for the first time, creates the stripe, registers a key with each that they have to keep,
    /// and returns the client's volume.
    pub async fn begin(&self) -> SharedVolume {
        self.storage.start();
        self.storage.ready().await;
        self.gateway.create_stripe("db").await;
        self.gateway.start();
        self.gateway.ready().await;
        self.known.replace(self.served());
        for (portal, target) in self.keepers() {
            let session = RawSession::login_at(portal, target, "keeper").await;
            register_lasting(&session, KEY).await;
            session.end();
        }
        self.open().await
    }

    /// This machine, and the other one.
    pub fn both(&self, which: Which) -> (&DaemonMachine, &DaemonMachine) {
        match which {
            Which::Storage => (&self.storage, &self.gateway),
            Which::Gateway => (&self.gateway, &self.storage),
        }
    }

    /// Brings one of them down, and tells the model what may be lost: nothing acknowledged by a daemon that was told to
    /// stop, nothing in the page cache if the system stays up, and nothing at the gateway, which stores no data.
    pub async fn end(&self, which: Which, how: End) {
        let (machine, _) = self.both(which);
        machine.end(how).await;
        if (which, how) == (Which::Storage, End::PowerCut) {
            self.model.borrow_mut().crashed(|_| true);
        }
    }

    /// Portals and targets where a registration is kept.
    fn keepers(&self) -> [(SocketAddr, &'static str); 2] {
        [
            (self.storage.host().addr(PORT), NOTES),
            (self.gateway.host().addr(PORT), GATEWAY),
        ]
    }

    fn served(&self) -> BTreeMap<String, Uuid> {
        let mut served = self.storage.disks();
        served.extend(self.gateway.disks());
        served
    }

    /// Compares what is served with what was served first: the identities of the disks, and the state that their units
    /// had to keep.
    pub async fn check_identities(&self) {
        assert_eq!(self.served(), *self.known.borrow(), "a disk is another one");
        assert_eq!(self.served().len(), DISKS + 2);
        for (portal, target) in self.keepers() {
            let session = RawSession::login_at(portal, target, "keeper").await;
            let keys = registered_keys(&session).await;
            session.end();
            assert_eq!(keys, [KEY], "what {target} has to remember");
        }
    }

    /// Opens the client's volume; waits for the gateway if it is not there yet.
    async fn open(&self) -> SharedVolume {
        let address = self.gateway.host().addr(PORT);
        let disk = client::open(address, GATEWAY, Duration::from_secs(5), CLIENT_WAITS).await;
        let name = disk.identity().worldwide_name().expect("it has one");
        let known = self.name.borrow_mut().get_or_insert(name.clone()).clone();
        assert_eq!(name, known, "the client has another disk");
        self.disk.replace(Some(disk.clone()));
        disk
    }

    /// Closes the client's `volume`, of which the caller must keep no reference, restarts the gateway and reopens the
    /// volume. This is how a client recovers from a failed flush.
    pub async fn reopen(&self, volume: SharedVolume, how: End) -> SharedVolume {
        drop(volume);
        if let Some(disk) = self.disk.take() {
            disk.close().await;
        }
        self.gateway.end(how).await;
        self.gateway.restart();
        self.gateway.ready().await;
        let volume = self.open().await;
        self.model.borrow_mut().reopened();
        volume
    }
}
