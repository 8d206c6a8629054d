//! The client of a scenario with whole daemons: our initiator, which waits for a disk that is not served yet.

use std::{net::SocketAddr, rc::Rc, time::Duration};

use engine::time;
use volume::{IscsiConfig, IscsiDisk, Multipath};

/// Opens LUN 0 of `target` as soon as it is served. A request waits for an answer for `request_timeout`, and for a target
/// that is away for `reconnect_timeout`.
///
/// # Panics
/// If it is not served in time.
pub(crate) async fn open(
    address: SocketAddr,
    target: &str,
    request_timeout: Duration,
    reconnect_timeout: Duration,
) -> Rc<IscsiDisk> {
    let config = IscsiConfig {
        address,
        target_name: target.into(),
        lun: 0,
        initiator_name: "iqn.2026-11.io.sanstone:client".into(),
        // Always the same initiator port, so that the login ends any session left behind.
        isid: iscsi::Isid::random([0; 3], 1),
        multipath: Multipath::default(),
        chap: None,
        header_digest: false,
        data_digest: false,
        stage_times: false,
        connect_timeout: Duration::from_secs(1),
        request_timeout,
        reconnect_timeout,
    };
    for _ in 0..1_000 {
        match IscsiDisk::open(config.clone()).await {
            Ok(disk) => return disk,
            Err(_) => time::sleep(Duration::from_millis(100)).await,
        }
    }
    panic!("{target} does not come up");
}
