//! A server's configuration with one RAM disk, and our initiator's way to it.

use std::{collections::BTreeMap, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

use engine::{Lane, LaneConfig, LaneFuture};
use target::{Allow, Limits, LunSpec, OpenVolume, PortalGroup, Server, ServerConfig, TargetSpec};
use volume::{IscsiConfig, SharedVolume, leaf::ram::Region};

const IQN: &str = "iqn.2026-11.io.sanstone:loopback";

pub(crate) fn ram(len_bytes: u64, block_size_bytes: u32) -> OpenVolume {
    let region = Region::new(len_bytes, block_size_bytes).expect("memory for a small disk");
    Arc::new(move || {
        let region = region.clone();
        LaneFuture::new(async move { Ok(Rc::new(region.on_lane()) as SharedVolume) })
    })
}

pub(crate) fn config(open: OpenVolume) -> ServerConfig {
    let lun = LunSpec {
        volume: "disk".into(),
        uuid: [7; 16],
        open,
        kept: None,
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
    ServerConfig {
        keep: None,
        targets: vec![target],
        discovery: None,
        digests: true,
        limits: Limits::default(),
    }
}

pub(crate) fn disk_at(address: SocketAddr) -> IscsiConfig {
    IscsiConfig {
        address,
        target_name: IQN.into(),
        lun: 0,
        initiator_name: "iqn.2026-11.io.sanstone:initiator".into(),
        isid: iscsi::Isid::random([1, 2, 3], 1),
        chap: None,
        header_digest: false,
        data_digest: false,
        connect_timeout: Duration::from_secs(60),
        request_timeout: Duration::from_secs(120),
        reconnect_timeout: Duration::from_secs(60),
    }
}

/// Runs `test` with a server on the same lane, and gives what it gives.
pub(crate) fn with_config<T>(config: ServerConfig, test: impl AsyncFnOnce(&Server) -> T) -> T {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = lane.handle();
    lane.block_on(async {
        let server = Server::start(config, &[handle]).await.expect("a server");
        let output = test(&server).await;
        server.stop().await.expect("the last flush");
        output
    })
}
