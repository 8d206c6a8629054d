//! The seed alone decides what happens to the whole system.

use std::collections::BTreeSet;

use engine::{sim::Random, spawn, time};
use sim::{
    Setup, Site,
    workload::{self, Load, Tally, check_all, random_time},
};

use crate::MS;

/// Everything at once: the trace, and what the client met.
fn run(seed: u64) -> (u64, Tally, Option<Vec<u8>>) {
    let site = Site::new(seed, Setup::draw(seed).volatile());
    let mut chance: Random = site.world.random();
    let tally = site.run(async {
        let volume = site.open().await;
        let chaos = {
            let site = site.clone();
            spawn(async move {
                for round in 0..6 {
                    time::sleep(random_time(&mut chance, 20 * MS)).await;
                    let index = chance.index(site.targets.len());
                    let target = &site.targets[index];
                    match round % 3 {
                        0 => site.client.reset_connections(&target.host),
                        1 => {
                            site.client.partition(&target.host);
                            time::sleep(random_time(&mut chance, 3_000 * MS)).await;
                            site.client.heal(&target.host);
                        }
                        _ => {
                            site.power_cut(index);
                            time::sleep(random_time(&mut chance, 100 * MS)).await;
                            target.restart();
                            target.ready().await;
                        }
                    }
                }
            })
        };
        let load = Load {
            errors: true,
            ..Load::default()
        };
        let tally = workload::run(&site, &volume, load).await;
        chaos.await;
        check_all(&site, &volume).await;
        tally
    });
    let disk = site.targets[0].host.read_file(sim::target_machine::FILE);
    (site.world.trace_hash(), tally, disk)
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let first: Vec<_> = (0..6).map(run).collect();
    let again: Vec<_> = (0..6).rev().map(run).collect();
    assert!(first.iter().eq(again.iter().rev()));
    let traces: BTreeSet<u64> = first.iter().map(|(trace, ..)| *trace).collect();
    assert_eq!(traces.len(), 6, "different seeds give different runs");
}
