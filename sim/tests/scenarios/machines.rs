//! Targets that stop: killed, cut from power, unreachable for too long, or shut down. Promises are kept, and a client
//! that may have lost data is told.

use std::{rc::Rc, time::Duration};

use engine::{
    Payload,
    sim::{FaultKind, InjectedFault, Occurred, Random, seeds},
    spawn, time,
};
use sim::{
    Setup, Site, assert_occurred,
    raw::RawSession,
    target_machine::Networks,
    workload::{self, Load, Tally, check_all, random_time},
};
use volume::{Durability, ErrorKind, SharedVolume};

use crate::MS;

const EIO: i32 = 5;

#[derive(Clone, Copy)]
enum Stop {
    Kill,
    PowerCut,
    /// A power cut, after which connections break again and again.
    PowerCutAndResets,
    InGoodOrder,
    /// A power cut, and a kill before all initiators are back.
    PowerCutAndKill,
}

/// Rounds of load in each of which one target stops in some way and comes back. A volume whose flush has failed is
/// reopened after its round. Also returns in how many rounds acknowledged data was not durable when the target stopped.
async fn rounds(site: &Rc<Site>, stop: Stop, rounds: usize) -> (Tally, u64) {
    let (mut all, mut unflushed) = (Tally::default(), 0);
    let mut volume = site.open().await;
    for _ in 0..rounds {
        let chaos = {
            let (site, mut random) = (site.clone(), site.world.random());
            spawn(async move { stop_and_restart(&site, &mut random, stop).await })
        };
        let load = Load {
            errors: true,
            ..Load::default()
        };
        let tally = workload::run(site, &volume, load).await;
        unflushed += u64::from(chaos.await);
        check_all(site, &volume).await;
        all.good += tally.good;
        all.failed.extend(tally.failed);
        all.flush_failed.extend(tally.flush_failed);
        if site.model.borrow().flush_failed() {
            volume = site.reopen(volume).await;
            check_all(site, &volume).await;
        }
    }
    end(site, volume).await;
    (all, unflushed)
}

/// Returns whether acknowledged data was not durable then.
async fn stop_and_restart(site: &Rc<Site>, random: &mut Random, stop: Stop) -> bool {
    time::sleep(random_time(random, 80 * MS)).await;
    let index = random.index(site.targets.len());
    let target = &site.targets[index];
    let is_unflushed = site.model.borrow().unflushed() > 0;
    match stop {
        Stop::Kill => target.kill(),
        Stop::PowerCut | Stop::PowerCutAndResets | Stop::PowerCutAndKill => site.power_cut(index),
        // All acknowledged data is durable then: the model records no loss.
        Stop::InGoodOrder => target.stop().await,
    }
    time::sleep(random_time(random, 500 * MS)).await;
    target.restart();
    target.ready().await;
    if let Stop::PowerCutAndKill = stop {
        time::sleep(random_time(random, 20 * MS)).await;
        target.kill();
        time::sleep(random_time(random, 20 * MS)).await;
        target.restart();
        target.ready().await;
    }
    if let Stop::PowerCutAndResets = stop {
        for _ in 0..100 {
            time::sleep(random_time(random, 2 * MS)).await;
            site.client.reset_connections(&target.host);
        }
    }
    is_unflushed
}

/// The final check: after a successful flush and a loss of all power, exactly the written data survives.
async fn end(site: &Rc<Site>, volume: SharedVolume) {
    let flushed = workload::flush(site, &volume).await;
    if let Err(error) = flushed {
        assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
    }
    for index in 0..site.targets.len() {
        site.power_cut(index);
        site.targets[index].restart();
    }
    let volume = site.reopen(volume).await;
    check_all(site, &volume).await;
}

/// Checks that only flushes failed, with the error kind that tells what happened, and requests that the volume refuses
/// after that.
fn only_flushes_failed(tally: &Tally) {
    for kind in tally.failed.iter().chain(&tally.flush_failed) {
        assert_eq!(*kind, ErrorKind::FlushFailed);
    }
}

#[test]
fn a_power_cut_of_a_target_loses_nothing_that_was_promised() {
    let (mut told, mut met) = (0, Occurred::default());
    seeds(400, |seed| {
        let site = Site::new(seed, Setup::draw(seed).volatile());
        let (tally, _) = site.run(rounds(&site, Stop::PowerCut, 2));
        only_flushes_failed(&tally);
        told += tally.flush_failed.len() as u64;
        met += site.world.occurred();
    });
    assert_occurred([
        ("power cuts during writes", met.cuts_during_writes),
        ("changes lost", met.changes_lost),
        ("changes torn", met.changes_torn),
        ("flushes that failed for it", told),
    ]);
}

#[test]
fn a_restart_is_heard_of_though_the_answer_that_tells_of_it_is_lost() {
    let mut met = Occurred::default();
    seeds(400, |seed| {
        let site = Site::new(seed, Setup::draw(seed).volatile());
        let (tally, _) = site.run(rounds(&site, Stop::PowerCutAndResets, 1));
        only_flushes_failed(&tally);
        met += site.world.occurred();
    });
    assert_occurred([
        ("resets under data", met.resets_under_data),
        ("changes lost", met.changes_lost),
    ]);
}

#[test]
fn a_power_cut_of_a_disk_without_a_volatile_cache_loses_nothing() {
    let mut met = Occurred::default();
    seeds(200, |seed| {
        let mut setup = Setup::draw(seed);
        setup.served.caching = ["write-through", "direct-sync"][seed as usize % 2];
        let site = Site::new(seed, setup);
        let (tally, _) = site.run(rounds(&site, Stop::PowerCut, 2));
        assert_eq!((tally.failed, tally.flush_failed), Default::default());
        met += site.world.occurred();
    });
    assert_occurred([("power cuts during writes", met.cuts_during_writes)]);
}

#[test]
fn a_target_that_is_killed_and_started_again_goes_on() {
    let mut met = Occurred::default();
    seeds(200, |seed| {
        let site = Site::new(seed, Setup::draw(seed));
        let (tally, _) = site.run(rounds(&site, Stop::Kill, 2));
        assert_eq!((tally.failed, tally.flush_failed), Default::default());
        met += site.world.occurred();
    });
    assert_occurred([("kills during writes", met.kills_during_writes)]);
}

/// The software restarts in the boot after the power cut. That it has lost nothing in this restart must not hide the
/// power cut from an initiator that has not heard of it.
#[test]
fn a_power_cut_is_told_though_the_target_restarts_before_everybody_has_heard_of_it() {
    let (mut told, mut met) = (0, Occurred::default());
    seeds(400, |seed| {
        let site = Site::new(seed, Setup::draw(seed).volatile());
        let (tally, _) = site.run(rounds(&site, Stop::PowerCutAndKill, 2));
        only_flushes_failed(&tally);
        told += tally.flush_failed.len() as u64;
        met += site.world.occurred();
    });
    assert_occurred([
        ("changes lost", met.changes_lost),
        ("flushes that failed for it", told),
    ]);
}

/// The kernel reports a loss once, here to the target for a flush or a durable write of somebody else. When the software
/// has restarted, the kernel knows of nothing: the initiator that has written what is lost must hear of it all the same.
#[test]
fn a_sync_that_failed_is_told_to_everybody_though_the_target_restarts() {
    const SYNCHRONIZE_CACHE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    /// WRITE (10) with FUA, of the block at byte 2048, between the superblock and the data.
    const WRITE: [u8; 10] = [0x2a, 0x08, 0, 0, 0, 4, 0, 0, 1, 0];
    let mut lost = 0;
    seeds(200, |seed| {
        let mut setup = Setup::draw(seed).volatile();
        setup.served.block_size_bytes = 512;
        let site = Site::new(seed, setup);
        site.run(async {
            let volume = site.open().await;
            let len_bytes = volume.shape().len_bytes();
            let data = Payload::zeroes(len_bytes as usize);
            let written = volume.write(0, data, Durability::Cached).await;
            written.expect("the targets work");
            let mut random = site.world.random();
            let index = random.index(site.targets.len());
            let target = &site.targets[index];
            let other = RawSession::login_as(&site, index, "other").await;
            let _attention = other.execute(&[0; 6], &[], 0).await;
            let (kind, cdb, data): (_, _, &[u8]) = match random.chance(0.5) {
                true => (FaultKind::Sync, SYNCHRONIZE_CACHE, &[]),
                false => (FaultKind::OwnSync, WRITE, &[1; 512]),
            };
            target.host.add_fault(InjectedFault {
                times: Some(1),
                ..InjectedFault::new(kind, EIO)
            });
            let answer = other.execute(&cdb, data, 0).await.expect("an answer");
            assert_ne!(answer.status, Some(0), "{kind:?}");
            target.kill();
            time::sleep(random_time(&mut random, 500 * MS)).await;
            target.restart();
            target.ready().await;
            let error = volume
                .flush()
                .await
                .expect_err("what was written may be lost");
            assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
        });
        lost += site.world.occurred().faults_hit;
    });
    assert_occurred([("syncs that failed", lost)]);
}

/// The target asks its initiators to log out, and they flush first: nothing is unflushed when it comes back, and
/// nothing has failed.
#[test]
fn a_target_that_is_told_to_stop_and_started_again_is_a_pause() {
    let mut unflushed = 0;
    seeds(200, |seed| {
        let networks = [Networks::One, Networks::TwoOfOneGroup, Networks::TwoGroups];
        let setup = Setup::draw(seed).on(networks[seed as usize % 3]);
        let site = Site::new(seed, setup);
        let (tally, stops) = site.run(rounds(&site, Stop::InGoodOrder, 2));
        assert_eq!((tally.failed, tally.flush_failed), Default::default());
        unflushed += stops;
    });
    assert_occurred([("stops with unflushed writes", unflushed)]);
}

#[test]
fn a_target_that_stays_away_is_an_error_and_no_hang() {
    const RECONNECT: Duration = Duration::from_secs(5);
    let mut met = Occurred::default();
    seeds(200, |seed| {
        let mut setup = Setup::draw(seed);
        setup.reconnect_timeout = RECONNECT;
        let site = Site::new(seed, setup);
        site.run(async {
            let volume = site.open().await;
            let away = {
                let (site, mut random) = (site.clone(), site.world.random());
                spawn(async move {
                    time::sleep(random_time(&mut random, 40 * MS)).await;
                    let target = &site.targets[random.index(site.targets.len())].host;
                    site.client.partition(target);
                    time::sleep(100_000 * MS).await;
                    site.client.heal(target);
                })
            };
            let load = Load {
                errors: true,
                ..Load::default()
            };
            let tally = workload::run(&site, &volume, load).await;
            let failed = tally.failed.len() + tally.flush_failed.len();
            assert!(failed > 0, "who cannot be reached fails");
            let expected = [
                ErrorKind::Unreachable,
                ErrorKind::TimedOut,
                ErrorKind::FlushFailed,
            ];
            for kind in &tally.failed {
                assert!(expected.contains(kind), "{kind:?}");
            }
            // Time to notice the loss, to attempt a connection, and to wait for another request's attempt.
            let bound = RECONNECT + Duration::from_secs(5);
            assert!(tally.longest < bound, "{:?}", tally.longest);
            away.await;
            check_all(&site, &volume).await;
            let volume = site.reopen(volume).await;
            check_all(&site, &volume).await;
            end(&site, volume).await;
        });
        met += site.world.occurred();
    });
    assert_occurred([("packets parted", met.packets_parted)]);
}
