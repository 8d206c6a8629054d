//! A disk reached over two networks and used from several lanes. One network fails, sometimes in one direction only,
//! with writes in flight: nobody above notices, no write lands after a newer one was answered, and a flush covers both
//! paths. When both networks fail, requests fail in time.

use std::{rc::Rc, time::Duration};

use engine::{
    sim::{Host, Occurred, Random, TrafficDirection, seeds},
    spawn, time,
};
use sim::{
    Setup, Site, assert_occurred,
    site::{CONNECT_TIMEOUT, REQUEST_TIMEOUT},
    target_machine::{Networks, TargetMachine},
    workload::{self, Load, check_all, random_time},
};
use volume::{
    PathCounts,
    layer::fault::{FaultAction, FaultOperation, Rule},
};

use crate::MS;

/// What the paths encountered, summed over many worlds.
#[derive(Default)]
pub(crate) struct Met {
    occurred: Occurred,
    paths: PathCounts,
    flushes: u64,
}

impl Met {
    pub(crate) fn paths(&self) -> PathCounts {
        self.paths
    }

    pub(crate) fn add(&mut self, site: &Site) {
        self.occurred += site.world.occurred();
        for counts in site.path_counts() {
            let paths = &mut self.paths;
            paths.lost += counts.lost;
            paths.lost_with_writes += counts.lost_with_writes;
            paths.resets += counts.resets;
            paths.reinstated_elsewhere += counts.reinstated_elsewhere;
            paths.resent += counts.resent;
            paths.writes_resent += counts.writes_resent;
            paths.beside_first += counts.beside_first;
            paths.beside_home += counts.beside_home;
        }
    }
}

/// How a network fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// Connections are reset; new ones can be made at once.
    Reset,
    /// Nothing passes in these directions, without any notification.
    Cut(&'static [TrafficDirection]),
}

const FAILURES: [Failure; 4] = [
    Failure::Reset,
    Failure::Cut(&[TrafficDirection::To]),
    Failure::Cut(&[TrafficDirection::From]),
    Failure::Cut(&[TrafficDirection::To, TrafficDirection::From]),
];

/// What the watchdog of a session adds to the request timeout before a path counts as lost.
const NOTICED_WITHIN: Duration = Duration::from_secs(1);
/// How long writes are held back after that until a reset ends those that the lost path has left.
const FENCED_WITHIN: Duration = Duration::from_secs(1);

/// The longest time of a request while one path works, whatever becomes of the other.
fn failover_max() -> Duration {
    REQUEST_TIMEOUT + NOTICED_WITHIN + FENCED_WITHIN
}

/// The longest time of a request in all (docs/guide/multipath.md): it is lost with a path, waits for another one, the
/// last login included, and is lost with that.
fn request_max(reconnect_timeout: Duration) -> Duration {
    2 * (REQUEST_TIMEOUT + NOTICED_WITHIN) + reconnect_timeout + CONNECT_TIMEOUT
}

pub(crate) fn setup(seed: u64, networks: Networks) -> Setup {
    let (lanes, sessions) = [(1, 2), (2, 2), (2, 4), (3, 3)][seed as usize % 4];
    let mut setup = Setup::draw(seed).on(networks).on_lanes(lanes, sessions);
    setup.world.net.split_probability = 0.05;
    setup
}

/// One network of a target fails for a while; the other one works.
pub(crate) async fn fail_one(site: &Site, random: &mut Random) {
    let target = &site.targets[random.index(site.targets.len())];
    let ips = [target.host.ip(), target.second_ip.expect("two networks")];
    let ip = ips[random.index(2)];
    match FAILURES[random.index(FAILURES.len())] {
        Failure::Reset => {
            for _ in 0..1 + random.index(4) {
                target.host.reset_at(ip);
                time::sleep(100 * MS).await;
            }
        }
        Failure::Cut(directions) => {
            for &direction in directions {
                target.host.cut(ip, direction);
            }
            time::sleep(random_time(random, 8000 * MS)).await;
            target.host.mend(ip);
        }
    }
}

/// Fails the networks in turn under a load that must not notice.
fn one_after_the_other(seed: u64, networks: Networks, met: &mut Met) {
    let site = Site::new(seed, setup(seed, networks));
    site.run(async {
        let volume = site.open().await;
        site.paths_are_back().await;
        let failing = {
            let (site, mut random) = (site.clone(), site.world.random());
            spawn(async move {
                for _ in 0..4 {
                    time::sleep(random_time(&mut random, 40 * MS)).await;
                    fail_one(&site, &mut random).await;
                    site.paths_are_back().await;
                }
            })
        };
        let load = Load {
            requests: 60,
            pause_max: 10 * MS,
            ..Load::default()
        };
        let tally = workload::run(&site, &volume, load).await;
        assert_eq!(tally.good, 360);
        assert!(tally.longest < failover_max(), "{:?}", tally.longest);
        failing.await;
        workload::flush(&site, &volume).await.expect("a flush");
        check_all(&site, &volume).await;
        met.flushes += 1;
        met.add(&site);
    });
}

fn assert_met(met: &Met, resets: bool) {
    let paths = met.paths;
    assert_occurred([
        ("packets cut off", met.occurred.packets_parted),
        (
            "connections thrown away with data held",
            met.occurred.aborts_of_held,
        ),
        ("paths lost", paths.lost),
        ("with writes in flight", paths.lost_with_writes),
        ("writes sent again", paths.writes_resent),
        ("reads sent again", paths.resent - paths.writes_resent),
        ("commands over the second path", paths.beside_first),
        ("commands of other lanes", paths.beside_home),
        match resets {
            true => ("logical unit resets", paths.resets),
            false => (
                "reinstatements over the other path",
                paths.reinstated_elsewhere,
            ),
        },
    ]);
}

#[test]
fn a_path_that_fails_is_not_noticed_when_its_portals_are_one_group() {
    let mut met = Met::default();
    seeds(150, |seed| {
        one_after_the_other(seed, Networks::TwoOfOneGroup, &mut met)
    });
    assert_met(&met, false);
}

#[test]
fn a_path_that_fails_is_not_noticed_when_its_portals_are_two_groups() {
    let mut met = Met::default();
    seeds(150, |seed| {
        one_after_the_other(seed, Networks::TwoGroups, &mut met)
    });
    assert_met(&met, true);
}

/// Resets one network of each target in turn while its writes are delayed, on the network or within the target. Returns
/// how many were delayed in a target.
pub(crate) fn lose_late_writes(seed: u64, networks: Networks, met: &mut Met) -> u64 {
    let mut setup = setup(seed, networks).behind_faults();
    setup.world.net.latency_ns = 50_000..60_000_000;
    let site = Site::new(seed, setup);
    site.run(async {
        let volume = site.open().await;
        site.paths_are_back().await;
        let failing = {
            let (site, mut random) = (site.clone(), site.world.random());
            spawn(async move {
                for _ in 0..4 {
                    let target = &site.targets[random.index(2)];
                    let time = random_time(&mut random, 1800 * MS);
                    delay_writes(target, 3, time);
                    time::sleep(random_time(&mut random, 400 * MS)).await;
                    reset_a_network(target, &mut random);
                    site.paths_are_back().await;
                }
            })
        };
        let load = Load {
            workers: 12,
            requests: 25,
            ..Load::default()
        };
        let tally = workload::run(&site, &volume, load).await;
        assert_eq!(tally.good, 300);
        failing.await;
        check_all(&site, &volume).await;
        met.add(&site);
        site.targets.iter().map(|target| target.acted()).sum()
    })
}

/// Resets a target's open connections on one of its two networks.
pub(crate) fn reset_a_network(target: &TargetMachine, random: &mut Random) {
    let ips = [target.host.ip(), target.second_ip.expect("two")];
    target.host.reset_at(ips[random.index(2)]);
}

/// Delays the next `times` writes by `time`.
pub(crate) fn delay_writes(target: &TargetMachine, times: u64, time: Duration) {
    target.add_rule(Rule {
        on: Some(FaultOperation::Write),
        times: Some(times),
        ..Rule::always(FaultAction::Delay(time))
    });
}

#[test]
fn a_late_write_of_a_lost_path_lands_before_a_newer_one_or_never() {
    let (mut met, mut held) = (Met::default(), 0);
    for networks in [Networks::TwoOfOneGroup, Networks::TwoGroups] {
        seeds(60, |seed| {
            held += lose_late_writes(seed, networks, &mut met)
        });
    }
    assert_occurred([
        ("writes held in the target", held),
        ("lost with writes in flight", met.paths.lost_with_writes),
        ("writes sent again", met.paths.writes_resent),
        ("logical unit resets", met.paths.resets),
    ]);
}

/// Writes hang in a target for longer than requests wait, and neither a login nor a reset ends them. Other lanes are
/// delayed in the meantime, so that they learn of it late. Returns how many requests failed.
pub(crate) fn lose_writes_that_hang(seed: u64, met: &mut Met) -> u64 {
    const RETRY_FOR: Duration = Duration::from_secs(5);
    const HANGS: Duration = Duration::from_secs(150);
    /// Requests of the other lane wait for that, too.
    const HELD_UP_MAX: Duration = Duration::from_secs(15);
    let mut setup = Setup::draw(seed)
        .on(Networks::TwoGroups)
        .on_lanes(2, 4)
        .behind_faults();
    setup.reconnect_timeout = RETRY_FOR;
    setup.served.caching = "write-through";
    let site = Site::new(seed, setup);
    site.run(async {
        let volume = site.open().await;
        site.paths_are_back().await;
        let failing = {
            let (site, mut random) = (site.clone(), site.world.random());
            spawn(async move {
                time::sleep(random_time(&mut random, 40 * MS)).await;
                let target = &site.targets[random.index(2)];
                delay_writes(target, 1 + random.below(2), HANGS);
                time::sleep(random_time(&mut random, 40 * MS)).await;
                reset_a_network(target, &mut random);
                let held_up = random_time(&mut random, HELD_UP_MAX);
                site.client.hold_lane(1, held_up);
            })
        };
        let load = Load {
            requests: 30,
            errors: true,
            reads: false,
            pause_max: 500 * MS,
            ..Load::default()
        };
        let tally = workload::run(&site, &volume, load).await;
        failing.await;
        let limit = request_max(RETRY_FOR) + HELD_UP_MAX;
        assert!(tally.longest < limit, "{:?}", tally.longest);
        time::sleep(HANGS).await;
        site.paths_are_back().await;
        check_all(&site, &volume).await;
        met.add(&site);
        tally.failed.len() as u64
    })
}

#[test]
fn a_write_that_hangs_in_the_target_fails_in_time_and_harms_no_newer_one() {
    let (mut met, mut failed) = (Met::default(), 0);
    seeds(60, |seed| failed += lose_writes_that_hang(seed, &mut met));
    assert_occurred([
        ("requests failed", failed),
        ("lost with writes in flight", met.paths.lost_with_writes),
        ("commands of other lanes", met.paths.beside_home),
    ]);
}

/// Cuts the power between flushes, to catch a flush that covers only one path. Returns the number of flushes.
pub(crate) fn cut_power_after_flushes(seed: u64, met: &mut Met) -> u64 {
    const ROUNDS: u64 = 3;
    let site = Site::new(seed, setup(seed, Networks::TwoOfOneGroup).volatile());
    site.run(async {
        let mut volume = site.open().await;
        for _ in 0..ROUNDS {
            let load = Load {
                requests: 15,
                ..Load::default()
            };
            workload::run(&site, &volume, load).await;
            workload::flush(&site, &volume).await.expect("a flush");
            met.add(&site);
            for index in 0..site.targets.len() {
                site.power_cut(index);
                site.targets[index].restart();
                site.targets[index].ready().await;
            }
            volume = site.reopen(volume).await;
            check_all(&site, &volume).await;
        }
    });
    ROUNDS
}

#[test]
fn a_flush_covers_what_went_over_every_path_and_from_every_lane() {
    let (mut flushed, mut met) = (0, Met::default());
    seeds(100, |seed| {
        flushed += cut_power_after_flushes(seed, &mut met)
    });
    assert_occurred([
        ("flushes", flushed),
        ("commands over the second path", met.paths.beside_first),
        ("commands of other lanes", met.paths.beside_home),
    ]);
}

/// Both networks of a target are down for longer than requests wait.
#[test]
fn requests_end_in_time_when_every_path_fails() {
    const RETRY_FOR: Duration = Duration::from_secs(5);
    let (mut failed, mut met) = (0, Met::default());
    for networks in [Networks::TwoOfOneGroup, Networks::TwoGroups] {
        seeds(60, |seed| {
            let mut setup = setup(seed, networks);
            setup.reconnect_timeout = RETRY_FOR;
            let site = Site::new(seed, setup);
            site.run(async {
                let volume = site.open().await;
                let failing = {
                    let (site, mut random) = (site.clone(), site.world.random());
                    spawn(async move {
                        for _ in 0..3 {
                            time::sleep(random_time(&mut random, 40 * MS)).await;
                            fail_both(&site, &mut random).await;
                        }
                    })
                };
                let load = Load {
                    requests: 30,
                    errors: true,
                    ..Load::default()
                };
                let tally = workload::run(&site, &volume, load).await;
                failing.await;
                failed += tally.failed.len() as u64;
                let limit = request_max(RETRY_FOR);
                assert!(tally.longest < limit, "{:?}", tally.longest);
                site.paths_are_back().await;
                check_all(&site, &volume).await;
                met.add(&site);
            });
        });
    }
    assert_occurred([
        ("requests failed", failed),
        ("lost with writes in flight", met.paths.lost_with_writes),
        ("thrown away with data held", met.occurred.aborts_of_held),
    ]);
}

async fn fail_both(site: &Rc<Site>, random: &mut Random) {
    let target = &site.targets[random.index(site.targets.len())];
    let ips = [target.host.ip(), target.second_ip.expect("two networks")];
    let cut = |host: &Host, ip, random: &mut Random| {
        let Failure::Cut(directions) = FAILURES[1 + random.index(FAILURES.len() - 1)] else {
            unreachable!("resets are the first");
        };
        directions.iter().for_each(|&way| host.cut(ip, way));
    };
    for ip in ips {
        cut(&target.host, ip, random);
        time::sleep(random_time(random, 1000 * MS)).await;
    }
    time::sleep(random_time(random, 12_000 * MS)).await;
    let first = random.index(2);
    for ip in [ips[first], ips[1 - first]] {
        target.host.mend(ip);
        time::sleep(random_time(random, 2000 * MS)).await;
    }
}
