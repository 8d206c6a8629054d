//! Two whole daemons from their configurations, one of which serves a stripe of the other's disks. Each is stopped,
//! killed, cut from power and restarted, in any order and while its client writes. Promised data reads back, every disk
//! keeps its identity, and units keep the state that they must.

use std::{cell::RefCell, rc::Rc, time::Duration};

use engine::{
    sim::{Random, seeds},
    spawn, task, time,
};
use sim::{
    daemons::{Daemons, Which},
    machine::End,
    workload::{self, Load, Tally, check_all, random_time},
};
use volume::{ErrorKind, SharedVolume};

use crate::{MS, log};

const SEEDS: u64 = 200;
const ROUNDS: usize = 3;

/// Log lines for events that no client can see.
const LOGGED_IN_AGAIN: &str = "logged in again target_name=\"iqn.2026-11.io.sanstone:storage\"";
const CLAIM_REPLACED: &str = "replacing the claim of an owner that has stopped";

/// How often the hard cases occurred, over all seeds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Met {
    // Power cuts of the storage while a client's write was in flight.
    storage_cuts_in_flight: usize,
    gateway_cuts_in_flight: usize,
    kills_in_flight: usize,
    stops_in_flight: usize,
    /// Power cuts of the storage while it held acknowledged but unflushed data.
    cuts_unflushed: usize,
    /// Power cuts of a daemon that had not finished its start.
    cuts_while_starting: usize,
    /// Both were down at once.
    both: usize,
    /// The connections between the two were reset while both ran.
    resets: usize,
    /// Daemons that could not start at first, because the other one was away.
    refused: usize,
    /// Registrations and identities were checked after a power cut, and were unchanged.
    state_found_again: usize,
    /// Flushes that reported a loss to the client.
    flushes_failed: usize,
}

/// One machine's fall in a round: how, from when on, and for how long.
#[derive(Clone, Copy)]
struct Fall {
    how: End,
    after: Duration,
    down: Duration,
    /// Another power cut this long after the start began, if the start has not ended by then.
    again: Option<Duration>,
}

impl Fall {
    fn draw(random: &mut Random) -> Fall {
        let ends = [End::PowerCut, End::PowerCut, End::Killed, End::Stopped];
        Fall {
            how: ends[random.index(ends.len())],
            after: random_time(random, 60 * MS),
            down: random_time(random, 1_500 * MS),
            again: random.chance(0.3).then(|| random_time(random, 8 * MS)),
        }
    }
}

/// Brings one machine down and up again.
async fn fall(site: Rc<Daemons>, which: Which, fall: Fall, met: Rc<RefCell<Met>>) {
    time::sleep(fall.after).await;
    let (machine, other) = site.both(which);
    let (in_flight, unflushed) = {
        let model = site.model.borrow();
        (model.in_flight() > 0, model.unflushed() > 0)
    };
    {
        let mut met = met.borrow_mut();
        let counter = match (fall.how, which) {
            (End::PowerCut, Which::Storage) => &mut met.storage_cuts_in_flight,
            (End::PowerCut, Which::Gateway) => &mut met.gateway_cuts_in_flight,
            (End::Killed, _) => &mut met.kills_in_flight,
            (End::Stopped, _) => &mut met.stops_in_flight,
        };
        *counter += usize::from(in_flight);
    }
    let is_cut = (fall.how, which) == (End::PowerCut, Which::Storage);
    met.borrow_mut().cuts_unflushed += usize::from(is_cut && unflushed);
    site.end(which, fall.how).await;
    met.borrow_mut().both += usize::from(!other.host().is_on());
    time::sleep(fall.down).await;
    machine.restart();
    if let Some(after) = fall.again {
        time::sleep(after).await;
        if !machine.serves() {
            met.borrow_mut().cuts_while_starting += 1;
            site.end(which, End::PowerCut).await;
            time::sleep(fall.down).await;
            machine.restart();
        }
    }
    machine.ready().await;
}

/// Breaks the connections between the two now and then.
async fn reset(site: Rc<Daemons>, mut random: Random, met: Rc<RefCell<Met>>) {
    for _ in 0..3 {
        time::sleep(random_time(&mut random, 40 * MS)).await;
        let both_run = site.storage.serves() && site.gateway.serves();
        met.borrow_mut().resets += usize::from(both_run);
        site.gateway.host().reset_connections(site.storage.host());
    }
}

/// Rounds of load in each of which the storage, the gateway or both fall. A volume whose flush failed is reopened after
/// its round, at a restarted gateway.
async fn rounds(site: &Rc<Daemons>, met: &Rc<RefCell<Met>>) -> Tally {
    let mut all = Tally::default();
    let mut random = site.world.random();
    let mut volume = site.begin().await;
    for _ in 0..ROUNDS {
        let storage = random.chance(0.65).then(|| Fall::draw(&mut random));
        let gateway = (storage.is_none() || random.chance(0.4)).then(|| Fall::draw(&mut random));
        let falls = [(Which::Storage, storage), (Which::Gateway, gateway)];
        let falls = falls
            .into_iter()
            .filter_map(|(which, how)| Some((which, how?)));
        let falls: Vec<_> = falls
            .map(|(which, how)| spawn(fall(site.clone(), which, how, met.clone())))
            .collect();
        let resets = random.chance(0.3).then(|| {
            let random = site.world.random();
            spawn(reset(site.clone(), random, met.clone()))
        });
        let load = Load {
            errors: true,
            ..Load::default()
        };
        let tally = workload::run(site, &volume, load).await;
        task::join_all(falls).await;
        task::join_all(resets).await;
        check_all(site, &volume).await;
        site.check_identities().await;
        {
            let mut met = met.borrow_mut();
            let is_cut = |fall: &Option<Fall>| fall.is_some_and(|fall| fall.how == End::PowerCut);
            met.state_found_again += [storage, gateway]
                .iter()
                .filter(|fall| is_cut(fall))
                .count();
        }
        let _ = workload::flush(site, &volume).await;
        if site.model.borrow().flush_failed() {
            met.borrow_mut().flushes_failed += 1;
            let ends = [End::Stopped, End::Killed, End::PowerCut];
            volume = site.reopen(volume, ends[random.index(ends.len())]).await;
            check_all(site, &volume).await;
        }
        all.good += tally.good;
        all.failed.extend(tally.failed);
        all.flush_failed.extend(tally.flush_failed);
    }
    end(site, volume).await;
    all
}

/// The final check: after a successful flush and a loss of all power, exactly the written data survives.
async fn end(site: &Rc<Daemons>, volume: SharedVolume) {
    workload::flush(site, &volume)
        .await
        .expect("nothing has fallen since the last one");
    for which in [Which::Storage, Which::Gateway] {
        site.end(which, End::PowerCut).await;
    }
    site.gateway.restart();
    site.storage.restart();
    site.storage.ready().await;
    site.gateway.ready().await;
    let volume = site.reopen(volume, End::Stopped).await;
    check_all(site, &volume).await;
    site.check_identities().await;
}

#[test]
fn two_daemons_keep_what_they_promised_whatever_falls_when() {
    let met = Rc::new(RefCell::new(Met::default()));
    let run = |seed| {
        let site = Daemons::new(seed);
        let tally = site.run(rounds(&site, &met));
        // A gateway reports a failed flush below it to its client as a medium error.
        let told = [ErrorKind::FlushFailed, ErrorKind::Medium];
        for kind in tally.failed.iter().chain(&tally.flush_failed) {
            assert!(told.contains(kind), "{kind:?}");
        }
        met.borrow_mut().refused += site.storage.refused() + site.gateway.refused();
    };
    // Leaves of the gateway that reconnected to the storage, and claims that replaced those of the crashed gateway.
    let wanted = [LOGGED_IN_AGAIN, CLAIM_REPLACED];
    let ((), logged) = log::counting(&wanted, || seeds(SEEDS, run));
    let met = met.borrow();
    let all = [
        met.storage_cuts_in_flight,
        met.gateway_cuts_in_flight,
        met.kills_in_flight,
        met.stops_in_flight,
        met.cuts_unflushed,
        met.cuts_while_starting,
        met.both,
        met.resets,
        met.refused,
        met.state_found_again,
        met.flushes_failed,
    ];
    let is_replay = std::env::var("SANSTONE_SEED").is_ok();
    let mut all = all.iter().chain(logged.values());
    assert!(
        is_replay || all.all(|&times| times > 0),
        "{met:#?} {logged:?}"
    );
}

#[test]
fn the_same_seed_gives_the_same_run_of_two_daemons() {
    let run = |seed| {
        let site = Daemons::new(seed);
        let met = Rc::default();
        let tally = site.run(rounds(&site, &met));
        (site.world.trace_hash(), tally, met.take())
    };
    let first: Vec<_> = (0..3).map(run).collect();
    let again: Vec<_> = (0..3).rev().map(run).collect();
    assert!(first.iter().eq(again.iter().rev()));
}
