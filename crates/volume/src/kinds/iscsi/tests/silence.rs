//! A path that is silent is lost soon if there is another one; a slow command costs no path.

use engine::{
    sim::TrafficDirection,
    task::{JoinHandle, join_all},
};

use super::{
    paths::{named, path},
    *,
};
use crate::kinds::iscsi::{PathConfig, PingTimeout, Policy, Sessions, Transport};

const REQUEST: Duration = Duration::from_secs(30);
const WITH_ANOTHER_WAY: Duration = Duration::from_millis(3500);
/// By when the watchdog has noticed a loss.
const NOTICED_WITHIN: Duration = Duration::from_secs(4);

/// A disk that is reached over two networks, and the address of the second.
fn on_two_networks() -> (Site, IscsiConfig, SocketAddr) {
    let site = Site::new(Foreign::new(named()));
    let second = site.second_network();
    let config = over(&site, vec![path(second, 2)], None);
    (site, config, second)
}

fn over(site: &Site, more: Vec<PathConfig>, written: Option<Duration>) -> IscsiConfig {
    IscsiConfig {
        multipath: Multipath {
            more,
            policy: Policy::RoundRobin,
            ping_timeout: PingTimeout::new(written),
            ..Multipath::default()
        },
        request_timeout: REQUEST,
        ..site.config()
    }
}

fn read(disk: &Rc<IscsiDisk>) -> JoinHandle<crate::Result<Payload>> {
    let disk = disk.clone();
    engine::spawn(async move { disk.read(0, 512).await })
}

/// Reads over every path at once; returns how long that took.
async fn reads(disk: &Rc<IscsiDisk>) -> Duration {
    let began = time::now();
    let reads = (0..8).map(|_| disk.read(0, 512));
    for read in join_all(reads).await {
        read.expect("a path is there");
    }
    time::now() - began
}

#[test]
fn requests_on_a_path_that_falls_silent_soon_go_over_another() {
    for directions in [
        &[TrafficDirection::To][..],
        &[TrafficDirection::From],
        &[TrafficDirection::To, TrafficDirection::From],
    ] {
        let (site, config, second) = on_two_networks();
        site.world.block_on(&site.client, async {
            let disk = IscsiDisk::open(config).await.expect("two logins");
            assert_eq!(disk.live_paths(), 2);
            time::sleep(Duration::from_secs(100)).await;
            assert_eq!(site.foreign.logins.get(), 2, "idle ones stay");
            for &direction in directions {
                site.host.cut(second.ip(), direction);
            }
            let took = reads(&disk).await;
            assert!(took <= NOTICED_WITHIN, "{directions:?}: {took:?}");
            assert_eq!(disk.path_counts().lost, 1);
            site.host.mend(second.ip());
            while disk.live_paths() < 2 {
                time::sleep(Duration::from_millis(10)).await;
            }
            disk.close().await;
        });
    }
}

#[test]
fn a_command_that_takes_long_costs_no_path() {
    for seconds in [6, 20, 29] {
        let (site, config, _) = on_two_networks();
        site.world.block_on(&site.client, async {
            let disk = IscsiDisk::open(config).await.expect("two logins");
            // The first on each path is answered with the second.
            site.foreign.answer(|_| Some(Instead::Overtaken));
            let slow: Vec<_> = (0..2).map(|_| read(&disk)).collect();
            time::sleep(Duration::from_secs(seconds)).await;
            assert!(slow.iter().all(|slow| !slow.is_finished()));
            site.foreign.answer(|_| None);
            reads(&disk).await;
            for slow in slow {
                slow.await.expect("it is answered");
            }
            assert_eq!((disk.path_counts().lost, site.foreign.logins.get()), (0, 2));
            disk.close().await;
        });
    }
}

/// Whether two sessions with a disk are lost when its only network is silent for as long as this.
fn are_lost(written: Option<Duration>, silent: Duration) -> bool {
    let site = Site::new(Foreign::new(named()));
    let more = vec![path(site.host.addr(PORT), 2)];
    let config = over(&site, more, written);
    let mut lost = 0;
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("two logins");
        site.host.cut(site.host.ip(), TrafficDirection::To);
        let mending = {
            let host = site.host.clone();
            engine::spawn(async move {
                time::sleep(silent).await;
                host.mend(host.ip());
            })
        };
        reads(&disk).await;
        mending.await;
        lost = disk.path_counts().lost;
        disk.close().await;
    });
    lost > 0
}

#[test]
fn the_only_way_may_be_silent_for_as_long_as_a_command_may_take_or_as_is_written() {
    assert!(!are_lost(None, Duration::from_secs(20)));
    assert!(are_lost(
        Some(Duration::from_secs(10)),
        Duration::from_secs(20)
    ));
}

#[test]
fn the_limit_follows_the_ways_of_the_disk() {
    let ways = |ports: &[u16]| Sessions {
        ways: ports
            .iter()
            .map(|&port| Transport {
                address: SocketAddr::from(([10, 0, 0, 1], port)),
                source: None,
            })
            .collect(),
        spare: 0,
    };
    assert!(!ways(&[PORT]).have_another_way());
    assert!(!ways(&[PORT, PORT]).have_another_way());
    assert!(ways(&[PORT, PORT, OTHER_PORT]).have_another_way());
    let of_config = PingTimeout::default();
    let of_disk = of_config.for_disk(false);
    let of_session = of_disk.clone();
    assert_eq!(of_session.limit(REQUEST), REQUEST);
    of_disk.follow(true);
    assert_eq!(of_session.limit(REQUEST), WITH_ANOTHER_WAY);
    assert_eq!(of_session.limit(Duration::from_secs(3)).as_secs(), 3);
    assert_eq!(of_config.limit(REQUEST), REQUEST, "another disk's");
    of_disk.follow(false);
    assert_eq!(of_session.limit(REQUEST), REQUEST);
    let written = PingTimeout::new(Some(2 * REQUEST)).for_disk(true);
    assert_eq!(written.limit(REQUEST), 2 * REQUEST);
}
