//! A simulated machine that serves one disk: a file leaf on its simulated disk, optionally behind a fault layer, on one
//! or two lanes. Its software can be shut down, killed and restarted.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::Path,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use engine::{
    LaneFuture,
    sim::Host,
    store,
    task::{self, JoinHandle},
    time,
};
use front_iscsi::{Allow, IscsiServer, Limits, LunSpec, PortalGroup, ServerConfig, TargetSpec};
use unit::{DiskSpec, Units, UnitsConfig};
use volume::{
    config::Volumes,
    graph::Graph,
    layer::fault::{FaultHandle, Rule},
};

/// Where every target listens.
pub const PORT: u16 = 3260;
/// The file that is served.
pub const FILE: &str = "/disk";

/// How a target serves its file.
#[derive(Clone, Debug)]
pub struct Served {
    /// The caching mode, as the configuration writes it.
    pub caching: &'static str,
    /// 512 or 4096.
    pub block_size_bytes: u32,
    /// Whether a fault layer lies above the file; it also gives the volume a single home lane.
    pub behind_faults: bool,
    /// Lanes of the machine.
    pub lanes: usize,
    /// Whether the disk is also served through a second portal group and by a second target.
    pub everywhere: bool,
    /// The networks on which it is served.
    pub networks: Networks,
}

/// The networks that a target machine is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Networks {
    /// One.
    One,
    /// Two, with the portals of both in one portal group.
    TwoOfOneGroup,
    /// Two, with a portal group on each.
    TwoGroups,
}

/// Where the second portal group listens, and the second target.
pub const OTHER_PORTS: [u16; 2] = [PORT + 1, PORT + 2];

/// One target machine.
pub struct TargetMachine {
    /// The machine.
    pub host: Host,
    /// Its address on the second network.
    pub second_ip: Option<IpAddr>,
    /// The name of the target that it serves.
    pub iqn: String,
    served: Served,
    server: Rc<RefCell<Option<(IscsiServer, Units)>>>,
    faults: Rc<RefCell<FaultHandle>>,
    /// The ports that have been told of the last power-on, in a file that outlives the software.
    told: Arc<Mutex<Vec<String>>>,
}

impl TargetMachine {
    /// Puts `image` on the disk of `host` and starts serving it.
    pub fn new(host: Host, name: &str, served: &Served, image: &[u8]) -> TargetMachine {
        host.put_file(FILE, image);
        let second_ip = (served.networks != Networks::One).then(|| host.add_address());
        let machine = TargetMachine {
            host,
            second_ip,
            iqn: format!("iqn.2026-11.io.sanstone:{name}"),
            served: served.clone(),
            server: Rc::default(),
            faults: Rc::default(),
            told: Arc::default(),
        };
        machine.start();
        machine
    }

    /// Its addresses.
    pub fn ips(&self) -> Vec<IpAddr> {
        std::iter::once(self.host.ip())
            .chain(self.second_ip)
            .collect()
    }

    /// Starts the software on a running machine that serves nothing yet.
    pub fn start(&self) {
        let (host, iqn) = (self.host.clone(), self.iqn.clone());
        let (server, faults) = (self.server.clone(), self.faults.clone());
        let (served, second_ip) = (self.served.clone(), self.second_ip);
        let told = self.told.clone();
        self.host.spawn(async move {
            let mut graph = graph(&served);
            let tree = graph.open("disk", &host.lane(0)).await;
            let tree = tree.expect("the file is there and fits");
            if let Some(handle) = graph.handles().all::<FaultHandle>().values().next() {
                faults.replace(handle.clone());
            }
            let known = resume(&told);
            let disk = DiskSpec {
                name: "disk".into(),
                uuid: [1; 16],
                open: Arc::new(move || {
                    let tree = tree.clone();
                    LaneFuture::new(async move { tree.on_lane().await })
                }),
                kept: None,
                told: known,
            };
            let lun = LunSpec {
                volume: "disk".into(),
                removable: false,
                read_only: false,
            };
            let target = |name, portal_groups| TargetSpec {
                name,
                portal_groups,
                luns: BTreeMap::from([(0, lun.clone())]),
                allow: Allow::Everyone,
                allow_from: Vec::new(),
                chap: None,
                redirect: None,
            };
            let [mut first, mut second] =
                [(1, PORT), (2, OTHER_PORTS[0])].map(|(tag, port)| PortalGroup {
                    tag,
                    relative_port: tag,
                    portals: vec![host.addr(port)],
                });
            if let Some(ip) = second_ip {
                let portal = SocketAddr::new(ip, PORT);
                match served.networks {
                    Networks::TwoGroups => second.portals = vec![portal],
                    _ => first.portals.push(portal),
                }
            }
            let targets = match served.everywhere {
                false if served.networks == Networks::TwoGroups => {
                    vec![target(iqn, vec![first, second])]
                }
                false => vec![target(iqn, vec![first])],
                true => {
                    let mut other = PortalGroup::only(vec![host.addr(OTHER_PORTS[1])]);
                    other.relative_port = 3;
                    let other = target(second_name(&iqn), vec![other]);
                    vec![target(iqn, vec![first, second]), other]
                }
            };
            let config = ServerConfig {
                targets,
                discovery: None,
                digests: true,
                limits: limits(),
            };
            let lanes: Vec<_> = (0..served.lanes).map(|n| host.lane(n)).collect();
            let units = UnitsConfig {
                disks: vec![disk],
                keep: None,
                note: Some(Arc::new(move |_, port| ports(&told).push(port))),
                limits: unit_limits(),
            };
            let units = Units::open(units, &lanes).await;
            let units = units.unwrap_or_else(|error| panic!("{error}"));
            let started = IscsiServer::start(config, &units).await;
            let started = started.unwrap_or_else(|error| panic!("{error}"));
            server.replace(Some((started, units)));
        });
    }

    /// Shuts the software down, as SIGTERM does, and then cuts the power.
    pub async fn stop(&self) {
        let (server, units) = self.server.take().expect("it serves");
        let stopped = self.host.spawn(async move {
            server.stop().await;
            units.flush().await
        });
        stopped.await.expect("the last flush");
        self.power_cut();
    }

    /// Kills the software. What it had written survives in the page cache, because the system stays up.
    pub fn kill(&self) {
        self.host.kill();
        self.server.take();
    }

    /// Cuts the machine's power.
    pub fn power_cut(&self) {
        self.host.power_cut();
        self.server.take();
        // They are of an earlier boot.
        ports(&self.told).clear();
    }

    /// Starts machine and software again after [`TargetMachine::kill`] or a power cut.
    pub fn restart(&self) {
        self.host.restart();
        self.start();
    }

    /// Adds a rule to the fault layer.
    pub fn add_rule(&self, rule: Rule) {
        self.faults.borrow().add(rule);
    }

    /// Removes all rules of the fault layer.
    pub fn clear_rules(&self) {
        self.faults.borrow().clear();
    }

    /// How many requests the fault layer has acted on.
    pub fn acted(&self) -> u64 {
        self.faults.borrow().acted()
    }

    /// A task that ends once the machine serves.
    pub fn ready(&self) -> JoinHandle<()> {
        let server = self.server.clone();
        task::spawn(async move {
            while server.borrow().is_none() {
                time::sleep(Duration::from_millis(1)).await;
            }
        })
    }
}

fn ports(told: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ports that need not hear of a power-on, as `node` decides it: those that have been told, unless the file has lost the
/// mark of its opener.
fn resume(told: &Mutex<Vec<String>>) -> Vec<String> {
    let (file, mut told) = (Path::new(FILE), ports(told));
    if store::opener(file).expect("it is there").is_none() {
        told.clear();
        store::set_opener(file, b"the software").expect("it is marked");
    }
    told.clone()
}

/// The name of the second target, derived from `iqn`.
pub fn second_name(iqn: &str) -> String {
    format!("{iqn}-too")
}

fn graph(served: &Served) -> Graph {
    let Served {
        caching,
        block_size_bytes,
        ..
    } = served;
    let file = format!(
        r#"file = {{ path = "{FILE}", cache = "{caching}", block_size = {block_size_bytes} }}"#
    );
    let text = match served.behind_faults {
        true => format!("disk.fault = {{ of = {{ {file} }} }}"),
        false => format!("disk.{file}"),
    };
    let volumes: Volumes = toml::from_str(&text).expect("it parses");
    Graph::new(volumes, Path::new("/")).expect("the configuration is valid")
}

/// Low enough that every limit is reached.
fn unit_limits() -> unit::MemoryLimits {
    unit::MemoryLimits {
        memory_bytes: 2 << 20,
        transfer_max_bytes: 64 << 10,
    }
}

/// The same.
fn limits() -> Limits {
    Limits {
        connections_max: 16,
        reserved: 4,
        logins_max: 8,
        logins_per_peer_max: 4,
        command_window: 16,
        data_segment_max_bytes: 16 << 10,
        text_max_bytes: 16 << 10,
        login_timeout: Duration::from_secs(5),
        ping_interval: Duration::from_secs(2),
        peer_timeout: Duration::from_secs(5),
    }
}
