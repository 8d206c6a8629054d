//! Paths are added to disks in use, and removed from them, at any moment of a load, while networks fail and writes come
//! late: nobody above notices, and no write lands after a newer one was answered.

use std::{cell::Cell, rc::Rc, time::Duration};

use engine::{
    sim::{Random, seeds},
    spawn, time,
};
use sim::{
    Site, assert_occurred,
    target_machine::Networks,
    workload::{self, Load, check_all, random_time},
};

use crate::{
    MS,
    paths::{Met, delay_writes, fail_one, reset_a_network, setup},
};

/// The networks that a disk may have paths over, in this order.
const CHOICES: [&[usize]; 4] = [&[0], &[1], &[0, 1], &[1, 0]];

/// What became of the changes, summed over many worlds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Changed {
    adopted: u64,
    undone: u64,
    refused: u64,
    with_problems: u64,
}

/// Gives the disk of target `index` paths over `networks`, or takes that back. `waits` until the old paths have ended.
async fn change(
    site: &Site,
    index: usize,
    networks: &[usize],
    waits: bool,
    changed: &Cell<Changed>,
) {
    let (disk, next) = (site.disk(index), site.sessions(index, networks));
    let added = disk.add_paths(&next).await;
    let mut count = changed.get();
    match added {
        Ok(problems) => {
            count.with_problems += u64::from(!problems.is_empty());
            count.adopted += 1;
            disk.adopt_paths(&next);
        }
        Err(error) => {
            let is_known = error
                .to_string()
                .contains("none of the paths that would be left");
            assert!(is_known, "{error}");
            count.refused += 1;
            disk.remove_added_paths();
        }
    }
    changed.set(count);
    if waits {
        disk.parted().await;
    }
}

/// Changes the paths of all disks again and again; some changes are undone.
async fn keep_changing(site: Rc<Site>, mut random: Random, changed: Rc<Cell<Changed>>) {
    for _ in 0..12 {
        time::sleep(random_time(&mut random, 400 * MS)).await;
        let index = random.index(site.targets.len());
        let networks = CHOICES[random.index(CHOICES.len())];
        if random.chance(0.2) {
            let disk = site.disk(index);
            // Whatever came of it.
            let _ = disk.add_paths(&site.sessions(index, networks)).await;
            disk.remove_added_paths();
            let mut count = changed.get();
            count.undone += 1;
            changed.set(count);
        } else {
            change(&site, index, networks, random.chance(0.5), &changed).await;
        }
    }
}

/// Gives every disk both paths, and waits until they work and nothing else is left.
async fn restore(site: &Rc<Site>, changed: &Cell<Changed>) {
    for index in 0..site.targets.len() {
        change(site, index, &[0, 1], false, changed).await;
        while !site.disk(index).parted().await.is_empty() {}
    }
    site.paths_are_back().await;
}

/// Changes paths under a load while nothing fails: no request is even sent twice.
fn nothing_fails(seed: u64, changed: &Rc<Cell<Changed>>) {
    let networks = [Networks::TwoOfOneGroup, Networks::TwoGroups][seed as usize % 2];
    let site = Site::new(seed, setup(seed, networks));
    site.run(async {
        let volume = site.open().await;
        site.paths_are_back().await;
        let changing = keep_changing(site.clone(), site.world.random(), changed.clone());
        let changing = spawn(changing);
        let load = Load {
            requests: 80,
            pause_max: 40 * MS,
            ..Load::default()
        };
        let tally = workload::run(&site, &volume, load).await;
        changing.await;
        assert!(
            tally.longest < Duration::from_secs(1),
            "{:?}",
            tally.longest
        );
        restore(&site, changed).await;
        for counts in site.path_counts() {
            assert_eq!((counts.lost, counts.resent), (0, 0), "{counts:?}");
        }
        workload::flush(&site, &volume).await.expect("a flush");
        check_all(&site, &volume).await;
    });
}

#[test]
fn paths_come_and_go_without_a_trace() {
    let changed = Rc::new(Cell::new(Changed::default()));
    seeds(100, |seed| nothing_fails(seed, &changed));
    let changed = changed.get();
    assert_occurred([("adopted", changed.adopted), ("undone", changed.undone)]);
    assert_eq!((changed.refused, changed.with_problems), (0, 0));
}

/// Changes paths under a load while networks fail, and writes are late.
pub(crate) fn networks_fail(
    seed: u64,
    networks: Networks,
    changed: &Rc<Cell<Changed>>,
    met: &mut Met,
) {
    let mut setup = setup(seed, networks).behind_faults();
    if seed % 2 == 0 {
        setup.world.net.latency_ns = 50_000..60_000_000;
    }
    let site = Site::new(seed, setup);
    site.run(async {
        let volume = site.open().await;
        site.paths_are_back().await;
        let changing = keep_changing(site.clone(), site.world.random(), changed.clone());
        let changing = spawn(changing);
        let failing = {
            let (site, mut random) = (site.clone(), site.world.random());
            spawn(async move {
                for _ in 0..4 {
                    time::sleep(random_time(&mut random, 400 * MS)).await;
                    let target = &site.targets[random.index(2)];
                    if random.chance(0.7) {
                        let time = random_time(&mut random, 1800 * MS);
                        delay_writes(target, 3, time);
                        time::sleep(random_time(&mut random, 200 * MS)).await;
                        reset_a_network(target, &mut random);
                    } else {
                        fail_one(&site, &mut random).await;
                    }
                }
            })
        };
        let load = Load {
            workers: 8,
            requests: 40,
            pause_max: 20 * MS,
            ..Load::default()
        };
        workload::run(&site, &volume, load).await;
        changing.await;
        failing.await;
        restore(&site, changed).await;
        workload::flush(&site, &volume).await.expect("a flush");
        check_all(&site, &volume).await;
        met.add(&site);
    });
}

#[test]
fn paths_come_and_go_while_networks_fail() {
    let (changed, mut met) = (Rc::new(Cell::new(Changed::default())), Met::default());
    for networks in [Networks::TwoOfOneGroup, Networks::TwoGroups] {
        seeds(100, |seed| {
            networks_fail(seed, networks, &changed, &mut met)
        });
    }
    let changed = changed.get();
    assert_occurred([
        ("adopted", changed.adopted),
        ("undone", changed.undone),
        ("refused", changed.refused),
        ("with problems", changed.with_problems),
        ("lost with writes in flight", met.paths().lost_with_writes),
        ("writes sent again", met.paths().writes_resent),
    ]);
}
