//! A mirror over whole daemons under everything that happens to machines, disks and networks. No acknowledged write is
//! lost, reads see what was written, both copies come in sync again once all is well, and then they are equal.

use std::{cell::RefCell, rc::Rc, time::Duration};

use engine::{
    sim::{Direction, Fault, FaultKind, Random, seeds},
    spawn, task, time,
};
use sim::{
    machine::End,
    mirrored::{Mirrored, Which},
    workload::{self, Load, Tally, check_all, random_time},
};

use crate::{MS, log};

const SEEDS: u64 = 60;
const ROUNDS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);

/// How often the hard cases occurred, over all seeds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Met {
    storage_cuts: usize,
    storage_kills: usize,
    owner_cuts: usize,
    owner_kills: usize,
    owner_stops: usize,
    /// The power of all machines was cut at once.
    all_cut: usize,
    partitions: usize,
    one_way_cuts: usize,
    stalls: usize,
    faults: usize,
    /// A copy was out when a round ended, or had been.
    left: usize,
    /// A machine fell with a write in flight.
    in_flight: usize,
    /// The second copy was a file of the owner.
    local: usize,
}

/// What happens in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mishap {
    Fall(Which, End),
    AllCut,
    Partition(Which),
    OneWay(Which, bool),
    Stall(Which),
    Fault(Which),
}

impl Mishap {
    fn draw(random: &mut Random) -> Mishap {
        let storage = [Which::A, Which::B][random.index(2)];
        let any = [Which::A, Which::B, Which::Owner][random.index(3)];
        let end = [End::PowerCut, End::PowerCut, End::Killed, End::Stopped][random.index(4)];
        match random.below(10) {
            0..=4 => Mishap::Fall(any, end),
            5 => Mishap::AllCut,
            6 => Mishap::Partition(storage),
            7 => Mishap::OneWay(storage, random.chance(0.5)),
            8 => Mishap::Stall(storage),
            _ => Mishap::Fault(storage),
        }
    }
}

async fn happen(site: Rc<Mirrored>, mishap: Mishap, mut random: Random, met: Rc<RefCell<Met>>) {
    let down = match random.chance(0.5) {
        true => random_time(&mut random, 500 * MS),
        false => random_time(&mut random, 20 * SECOND),
    };
    let owner = site.machine(Which::Owner).host();
    met.borrow_mut().in_flight += usize::from(site.model.borrow().in_flight() > 0);
    match mishap {
        Mishap::Fall(which, how) => {
            {
                let mut met = met.borrow_mut();
                let counter = match (which, how) {
                    (Which::Owner, End::PowerCut) => &mut met.owner_cuts,
                    (Which::Owner, End::Killed) => &mut met.owner_kills,
                    (Which::Owner, End::Stopped) => &mut met.owner_stops,
                    (_, End::PowerCut) => &mut met.storage_cuts,
                    (_, _) => &mut met.storage_kills,
                };
                *counter += 1;
            }
            site.fall(which, how, down).await;
        }
        Mishap::AllCut => {
            met.borrow_mut().all_cut += 1;
            let falls = [Which::A, Which::B, Which::Owner].map(|which| {
                let site = site.clone();
                let down = random_time(&mut random, 10 * SECOND);
                spawn(async move { site.fall(which, End::PowerCut, down).await })
            });
            task::join_all(falls).await;
        }
        Mishap::Partition(which) => {
            met.borrow_mut().partitions += 1;
            let other = site.machine(which).host();
            owner.partition(other);
            time::sleep(down).await;
            owner.heal(other);
        }
        Mishap::OneWay(which, is_in) => {
            met.borrow_mut().one_way_cuts += 1;
            let other = site.machine(which).host();
            let direction = if is_in {
                Direction::To
            } else {
                Direction::From
            };
            other.cut(other.ip(), direction);
            time::sleep(down).await;
            other.mend(other.ip());
        }
        Mishap::Stall(which) => {
            met.borrow_mut().stalls += 1;
            site.machine(which).host().stall_disk(down);
            time::sleep(down).await;
        }
        Mishap::Fault(which) => {
            met.borrow_mut().faults += 1;
            let host = site.machine(which).host();
            let kind = [FaultKind::Write, FaultKind::Read][random.index(2)];
            host.add_fault(Fault {
                path: Some("/srv/copy".into()),
                times: Some(1 + random.index(3) as u32),
                ..Fault::new(kind, 5)
            });
            time::sleep(down).await;
            host.clear_faults();
        }
    }
}

/// For the replay of a seed.
fn log_mishaps(mishaps: &[Mishap]) {
    if std::env::var_os("SANSTONE_LOG").is_some() {
        println!("{mishaps:?}");
    }
}

/// Rounds of load in each of which one thing or two happen.
pub(crate) async fn rounds(site: &Rc<Mirrored>, met: &Rc<RefCell<Met>>) -> Tally {
    let mut all = Tally::default();
    let mut random = site.world.random();
    let volume = site.begin().await;
    met.borrow_mut().local += usize::from(site.is_local);
    for _ in 0..ROUNDS {
        let version = site.record().version;
        let first = Mishap::draw(&mut random);
        let mut mishaps = vec![first];
        let second = Mishap::draw(&mut random);
        // Two falls of one machine at once are one.
        if random.chance(0.5)
            && !matches!(
                (first, second),
                (
                    Mishap::AllCut | Mishap::Fall(..),
                    Mishap::AllCut | Mishap::Fall(..)
                )
            )
        {
            mishaps.push(second);
        }
        log_mishaps(&mishaps);
        let happening: Vec<_> = mishaps
            .into_iter()
            .map(|mishap| {
                let (site, met) = (site.clone(), met.clone());
                let after = random_time(&mut random, 80 * MS);
                let random = site.world.random();
                spawn(async move {
                    time::sleep(after).await;
                    happen(site, mishap, random, met).await;
                })
            })
            .collect();
        let load = Load {
            errors: true,
            requests: 40,
            pause_max: 4 * MS,
            ..Load::default()
        };
        let tally = workload::run(site, &volume, load).await;
        task::join_all(happening).await;
        site.in_sync().await;
        met.borrow_mut().left += usize::from(site.record().version > version + 1);
        check_all(site, &volume).await;
        all.good += tally.good;
        all.failed.extend(tally.failed);
        all.flush_failed.extend(tally.flush_failed);
    }
    site.in_sync().await;
    // Nothing is in flight, and the upkeep has nothing left to do.
    site.machine(Which::Owner).end(End::Stopped).await;
    site.compare();
    all
}

/// One seed.
pub(crate) fn whatever_happens(seed: u64, met: &Rc<RefCell<Met>>) -> Tally {
    let site = Mirrored::new(seed);
    site.run(rounds(&site, met))
}

#[test]
#[ignore = "under a few seeds, 5 and 9 among them, a copy that can be reached again is not taken back, for a reason not yet known"]
fn a_mirror_loses_nothing_whatever_happens_to_its_machines() {
    let met = Rc::new(RefCell::new(Met::default()));
    seeds(SEEDS, |seed| {
        let tally = log::shown(|| whatever_happens(seed, &met));
        assert!(tally.failed.is_empty(), "one copy lived: {tally:?}");
    });
    let met = met.borrow();
    println!("{met:#?}");
    let all = [
        met.storage_cuts,
        met.storage_kills,
        met.owner_cuts,
        met.owner_kills,
        met.owner_stops,
        met.all_cut,
        met.partitions,
        met.one_way_cuts,
        met.stalls,
        met.faults,
        met.left,
        met.in_flight,
        met.local,
    ];
    let is_replay = std::env::var("SANSTONE_SEED").is_ok();
    assert!(is_replay || all.iter().all(|&times| times > 0), "{met:#?}");
}
