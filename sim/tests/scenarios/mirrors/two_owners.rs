//! Two owners that relieve each other of a mirror, while one of them stands still, is cut off, falls, or has writes on their
//! way that land later. From the moment at which one has taken it over, the other reads and writes nothing any more,
//! whatever it still believes; what both have answered is linearizable, and nothing acknowledged is lost.

use std::{rc::Rc, time::Duration};

use engine::{sim::seeds, spawn, task, time};
use sim::{
    machine::End,
    two_owners::TwoOwners,
    workload::{self, Load, Tally, check_all, random_time},
};
use volume::ErrorKind;

use super::{
    SECOND,
    mishaps::{Met, count},
    reliefs::Beside,
};
use crate::{MS, log};

const SEEDS: u64 = 40;
const ROUNDS: usize = 3;
/// The hard cases, each of which occurs.
const CASES: [&str; 16] = [
    "owners that stand still",
    "owners that fall",
    "owners that fall and claim it anew",
    "cuts between an owner and the register",
    "cuts between an owner and a storage",
    "cuts of one way between an owner and a storage",
    "registers that fall",
    "storages that fall",
    "storages or registers that stand still",
    "storages that lose their state directories",
    "copies whose writes hang",
    "writes in flight when it is taken over",
    "attempts to take it over that fail",
    "copies that could not be fenced",
    "requests that a former owner refuses",
    "former owners that are started again",
];

fn load(requests: usize, pause_max: Duration) -> Load {
    Load {
        errors: true,
        requests,
        pause_max,
        ..Load::default()
    }
}

/// What happens beside a relief: one thing, or two in different places.
fn draw(site: &TwoOwners, random: &mut engine::sim::Random) -> Vec<Beside> {
    let [first, second] = [Beside::draw(random), Beside::draw(random)];
    match random.chance(0.6) && first.place(site) != second.place(site) {
        true => vec![first, second],
        false => vec![first],
    }
}

fn count_refused(met: &Met, tally: &Tally) {
    let is_refused = |kind: &&ErrorKind| **kind == ErrorKind::Preempted;
    let refused = tally.failed.iter().filter(is_refused).count();
    count(met, "requests that a former owner refuses", refused);
}

/// A relief under load, and what happens beside it.
async fn relief(site: &Rc<TwoOwners>, met: &Met, random: &mut engine::sim::Random) {
    let former = site.owner();
    let beside = draw(site, random);
    if std::env::var_os("SANSTONE_LOG").is_some() {
        println!("{beside:?}");
    }
    let pause_max = [4 * MS, 20 * MS, 200 * MS][random.index(3)];
    let before_max = [20 * MS, 200 * MS, 5 * SECOND][random.index(3)];
    let (of_former, volume) = (site.clone(), site.disk(former));
    let old = spawn(async move { workload::run(&of_former, &volume, load(40, pause_max)).await });
    let happening: Vec<_> = beside
        .iter()
        .map(|&one| {
            let after = random_time(random, before_max);
            let (site, met, mut random) = (site.clone(), met.clone(), random.fork());
            spawn(async move {
                time::sleep(after).await;
                one.happen(&site, former, &met, &mut random).await;
            })
        })
        .collect();
    time::sleep(random_time(random, before_max)).await;
    let in_flight = site.model.borrow().in_flight();
    let has_in_flight = usize::from(in_flight > 0);
    count(met, "writes in flight when it is taken over", has_in_flight);
    let attempts = site.relieve().await;
    count(met, "attempts to take it over that fail", attempts - 1);
    let is_alone = site.record().in_sync.iter().count() == 1;
    count(met, "copies that could not be fenced", is_alone.into());
    workload::run(site, &site.disk(1 - former), load(20, pause_max)).await;
    count_refused(met, &old.await);
    task::join_all(happening).await;
    if !site.comes_in_sync().await {
        // The last copy may have lost its reservation, which only a new claim makes again.
        let has_forgotten = beside.iter().any(|one| matches!(one, Beside::Forget(_)));
        assert!(has_forgotten, "{beside:?}: {:?}", site.record());
        site.restart_owner().await;
        site.in_sync().await;
    }
    check_all(site, &site.disk(1 - former)).await;
    if random.chance(0.4) {
        count(met, "former owners that are started again", 1);
        site.end_owner(former, End::Killed).await;
        let tried = site.try_owner(former).await;
        tried.expect_err("a former owner is refused");
    }
}

/// Reliefs, one after the other.
pub(super) async fn reliefs(site: &Rc<TwoOwners>, met: &Met) {
    let mut random = site.world.random();
    site.begin().await;
    for _ in 0..ROUNDS {
        relief(site, met, &mut random).await;
        time::sleep([Duration::ZERO, 25 * SECOND][random.index(2)]).await;
    }
    // Nothing is in flight, and the upkeep has nothing left to do.
    site.end_owner(site.owner(), End::Stopped).await;
    site.compare();
}

fn relieve(quarter: u64) {
    let met = Met::default();
    seeds(SEEDS, |seed| {
        log::shown(|| {
            let site = TwoOwners::new(4 * seed + quarter);
            site.run(reliefs(&site, &met));
        });
    });
    let met = met.borrow();
    println!("{met:#?}");
    let is_replay = std::env::var("SANSTONE_SEED").is_ok();
    let missing: Vec<_> = CASES
        .iter()
        .filter(|case| met.get(*case).is_none_or(|&times| times == 0))
        .collect();
    assert!(is_replay || missing.is_empty(), "{missing:?} do not occur");
}

/// Each of these has every fourth seed, so that they share the machine.
#[test]
fn of_two_owners_one_reads_and_writes() {
    relieve(0);
}
#[test]
fn of_two_owners_one_reads_and_writes_too() {
    relieve(1);
}
#[test]
fn of_two_owners_one_reads_and_writes_either() {
    relieve(2);
}
#[test]
fn of_two_owners_one_reads_and_writes_ever() {
    relieve(3);
}
