//! A mirror over whole daemons: two storages serve a file each, the owner serves a mirror of them, or of one of them and a
//! file of its own, and the client uses that as its disk.
//!
//! ```text
//!  client: iscsi ──► owner: mirror ──┬─► iscsi ──► storage a: file
//!                                    └─► iscsi ──► storage b: file      (or a file of the owner)
//! ```

use std::{cell::RefCell, rc::Rc, time::Duration};

use ::mirror::{CopySet, register::Record};
use engine::{
    sim::{Host, Random, World},
    time,
};
use volume::SharedVolume;

use crate::{client, daemon_machine::DaemonMachine, machine::End, model::Model, workload::Watched};

const STORAGE: &str = "iqn.2026-11.io.sanstone:storage";
const OWNER: &str = "iqn.2026-11.io.sanstone:owner";
const PORT: u16 = 3260;
/// The length of the mirror's data.
const DATA_KIB: u64 = 256;
/// Where the owner keeps the record: its directory, and the identity of volumes that [`DaemonMachine`] creates.
const REGISTER: &str = "/srv/state/mirror-00000000-0000-0000-0000-000000000057.register";
/// How long the client waits for the owner, which may be waiting itself.
const CLIENT_WAITS: Duration = Duration::from_secs(3000);

/// The start of all configurations: low limits, so that they are reached, and short timeouts.
fn settings(lanes: usize) -> String {
    format!(
        "lanes = {lanes}\nstate = \"/srv/state\"\nmemory = \"32MiB\"\nping_interval = \"2s\"\npeer_timeout = \"5s\"\n\
         [limits]\ncommands = 16\ntransfer = \"64KiB\"\ndata_segment = \"16KiB\"\n"
    )
}

fn file(random: &mut Random) -> String {
    let mode = ["write-through", "direct-sync"][random.index(2)];
    let size = 1024 + DATA_KIB;
    format!("file = {{ path = \"copy\", size = \"{size}KiB\", cache = \"{mode}\" }}")
}

fn storage_text(random: &mut Random, lanes: usize) -> String {
    let (settings, file) = (settings(lanes), file(random));
    format!(
        "{settings}[volume.copy]\n{file}\n[target.\"{STORAGE}\"]\nluns = [\"copy\"]\nallow = [\"*\"]\n"
    )
}

fn owner_text(random: &mut Random, lanes: usize, is_local: bool) -> String {
    let remote = |name: &str| {
        format!(
            "{{ iscsi = {{ url = \"iscsi://{name}/{STORAGE}/0\", initiator = \"{OWNER}\", connect_timeout = \"1s\", \
             request_timeout = \"2s\", reconnect_timeout = \"4s\" }} }}"
        )
    };
    let second = match is_local {
        true => format!("{{ {} }}", file(random)),
        false => remote("b"),
    };
    let settings = settings(lanes);
    format!(
        "{settings}[volume.db]\nmirror = {{ copy_timeout = \"1s\", request_timeout = \"2000s\", of = [ {}, {second} ] }}\n\
         [target.\"{OWNER}\"]\nluns = [\"db\"]\nallow = [\"*\"]\n",
        remote("a")
    )
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

/// The machines, with their client.
pub struct Mirrored {
    /// The world.
    pub world: World,
    client: Host,
    a: DaemonMachine,
    b: DaemonMachine,
    owner: DaemonMachine,
    /// Whether the second copy is a file of the owner.
    pub is_local: bool,
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
    pub fn new(seed: u64) -> Rc<Mirrored> {
        let world = World::new(seed);
        let mut random = world.random();
        let is_local = random.chance(0.3);
        let mut machine = |name: &str, text: &dyn Fn(&mut Random, usize) -> String| {
            let lanes = 1 + random.index(2);
            let host = world.host_with_lanes(name, lanes);
            DaemonMachine::new(host, &text(&mut random, lanes))
        };
        let a = machine("a", &storage_text);
        let b = machine("b", &storage_text);
        let owner = machine("owner", &|random, lanes| {
            owner_text(random, lanes, is_local)
        });
        Rc::new(Mirrored {
            client: world.host("client"),
            a,
            b,
            owner,
            is_local,
            model: RefCell::new(Model::new(DATA_KIB << 10, false)),
            world,
        })
    }

    /// Runs `scenario` on the client until it ends, and the world with it.
    pub fn run<T>(self: &Rc<Mirrored>, scenario: impl Future<Output = T>) -> T {
        let output = self.world.block_on(&self.client, scenario);
        self.world.end();
        output
    }

    /// The machine.
    pub fn machine(&self, which: Which) -> &DaemonMachine {
        match which {
            Which::A => &self.a,
            Which::B => &self.b,
            Which::Owner => &self.owner,
        }
    }

    /// Starts the daemons for the first time, creates the mirror, and returns the client's volume.
    pub async fn begin(&self) -> SharedVolume {
        for storage in [&self.a, &self.b] {
            storage.start();
            storage.ready().await;
        }
        self.owner.create_stripe("db").await;
        self.owner.start();
        self.owner.ready().await;
        self.in_sync().await;
        self.open().await
    }

    /// Brings a machine down for `down`, and up again.
    pub async fn fall(&self, which: Which, how: End, down: Duration) {
        let machine = self.machine(which);
        machine.end(how).await;
        time::sleep(down).await;
        machine.restart();
    }

    /// What the register has.
    pub fn record(&self) -> Record {
        let sector = self.owner.host().read_file(REGISTER);
        Record::decode(&sector.expect("it has a register")).expect("it has a record")
    }

    /// Waits until the daemons run and both copies are in sync again.
    pub async fn in_sync(&self) {
        for machine in [&self.a, &self.b, &self.owner] {
            machine.ready().await;
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
        let data = |machine: &DaemonMachine| {
            let copy = machine.host().read_file("/srv/copy").expect("a copy");
            copy[..(DATA_KIB << 10) as usize].to_vec()
        };
        let second = match self.is_local {
            true => &self.owner,
            false => &self.b,
        };
        let (a, b) = (data(&self.a), data(second));
        let first = a.iter().zip(&b).position(|(a, b)| a != b);
        assert_eq!(first, None, "the copies differ from this byte on");
    }

    /// Opens the client's volume.
    async fn open(&self) -> SharedVolume {
        let address = self.owner.host().addr(PORT);
        client::open(address, OWNER, Duration::from_secs(2500), CLIENT_WAITS).await
    }
}
