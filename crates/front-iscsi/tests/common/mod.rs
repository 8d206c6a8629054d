//! Test support: a server with one RAM disk, and our own initiator configured to reach it.

use std::{collections::BTreeMap, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

use engine::{Lane, LaneConfig, LaneFuture, LaneHandle};
use front_iscsi::{Allow, IscsiServer, Limits, LunSpec, PortalGroup, ServerConfig, TargetSpec};
use unit::{DiskSpec, OpenVolume, Units, UnitsConfig};
use volume::{IscsiConfig, Multipath, SharedVolume, leaf::ram::Region};

pub(crate) const IQN: &str = "iqn.2026-11.io.sanstone:loopback";

pub(crate) fn ram(len_bytes: u64, block_size_bytes: u32) -> OpenVolume {
    let region = Region::new(len_bytes, block_size_bytes).expect("memory for a small disk");
    Arc::new(move || {
        let region = region.clone();
        LaneFuture::new(async move { Ok(Rc::new(region.on_lane()) as SharedVolume) })
    })
}

/// The configuration to serve.
pub(crate) struct Setup {
    pub(crate) units: UnitsConfig,
    pub(crate) server: ServerConfig,
}

/// A running server and its units.
pub(crate) struct Served {
    pub(crate) units: Units,
    pub(crate) server: IscsiServer,
}

impl Setup {
    pub(crate) async fn start(self, lanes: &[LaneHandle]) -> Served {
        let units = Units::open(self.units, lanes).await.expect("its disks");
        let server = IscsiServer::start(self.server, &units)
            .await
            .expect("a server");
        Served { units, server }
    }
}

impl Served {
    pub(crate) fn portals(&self) -> &[SocketAddr] {
        self.server.portals()
    }

    pub(crate) async fn stop(self) {
        self.server.stop().await;
        self.units.flush().await.expect("the last flush");
    }
}

pub(crate) fn config(open: OpenVolume) -> Setup {
    let disk = DiskSpec {
        name: "disk".into(),
        uuid: [7; 16],
        open,
        kept: None,
        told: Vec::new(),
    };
    let lun = LunSpec {
        volume: "disk".into(),
        removable: false,
        read_only: false,
    };
    let target = TargetSpec {
        name: IQN.into(),
        portal_groups: vec![PortalGroup::only(vec![SocketAddr::from((
            [127, 0, 0, 1],
            0,
        ))])],
        luns: BTreeMap::from([(0, lun)]),
        allow: Allow::Everyone,
        allow_from: Vec::new(),
        chap: None,
        redirect: None,
    };
    Setup {
        units: UnitsConfig {
            disks: vec![disk],
            ..UnitsConfig::default()
        },
        server: ServerConfig {
            targets: vec![target],
            discovery: None,
            digests: true,
            limits: Limits::default(),
        },
    }
}

pub(crate) fn disk_at(address: SocketAddr) -> IscsiConfig {
    IscsiConfig {
        address,
        target_name: IQN.into(),
        lun: 0,
        initiator_name: "iqn.2026-11.io.sanstone:initiator".into(),
        isid: iscsi::Isid::random([1, 2, 3], 1),
        multipath: Multipath::default(),
        chap: None,
        header_digest: false,
        data_digest: false,
        stage_times: false,
        connect_timeout: Duration::from_secs(60),
        request_timeout: Duration::from_secs(120),
        reconnect_timeout: Duration::from_secs(60),
    }
}

/// Runs `test` with a server on the same lane, and returns its result.
pub(crate) fn with_config<T>(setup: Setup, test: impl AsyncFnOnce(&Served) -> T) -> T {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = lane.handle();
    lane.block_on(async {
        let served = setup.start(&[handle]).await;
        let output = test(&served).await;
        served.stop().await;
        output
    })
}
