//! The network delays, splits, resets and partitions; the client's data is not affected.

use engine::{
    sim::{NetConfig, Occurred, WorldConfig, seeds},
    spawn, time,
};
use sim::{
    Setup, Site, assert_occurred,
    workload::{self, Load, check_all, random_time},
};

use crate::MS;

#[test]
fn a_calm_site_keeps_every_promise() {
    seeds(200, |seed| {
        let site = Site::new(seed, Setup::draw(seed));
        site.run(async {
            let volume = site.open().await;
            let tally = workload::run(&site, &volume, Load::default()).await;
            assert_eq!(tally.good, 300);
            workload::flush(&site, &volume).await.expect("a flush");
            check_all(&site, &volume).await;
        });
    });
}

#[test]
fn delays_and_splits_are_only_slow() {
    let mut met = Occurred::default();
    seeds(200, |seed| {
        let mut setup = Setup::draw(seed);
        setup.world.net = NetConfig {
            latency_ns: 50_000..20_000_000,
            buffer_bytes: 16 << 10,
            split_probability: 0.8,
            ..WorldConfig::default().net
        };
        setup.world.disk.short_probability = 0.3;
        setup.world.disk.slow_probability = 0.1;
        let site = Site::new(seed, setup);
        site.run(async {
            let volume = site.open().await;
            let load = Load {
                requests: 25,
                ..Load::default()
            };
            workload::run(&site, &volume, load).await;
            check_all(&site, &volume).await;
        });
        met += site.world.occurred();
    });
    assert_occurred([("short transfers", met.short_transfers)]);
}

#[test]
fn connections_that_are_reset_are_made_again_and_nobody_notices() {
    let mut met = Occurred::default();
    seeds(300, |seed| {
        let site = Site::new(seed, Setup::draw(seed));
        site.run(async {
            let volume = site.open().await;
            let resets = {
                let (site, mut random) = (site.clone(), site.world.random());
                spawn(async move {
                    for _ in 0..10 {
                        time::sleep(random_time(&mut random, 40 * MS)).await;
                        let target = random.index(site.targets.len());
                        site.client.reset_connections(&site.targets[target].host);
                    }
                })
            };
            let tally = workload::run(&site, &volume, Load::default()).await;
            resets.await;
            assert_eq!(tally.good, 300);
            workload::flush(&site, &volume).await.expect("a flush");
            check_all(&site, &volume).await;
        });
        met += site.world.occurred();
    });
    assert_occurred([("resets under data", met.resets_under_data)]);
}

#[test]
fn a_partition_that_heals_in_time_costs_only_time() {
    let mut met = Occurred::default();
    seeds(200, |seed| {
        let site = Site::new(seed, Setup::draw(seed));
        site.run(async {
            let volume = site.open().await;
            let partition = {
                let (site, mut random) = (site.clone(), site.world.random());
                spawn(async move {
                    for _ in 0..3 {
                        time::sleep(random_time(&mut random, 60 * MS)).await;
                        let target = &site.targets[random.index(site.targets.len())].host;
                        site.client.partition(target);
                        time::sleep(random_time(&mut random, 12_000 * MS)).await;
                        site.client.heal(target);
                    }
                })
            };
            let tally = workload::run(&site, &volume, Load::default()).await;
            partition.await;
            assert_eq!(tally.good, 300);
            workload::flush(&site, &volume).await.expect("a flush");
            check_all(&site, &volume).await;
        });
        met += site.world.occurred();
    });
    assert_occurred([("packets parted", met.packets_parted)]);
}
