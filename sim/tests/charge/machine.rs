//! The machine whose work is measured: one lane with everything that others may have left on it. On its first LUN are
//! as many registrations as there may be, and a reservation of which every registrant is a holder; it has as many LUNs
//! as a target may have, and hundreds of targets beside it; many commands are open, and other sessions.

use std::{cell::RefCell, collections::BTreeMap, net::SocketAddr, path::Path, rc::Rc, sync::Arc};

use engine::{
    LaneFuture,
    share::{Counts, counts},
    sim::Host,
    task,
};
use front_iscsi::{Allow, IscsiServer, Limits, LunSpec, PortalGroup, ServerConfig, TargetSpec};
use front_nbd::{Address, Listeners};
use unit::{DiskSpec, Units, UnitsConfig};
use volume::graph::Graph;

use crate::wire::{IQN, Wire};

pub(crate) const PORT: u16 = 3260;
pub(crate) const NBD_PORT: u16 = 10809;
/// The LUN with the registrations.
pub(crate) const CROWDED: u8 = 0;
/// A LUN that nothing matters at.
pub(crate) const SCRATCH: u8 = 1;
/// The LUN whose commands do not end.
pub(crate) const SLOW: u8 = 254;
/// Registrations at the crowded LUN.
const REGISTRATIONS: usize = 1020;
/// Targets beside the one that is used.
const TARGETS: usize = 200;
/// Sessions beside the one that is measured.
const SESSIONS: u64 = 4;
/// Commands open at the slow LUN.
const OPEN: usize = 100;

/// A running machine.
pub(crate) struct Machine {
    host: Host,
    served: Rc<RefCell<Option<Served>>>,
    others: RefCell<Vec<Wire>>,
}

pub(crate) struct Served {
    pub(crate) units: Units,
    pub(crate) server: IscsiServer,
    _nbd: front_nbd::NbdServer,
}

impl Machine {
    /// Starts it on `host`.
    pub(crate) async fn start(host: Host) -> Machine {
        let machine = Machine {
            served: Rc::default(),
            others: RefCell::default(),
            host,
        };
        let (here, served) = (machine.host.clone(), machine.served.clone());
        let started = machine.host.spawn(async move {
            let lanes = [here.lane(0)];
            let units = Units::open(disks(&lanes[0]).await, &lanes).await;
            let units = units.expect("its disks open");
            let config = config(here.addr(PORT), TARGETS);
            let server = IscsiServer::start(config, &units).await.expect("it starts");
            let config = front_nbd::NbdConfig {
                volume: "scratch".into(),
                relative_port: 9999,
                read_only: false,
                limits: front_nbd::NbdLimits::default(),
                tls: None,
            };
            let place = Listeners::take(&Address::Tcp(here.addr(NBD_PORT))).await;
            let place = place.expect("nobody else is there");
            let nbd = front_nbd::NbdServer::start(config, place, &units).await;
            served.replace(Some(Served {
                units,
                server,
                _nbd: nbd.expect("it starts"),
            }));
        });
        started.await;
        for n in 0..SESSIONS {
            let other =
                Wire::login(machine.portal(), &name(&format!("other{n}")), false, &[]).await;
            machine.others.borrow_mut().push(other);
        }
        machine
    }

    pub(crate) fn portal(&self) -> SocketAddr {
        self.host.addr(PORT)
    }

    pub(crate) fn nbd(&self) -> SocketAddr {
        self.host.addr(NBD_PORT)
    }

    /// Its lane.
    pub(crate) fn lane(&self) -> engine::LaneHandle {
        self.host.lane(0)
    }

    /// Runs `work` on its lane.
    pub(crate) async fn run<T: 'static>(
        &self,
        work: impl AsyncFnOnce(&mut Served) -> T + 'static,
    ) -> T {
        let served = self.served.clone();
        let done = self.host.spawn(async move {
            let mut taken = served.take().expect("it runs");
            let output = work(&mut taken).await;
            served.replace(Some(taken));
            output
        });
        done.await
    }

    /// What its lane has counted.
    pub(crate) async fn counts(&self) -> Counts {
        self.host.spawn(async { counts() }).await
    }

    /// A session that may use the crowded LUN, with commands open at the slow one.
    pub(crate) async fn session(&self) -> Wire {
        let mut wire = Wire::login(self.portal(), &name("measured"), false, &[]).await;
        for lun in [CROWDED, SCRATCH, SLOW] {
            while wire.command((lun, 1), &[0; 6], (&[], 0)).await.0 != 0 {
                task::yield_now().await;
            }
        }
        for _ in 0..OPEN {
            let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
            wire.begin((SLOW, 1), &read, (&[], 512)).await;
        }
        self.crowd(&mut wire).await;
        wire
    }

    /// Registers everybody at the crowded LUN, and reserves it for all of them.
    pub(crate) async fn crowd(&self, wire: &mut Wire) {
        let (good, clear) = (0, [0x5F, 3, 0, 0, 0, 0, 0, 0, 24, 0]);
        // Whatever key it has.
        assert_eq!(reserve_out(wire, 6, 0, &list(0, 7, 0, &[])).await, good);
        let own = list(7, 0, 0, &[]);
        let (cleared, _) = wire.command((CROWDED, 1), &clear, (&own, 0)).await;
        assert_eq!(cleared, good);
        for first in (0..REGISTRATIONS).step_by(300) {
            let names: Vec<_> = (first..REGISTRATIONS.min(first + 300))
                .map(|n| format!("n{n:04},i,0x1"))
                .collect();
            assert_eq!(reserve_out(wire, 0, 0, &list(0, 7, 8, &names)).await, good);
            assert_eq!(reserve_out(wire, 0, 0, &list(7, 0, 0, &[])).await, good);
        }
        assert_eq!(reserve_out(wire, 0, 0, &list(0, 7, 0, &[])).await, good);
        assert_eq!(reserve_out(wire, 1, 7, &list(7, 0, 0, &[])).await, good);
    }
}

/// Sends PERSISTENT RESERVE OUT to the crowded LUN; returns its status.
pub(crate) async fn reserve_out(wire: &mut Wire, action: u8, kind: u8, list: &[u8]) -> u8 {
    let [_, _, high, low] = (list.len() as u32).to_be_bytes();
    let cdb = [0x5F, action, kind, 0, 0, 0, 0, high, low, 0];
    wire.command((CROWDED, 1), &cdb, (list, 0)).await.0
}

/// The parameter list of PERSISTENT RESERVE OUT.
pub(crate) fn list(key: u64, action_key: u64, flags: u8, names: &[String]) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes()].concat();
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    if flags & 8 != 0 {
        let ids: Vec<u8> = names.iter().flat_map(|name| transport_id(name)).collect();
        list.extend((ids.len() as u32).to_be_bytes());
        list.extend(ids);
    }
    list
}

pub(crate) fn transport_id(name: &str) -> Vec<u8> {
    let len = (name.len() + 1).next_multiple_of(4).max(20);
    let mut id = vec![0x45, 0];
    id.extend((len as u16).to_be_bytes());
    id.extend(name.as_bytes());
    id.resize(4 + len, 0);
    id
}

/// The longest name that ends like this.
pub(crate) fn name(end: &str) -> String {
    let start = "iqn.2026-11.io.sanstone:";
    format!("{start}{}{end}", "n".repeat(223 - start.len() - end.len()))
}

async fn disks(lane: &engine::LaneHandle) -> UnitsConfig {
    let mut text = "disk.ram = { size = \"16GiB\" }\nscratch.ram = { size = \"1MiB\" }\n\
                    slow.throttle = { rate = \"1GiB/s\", latency = \"20s\", of = { ram = { size = \"1MiB\" } } }\n"
        .to_owned();
    for n in 2..SLOW {
        text += &format!("d{n}.ram = {{ size = \"64KiB\" }}\n");
    }
    let volumes = toml::from_str(&text).expect("it parses");
    let mut graph = Graph::new(volumes, Path::new("/")).expect("it is valid");
    let mut disks = Vec::new();
    for lun in 0..=SLOW {
        let name = disk(lun);
        let tree = graph.open(&name, lane).await.expect("it opens");
        disks.push(DiskSpec {
            name,
            uuid: [lun; 16],
            open: Arc::new(move || {
                let tree = tree.clone();
                LaneFuture::new(async move { tree.on_lane().await })
            }),
            kept: None,
            told: Vec::new(),
        });
    }
    UnitsConfig {
        disks,
        ..UnitsConfig::default()
    }
}

fn disk(lun: u8) -> String {
    match lun {
        CROWDED => "disk".to_owned(),
        SCRATCH => "scratch".to_owned(),
        SLOW => "slow".to_owned(),
        other => format!("d{other}"),
    }
}

/// What is served: the target, and as many others.
pub(crate) fn config(portal: SocketAddr, others: usize) -> ServerConfig {
    let lun = |lun: u8| {
        let spec = LunSpec {
            volume: disk(lun),
            removable: lun == SCRATCH,
            read_only: false,
        };
        (u32::from(lun), spec)
    };
    let target = |name: String, n: usize, luns: BTreeMap<u32, LunSpec>| TargetSpec {
        name,
        portal_groups: vec![PortalGroup {
            tag: 1,
            relative_port: 1 + n as u16,
            portals: vec![portal],
        }],
        luns,
        allow: Allow::Everyone,
        allow_from: Vec::new(),
        chap: None,
        redirect: None,
    };
    let mut targets = vec![target(IQN.to_owned(), 0, (0..=SLOW).map(lun).collect())];
    for n in 1..=others {
        // They lead to the crowded disk, too.
        let luns = BTreeMap::from([lun(CROWDED)]);
        targets.push(target(name(&format!("customer{n}")), n, luns));
    }
    ServerConfig {
        targets,
        discovery: None,
        digests: false,
        limits: Limits {
            logins_per_peer_max: 512,
            ..Limits::default()
        },
    }
}
