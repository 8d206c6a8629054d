//! A volume that one machine has attached, on disks of a daemon on another, each from the text of its configuration. A
//! client uses it as an NBD disk.
//!
//! ```text
//!  client: NBD ──► user: cache? ──► stripe? ──► iscsi × 2 or 1 ──► storage: file × 2
//! ```

use std::{cell::RefCell, rc::Rc};

use engine::sim::{Host, Random, World};
use volume::SharedVolume;

use crate::{
    attachment_machine::{AttachmentMachine, VOLUME},
    daemon_machine::DaemonMachine,
    machine::End,
    model::Model,
    nbd_volume::NbdVolume,
    workload::Watched,
};

const STORAGE: &str = "iqn.2026-11.io.sanstone:storage";
const OTHER: &str = "iqn.2026-11.io.sanstone:other";
const DISKS: usize = 2;
/// Data of each disk, after the superblock.
const DATA_KIB: u64 = 96;
/// How long the attachment waits for an absent storage: longer than it is ever absent.
const USER_WAITS: &str = "300s";

/// What the storage serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// The disks.
    Disks,
    /// The disks, and another one in a target of its own.
    More,
    /// Only that other disk.
    Other,
}

/// The two machines, with their client.
pub struct Attached {
    /// The world.
    pub world: World,
    /// Where the disk is used.
    pub client: Host,
    /// Serves the disks.
    pub storage: DaemonMachine,
    /// Has attached a volume on them.
    pub user: AttachmentMachine,
    /// What the client may see.
    pub model: RefCell<Model>,
    /// The client's disk.
    pub disk: Rc<NbdVolume>,
    is_striped: bool,
    is_structured: bool,
    /// The start of the storage's configuration, and its volumes.
    settings: String,
}

impl Watched for Attached {
    fn world(&self) -> &World {
        &self.world
    }

    fn model(&self) -> &RefCell<Model> {
        &self.model
    }
}

/// The start of both configurations: low limits and short timeouts.
fn settings(lanes: usize) -> String {
    format!("lanes = {lanes}\nmemory = \"32MiB\"\nping_interval = \"2s\"\npeer_timeout = \"5s\"\n")
}

fn storage_settings(random: &mut Random, lanes: usize) -> String {
    // Volatile caches are drawn more often: they can lose more.
    let modes = [
        "write-back",
        "direct",
        "write-back",
        "direct",
        "write-through",
    ];
    let mode = modes[random.index(modes.len())];
    let size = 1024 + DATA_KIB;
    let mut text = settings(lanes);
    text += "[limits]\ncommands = 16\ntransfer = \"64KiB\"\ndata_segment = \"16KiB\"\n";
    for disk in 0..DISKS {
        text += &format!(
            "[volume.d{disk}]\nfile = {{ path = \"d{disk}\", size = \"{size}KiB\", cache = \"{mode}\" }}\n"
        );
    }
    text + "[volume.other]\nfile = { path = \"other\", size = \"64KiB\" }\n"
}

fn user_text(lanes: usize, is_striped: bool, is_cached: bool) -> String {
    let leaf = |lun: usize| {
        format!(
            "iscsi = {{ url = \"iscsi://storage/{STORAGE}/{lun}\", connect_timeout = \"1s\", \
             request_timeout = \"2s\", reconnect_timeout = \"{USER_WAITS}\" }}"
        )
    };
    let disks = match is_striped {
        true => {
            let (first, second) = (leaf(0), leaf(1));
            format!("stripe = {{ unit = \"8KiB\", of = [{{ {first} }}, {{ {second} }}] }}")
        }
        false => leaf(0),
    };
    let volume = match is_cached {
        // Nobody else writes to the disks.
        true => format!("cache = {{ size = \"1MiB\", only_writer = true, of = {{ {disks} }} }}"),
        false => disks,
    };
    format!("{}[volume.{VOLUME}]\n{volume}\n", settings(lanes))
}

impl Attached {
    /// The machines of `seed`; nothing runs yet.
    pub fn new(seed: u64) -> Rc<Attached> {
        let world = World::new(seed);
        let mut random = world.random();
        let (is_striped, is_cached) = (random.chance(0.6), random.chance(0.3));
        let lanes = 1 + random.index(3);
        let settings = storage_settings(&mut random, lanes);
        let storage = world.host_with_lanes("storage", lanes);
        let storage = DaemonMachine::new(storage, &storage_text(&settings, Served::Disks));
        let lanes = 1 + random.index(3);
        let user = world.host_with_lanes("user", lanes);
        let user = AttachmentMachine::new(user, lanes, &user_text(lanes, is_striped, is_cached));
        let len_kib = match is_striped {
            true => DISKS as u64 * DATA_KIB,
            false => 1024 + DATA_KIB,
        };
        Rc::new(Attached {
            client: world.host("client"),
            storage,
            user,
            model: RefCell::new(Model::new(len_kib << 10, is_cached)),
            disk: NbdVolume::new(len_kib << 10),
            is_striped,
            is_structured: random.chance(0.5),
            settings,
            world,
        })
    }

    /// Runs `scenario` on the client until it ends, and the world with it.
    pub fn run<T>(self: &Rc<Attached>, scenario: impl Future<Output = T>) -> T {
        let output = self.world.block_on(&self.client, scenario);
        self.world.end();
        output
    }

    /// Starts both machines for the first time, and returns the client's volume.
    pub async fn begin(&self) -> SharedVolume {
        self.storage.start();
        self.storage.ready().await;
        if self.is_striped {
            self.user.create_stripe().await;
        }
        self.user.start();
        self.connect().await;
        self.disk.clone()
    }

    /// Waits until the volume is attached, and connects to it.
    async fn connect(&self) {
        self.user.ready().await;
        let connected = self.disk.connect(self.user.address(), self.is_structured);
        connected.await.expect("its server listens");
    }

    /// Switches the storage to another configuration, while it serves.
    pub async fn apply(&self, served: Served) -> Vec<String> {
        let text = storage_text(&self.settings, served);
        let applied = self.storage.apply(&text).await;
        applied.unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Brings the storage down, and tells the model what may be lost.
    pub async fn end_storage(&self, how: End) {
        self.storage.end(how).await;
        if how == End::PowerCut {
            self.model.borrow_mut().crashed(|_| true);
        }
    }

    /// Brings the user down. The client notices, and treats what it has not flushed as lost.
    pub async fn end_user(&self, how: End) {
        self.user.end(how).await;
        self.disk.disconnect();
    }

    /// Starts the user again, and reconnects the client.
    pub async fn restart_user(&self) {
        self.user.restart();
        self.connect().await;
        self.model.borrow_mut().reopened();
    }

    /// The identity of the attached disk.
    pub async fn identity(&self) -> String {
        let description = self.user.describe().await;
        let uuid = description.volumes[VOLUME].uuid.clone();
        uuid.expect("an attached disk has an identity")
    }
}

fn storage_text(settings: &str, served: Served) -> String {
    let target = |name, luns| format!("[target.\"{name}\"]\nluns = [{luns}]\nallow = [\"*\"]\n");
    let mut text = settings.to_owned();
    if served != Served::Other {
        text += &target(STORAGE, "\"d0\", \"d1\"");
    }
    if served != Served::Disks {
        text += &target(OTHER, "\"other\"");
    }
    text
}
