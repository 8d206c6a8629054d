//! A simulated world with a client and two targets, drawn from a seed, and the volume that the client opens there.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, OnceLock},
    time::Duration,
};

use engine::{
    sim::{Host, Random, World, WorldConfig},
    time,
};
use uuid::Uuid;
use volume::{
    AtomicWrites, IscsiConfig, IscsiDisk, Multipath, PathConfig, PathCounts, Sessions, Shape,
    SharedVolume, Transport, Volume,
    cache::{Cache, CacheConfig},
    leaf::file::{FileOptions, OpenFile},
    stripe::{self, Child, CreateOptions},
};

use crate::{
    content::SECTOR_BYTES,
    model::Model,
    target_machine::{Networks, PORT, Served, TargetMachine},
    workload::Watched,
};

/// What each target stores.
const CHILD_BYTES: u64 = (1 << 20) + (192 << 10);
/// The stripe's unit.
pub const UNIT_BYTES: u32 = 8 << 10;
/// How long a connection and its login may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a command may go unanswered before its connection counts as lost.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const CACHE_BYTES: u64 = 256 << 10;
const TARGETS: usize = 2;
/// How many ISIDs a disk has beyond two for each session.
const LATER_ISIDS: u16 = 4;

/// How a site is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The world: its network and its disks.
    pub world: WorldConfig,
    /// How the targets serve.
    pub served: Served,
    /// Whether a cache lies above the stripe.
    pub cached: bool,
    /// How long a lost session may take to come back.
    pub reconnect_timeout: Duration,
    /// Lanes of the client, which all use each disk.
    pub client_lanes: usize,
    /// Sessions with each disk, dealt out over the networks and the lanes.
    pub sessions: usize,
}

impl Setup {
    /// A setup drawn from `seed`: caching mode, block size, lanes of both sides, layers.
    pub fn draw(seed: u64) -> Setup {
        let mut random = Random::new(seed ^ 0x5e7);
        // Volatile caches are drawn twice as often: they can lose more.
        let modes = [
            "write-back",
            "direct",
            "write-back",
            "direct",
            "write-through",
            "direct-sync",
        ];
        let served = Served {
            caching: modes[random.index(modes.len())],
            block_size_bytes: if random.chance(0.7) { 512 } else { 4096 },
            behind_faults: random.chance(0.3),
            lanes: 1 + random.index(2),
            everywhere: false,
            networks: Networks::One,
        };
        let cached = random.chance(0.4);
        let client_lanes = 1 + random.index(3);
        Setup {
            world: WorldConfig::default(),
            served,
            cached,
            reconnect_timeout: Duration::from_secs(60),
            client_lanes,
            sessions: client_lanes,
        }
    }

    /// With this many client lanes, and this many sessions with each disk.
    #[must_use]
    pub fn on_lanes(mut self, lanes: usize, sessions: usize) -> Setup {
        (self.client_lanes, self.sessions) = (lanes, sessions);
        self
    }

    /// With disks that may lose unflushed data.
    #[must_use]
    pub fn volatile(mut self) -> Setup {
        self.served.caching = match self.served.caching {
            "write-through" => "write-back",
            "direct-sync" => "direct",
            other => other,
        };
        self
    }

    /// On these networks, with a path on each.
    #[must_use]
    pub fn on(mut self, networks: Networks) -> Setup {
        self.served.networks = networks;
        self
    }

    /// With a fault layer above each file.
    #[must_use]
    pub fn behind_faults(mut self) -> Setup {
        self.served.behind_faults = true;
        self
    }
}

/// A world with two targets and a client.
pub struct Site {
    /// The world.
    pub world: World,
    /// Where the volume is opened.
    pub client: Host,
    /// The targets.
    pub targets: Vec<TargetMachine>,
    /// What the client may see.
    pub model: RefCell<Model>,
    /// The disks of the open volume.
    disks: RefCell<Vec<Rc<IscsiDisk>>>,
    setup: Setup,
}

impl Site {
    /// The site of `seed`.
    pub fn new(seed: u64, setup: Setup) -> Rc<Site> {
        let world = World::with_config(seed, setup.world.clone());
        let client = world.host_with_lanes("client", setup.client_lanes);
        let targets = ["target-a", "target-b"].iter().zip(images());
        let targets = targets.map(|(name, image)| {
            let host = world.host_with_lanes(name, setup.served.lanes);
            TargetMachine::new(host, name, &setup.served, image)
        });
        Rc::new(Site {
            targets: targets.collect(),
            model: RefCell::new(Model::new(
                TARGETS as u64 * (CHILD_BYTES - (1 << 20)),
                setup.cached,
            )),
            disks: RefCell::default(),
            world,
            client,
            setup,
        })
    }

    /// How many lanes a machine that uses the disks has.
    pub fn client_lanes(&self) -> usize {
        self.setup.client_lanes
    }

    /// Runs `scenario` on the client until it ends, then ends the world as well, because tasks that never end may hold
    /// the site.
    pub fn run<T>(self: &Rc<Site>, scenario: impl Future<Output = T>) -> T {
        let output = self.world.block_on(&self.client, scenario);
        self.world.end();
        output
    }

    /// How the client logs in to target `index`. Always as the same initiator port, so that the login ends any session
    /// left behind.
    pub fn iscsi(&self, index: usize) -> IscsiConfig {
        let target = &self.targets[index];
        IscsiConfig {
            address: target.host.addr(PORT),
            target_name: target.iqn.clone(),
            lun: 0,
            initiator_name: "iqn.2026-11.io.sanstone:client".into(),
            isid: iscsi::Isid::random([0; 3], 1),
            multipath: self.multipath(index),
            chap: None,
            header_digest: false,
            data_digest: false,
            stage_times: false,
            connect_timeout: CONNECT_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
            reconnect_timeout: self.setup.reconnect_timeout,
        }
    }

    /// The sessions with target `index` beside the first.
    fn multipath(&self, index: usize) -> Multipath {
        let target = &self.targets[index];
        let ips = target.ips();
        let count = self.session_count(index);
        let more = ips.iter().cycle().zip(1..=count).skip(1);
        let more = more.map(|(ip, qualifier)| PathConfig {
            address: SocketAddr::new(*ip, PORT),
            source: None,
            isid: iscsi::Isid::random([0; 3], qualifier),
        });
        Multipath {
            more: more.collect(),
            later_isids: (count + 1..=2 * count + LATER_ISIDS)
                .map(|qualifier| iscsi::Isid::random([0; 3], qualifier))
                .collect(),
            ..Multipath::default()
        }
    }

    /// The sessions with target `index` over these of its networks.
    pub fn sessions(&self, index: usize, networks: &[usize]) -> Sessions {
        let ips = self.targets[index].ips();
        let ways = networks.iter().map(|&network| Transport {
            address: SocketAddr::new(ips[network], PORT),
            source: None,
        });
        let count = self.setup.sessions.max(networks.len());
        Sessions {
            ways: ways.cycle().take(count).collect(),
            spare: 0,
        }
    }

    /// The disk of target `index` in the open volume.
    pub fn disk(&self, index: usize) -> Rc<IscsiDisk> {
        self.disks.borrow()[index].clone()
    }

    /// How many sessions there are with target `index`.
    fn session_count(&self, index: usize) -> u16 {
        let networks = 1 + usize::from(self.targets[index].second_ip.is_some());
        self.setup.sessions.max(networks) as u16
    }

    /// What has happened to the paths of each disk of the open volume, summed over the paths.
    pub fn path_counts(&self) -> Vec<PathCounts> {
        let disks = self.disks.borrow();
        disks.iter().map(|disk| disk.path_counts()).collect()
    }

    /// Waits until every path of the open volume is usable.
    pub async fn paths_are_back(&self) {
        let disks = self.disks.borrow().clone();
        let is_back = |(index, disk): (usize, &Rc<IscsiDisk>)| {
            disk.live_paths() == self.session_count(index).into()
        };
        while !disks.iter().enumerate().all(is_back) {
            time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Closes `volume`, of which the caller must keep no reference, and opens it again.
    pub async fn reopen(&self, volume: SharedVolume) -> SharedVolume {
        drop(volume);
        for disk in self.disks.take() {
            // A read-ahead may still be in flight, and would log in again.
            while Rc::strong_count(&disk) > 1 {
                time::sleep(Duration::from_millis(1)).await;
            }
            disk.close().await;
        }
        let volume = self.open().await;
        self.model.borrow_mut().reopened();
        volume
    }

    /// Opens the volume; waits for the targets if they are not there yet.
    pub async fn open(&self) -> SharedVolume {
        let mut children = Vec::new();
        for index in 0..self.targets.len() {
            let disk = self.open_disk(index).await;
            self.disks.borrow_mut().push(disk.clone());
            let volume = Spread::over(disk).await;
            let name = self.targets[index].iqn.clone();
            children.push(Child { name, volume });
        }
        let opened = stripe::OpenStripe::open(&children, Some(UNIT_BYTES)).await;
        let volumes: Vec<_> = children.into_iter().map(|child| child.volume).collect();
        let stripe = opened.and_then(|opened| opened.on_lane(&volumes));
        let stripe: SharedVolume = Rc::new(stripe.expect("the images hold a stripe"));
        if !self.setup.cached {
            return stripe;
        }
        let config = CacheConfig {
            size_bytes: CACHE_BYTES,
            block_bytes: 4096,
            read_ahead_max_bytes: CACHE_BYTES / 8,
        };
        Rc::new(Cache::new(stripe, &config).expect("the sizes fit"))
    }

    /// Opens the disk of target `index`.
    async fn open_disk(&self, index: usize) -> Rc<IscsiDisk> {
        let mut attempts = 0;
        loop {
            let lanes: Vec<_> = (0..self.setup.client_lanes)
                .map(|lane| self.client.lane(lane))
                .collect();
            match IscsiDisk::open_on(self.iscsi(index), &lanes).await {
                Ok(disk) => return disk,
                Err(error) if attempts == 100 => panic!("the target does not come up: {error}"),
                Err(_) => time::sleep(Duration::from_millis(100)).await,
            }
            attempts += 1;
        }
    }

    /// Cuts the power of target `index`, and tells the model.
    pub fn power_cut(&self, index: usize) {
        self.targets[index].power_cut();
        self.model
            .borrow_mut()
            .crashed(|sector| child_of(sector) == index);
    }
}

impl Watched for Site {
    fn world(&self) -> &World {
        &self.world
    }

    fn model(&self) -> &RefCell<Model> {
        &self.model
    }
}

/// A disk used by all lanes at once: each request comes from the next lane.
pub struct Spread {
    ways: Vec<SharedVolume>,
    turn: Cell<usize>,
}

impl Spread {
    /// `disk`, from the current lane.
    ///
    /// # Panics
    /// If one of the lanes has ended.
    pub async fn over(disk: Rc<IscsiDisk>) -> SharedVolume {
        let branches = disk.from_branches().await.expect("the lanes run");
        if branches.is_empty() {
            return disk;
        }
        let mut ways: Vec<SharedVolume> = vec![disk];
        ways.extend(branches);
        let turn = Cell::new(0);
        Rc::new(Spread { ways, turn })
    }

    fn next(&self) -> &SharedVolume {
        self.turn.set(self.turn.get() + 1);
        &self.ways[self.turn.get() % self.ways.len()]
    }
}

impl Volume for Spread {
    volume::pass_on! {
        self => self.next();
        read, write, write_atomic, compare_and_write, write_zeroes, discard, flush, allocation, member, close
    }

    fn shape(&self) -> &Shape {
        self.ways[0].shape()
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        self.ways[0].atomic_writes()
    }
}

/// The target that stores a sector.
fn child_of(sector: usize) -> usize {
    sector * SECTOR_BYTES / UNIT_BYTES as usize % TARGETS
}

/// The disk images of a new stripe, created once by the production code.
fn images() -> &'static [Vec<u8>] {
    static IMAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let world = World::new(0);
        let maker = world.host("maker");
        let paths = ["/a", "/b"];
        world.block_on(&maker, async {
            let mut children = Vec::new();
            for path in paths {
                let options = FileOptions {
                    path: path.into(),
                    len_bytes: Some(CHILD_BYTES),
                    caching: volume::config::Caching::WriteBack,
                    block_size_bytes: 512,
                    read_only: false,
                };
                let file: Arc<OpenFile> = OpenFile::open(&options).await.expect("a new file");
                children.push(Child {
                    name: path.into(),
                    volume: Rc::new(file.on_lane()),
                });
            }
            let options = CreateOptions {
                layout: stripe::Layout::Stripe {
                    unit_bytes: UNIT_BYTES,
                },
                uuid: Uuid::from_u128(1),
                created_unix_s: 0,
                force: false,
            };
            let created = stripe::create(&children, &options).await;
            created.expect("blank files become a stripe");
        });
        let image = |path| maker.read_file(path).expect("it was made");
        paths.map(image).to_vec()
    })
}
