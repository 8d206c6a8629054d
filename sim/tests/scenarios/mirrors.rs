//! A mirror over whole daemons under everything that happens to machines, disks and networks. No acknowledged write is
//! lost, reads are linearizable, both copies come in sync again once all is well, and then they are equal.
//!
//! Most clients do not send again what has no answer: such a write may have happened or not, but once the owner serves
//! again, it does not happen any more.

mod bugs;
mod complaints;
mod growth;
mod hard_cases;
mod mishaps;
mod reliefs;
mod two_owners;

use std::{rc::Rc, time::Duration};

use engine::{sim::seeds, spawn, task, time};
use sim::{
    machine::End,
    mirrored::{Caches, Mirrored, Which},
    workload::{self, Load, Tally, check_all, random_time},
};
use volume::ErrorKind;

use self::mishaps::{Happening, Met, Mishap, count};
use crate::{MS, log};

const SEEDS: u64 = 500;
const ROUNDS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);
/// The hard cases, each of which occurs.
const CASES: [&str; 25] = [
    "power cuts of the owner",
    "kills of the owner",
    "stops of the owner",
    "power cuts of a storage",
    "kills and stops of a storage",
    "power cuts of all",
    "partitions",
    "cuts of one way",
    "disks that stall",
    "disks whose writes hang",
    "disks that fail",
    "full disks",
    "falls of the owner whose writes hang",
    "restored copies",
    "lost state directories",
    "registers that cannot be made durable",
    "lost state directories as a copy has left",
    "power cuts of all as a copy has returned",
    "power cuts of all while one copy is ahead",
    "writes in flight",
    "copies that left",
    "local copies",
    "registers on a LUN",
    "copies that were filled first",
    "requests that failed",
];

/// Whether a disk may fail while it is the only one with everything.
fn may_fail(mishaps: &[Mishap]) -> bool {
    let is_hit = |place: usize| mishaps.iter().any(|one| one.puts_out()[place]);
    mishaps.iter().any(|one| one.has_fault()) && is_hit(0) && is_hit(1)
}

/// For the replay of a seed.
fn log_mishaps(mishaps: &[Mishap]) {
    if std::env::var_os("SANSTONE_LOG").is_some() {
        println!("{mishaps:?}");
    }
}

/// One thing, or two at once.
fn draw_mishaps(site: &Mirrored, random: &mut engine::sim::Random) -> Vec<Mishap> {
    let mut draw = || Mishap::draw(random, site.second());
    let (first, second) = (draw(), draw());
    // Two falls of one machine at once are one.
    let is_possible = !(first.is_alone() || second.is_alone() || first.falls() && second.falls());
    match random.chance(0.5) && is_possible {
        true => vec![first, second],
        false => vec![first],
    }
}

/// A request fails only as long as no copy lives, unless its owner falls and the client does not send it again.
fn check_failed(site: &Mirrored, mishaps: &[Mishap], tally: &Tally) {
    let falls = mishaps.iter().any(|one| one.fells_owner());
    let is_fair = |kind: &ErrorKind| match kind {
        ErrorKind::Unreachable => site.is_attached() && falls,
        ErrorKind::TimedOut => site.is_hasty() || site.is_attached() && falls,
        ErrorKind::Medium | ErrorKind::NoSpace => site.is_hasty() || may_fail(mishaps),
        _ => false,
    };
    assert!(tally.failed.iter().all(is_fair), "{mishaps:?}: {tally:?}");
}

/// Rounds of load in each of which one thing or two happen.
async fn rounds(site: &Rc<Mirrored>, met: &Met) {
    let mut random = site.world.random();
    let volume = site.begin().await;
    site.in_sync().await;
    count(met, "local copies", usize::from(site.is_local()));
    let has_lun = usize::from(site.has_lun_register());
    count(met, "registers on a LUN", has_lun);
    let is_dirty = usize::from(site.is_dirty());
    count(met, "copies that were filled first", is_dirty);
    let mut backups = Vec::new();
    for _ in 0..ROUNDS {
        // Without what only says that all is as it was.
        let changes = || site.record().version - site.record().beats;
        let before = changes();
        backups.push(Rc::new([site.backup(0), site.backup(1)]));
        let mishaps = draw_mishaps(site, &mut random);
        log_mishaps(&mishaps);
        let pause_max = [4 * MS, 4 * MS, 200 * MS, 600 * MS][random.index(4)];
        // While there is load, mostly.
        let begin_max = [80 * MS, 20 * pause_max][random.index(2)];
        let kept = Rc::new(backups.clone());
        let happening: Vec<_> = mishaps
            .iter()
            .map(|&mishap| {
                let after = random_time(&mut random, begin_max);
                let happening = Happening {
                    site: site.clone(),
                    volume: volume.clone(),
                    random: site.world.random(),
                    met: met.clone(),
                    backups: kept.clone(),
                };
                spawn(async move {
                    time::sleep(after).await;
                    happening.happen(mishap).await;
                })
            })
            .collect();
        let load = Load {
            errors: true,
            requests: 40,
            pause_max,
            ..Load::default()
        };
        let tally = workload::run(site, &volume, load).await;
        check_failed(site, &mishaps, &tally);
        count(met, "requests that failed", tally.failed.len());
        task::join_all(happening).await;
        site.in_sync().await;
        let has_left = changes() > before + 1;
        count(met, "copies that left", usize::from(has_left));
        check_all(site, &volume).await;
        // Regions are cleared that are not written for long.
        time::sleep([Duration::ZERO, 15 * SECOND, 25 * SECOND][random.index(3)]).await;
    }
    site.in_sync().await;
    // Nothing is in flight, and the upkeep has nothing left to do.
    site.end(Which::Owner, End::Stopped).await;
    site.compare();
}

/// One seed.
fn whatever_happens(seed: u64, met: &Met) {
    let site = Mirrored::new(seed, Caches::None);
    site.run(rounds(&site, met));
}

fn lose_nothing(quarter: u64) {
    let met = Met::default();
    seeds(SEEDS, |seed| {
        log::shown(|| whatever_happens(4 * seed + quarter, &met));
    });
    let met = met.borrow();
    println!("{met:#?}");
    let is_replay = std::env::var("SANSTONE_SEED").is_ok();
    let missing: Vec<_> = CASES
        .iter()
        .filter(|case| !met.contains_key(*case))
        .collect();
    assert!(is_replay || missing.is_empty(), "{missing:?} do not occur");
}

/// Each of these has every fourth seed, so that they share the machine.
#[test]
fn a_mirror_loses_nothing_whatever_happens_to_its_machines() {
    lose_nothing(0);
}
#[test]
fn a_mirror_loses_nothing_whatever_happens_to_its_machines_too() {
    lose_nothing(1);
}
#[test]
fn a_mirror_loses_nothing_whatever_happens_to_its_machines_either() {
    lose_nothing(2);
}
#[test]
fn a_mirror_loses_nothing_whatever_happens_to_its_machines_ever() {
    lose_nothing(3);
}
