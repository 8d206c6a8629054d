//! What users of other mirrors complain of, case by case, in exact simulated time.

use std::{cell::Cell, rc::Rc, time::Duration};

use engine::{Buf, sim::seeds, spawn, time};
use sim::{
    machine::End,
    mirrored::{COPY, Caches, Mirrored, Which},
    workload::{self, Load, check_all},
};
use volume::{Durability, SharedVolume};

use ::mirror::{CopyId, CopySet};

use super::SECOND;
use crate::{MS, log};

const SEEDS: u64 = 12;
/// A copy is given up after its `copy_timeout` of 1 s, and the other one is told.
const OUT_WITHIN: Duration = Duration::from_secs(2);

fn the_other(place: usize) -> CopySet {
    CopySet::from(CopyId::new(1 - place))
}

/// Runs `case` on the mirrors that `suits` it, which come in sync again, have all that was acknowledged, and are equal.
fn on_mirrors(suits: impl Fn(&Mirrored) -> bool, case: impl AsyncFn(&Rc<Mirrored>, &SharedVolume)) {
    let met = Cell::new(0);
    seeds(SEEDS, |seed| {
        let site = Mirrored::new(seed, Caches::None);
        if !suits(&site) {
            return;
        }
        met.set(met.get() + 1);
        log::shown(|| {
            site.run(async {
                let volume = site.begin().await;
                site.in_sync().await;
                case(&site, &volume).await;
                site.in_sync().await;
                check_all(&site, &volume).await;
                site.end(Which::Owner, End::Stopped).await;
                site.compare();
            });
        });
    });
    assert!(met.get() > 0, "it suits none");
}

fn has_two_storages(site: &Mirrored) -> bool {
    !site.is_local()
}

async fn load(site: &Rc<Mirrored>, volume: &SharedVolume, requests: usize) -> workload::Tally {
    let load = Load {
        requests,
        ..Load::default()
    };
    workload::run(site, volume, load).await
}

#[test]
fn a_slow_copy_is_no_dead_one() {
    on_mirrors(
        |_| true,
        async |site, volume| {
            let since = site.record().all_in_sync_since;
            site.host(Which::A).hang_writes(1.0, 150 * MS);
            load(site, volume, 60).await;
            site.host(Which::A).hang_writes(0.0, Duration::ZERO);
            let after = site.record();
            assert_eq!(after.in_sync, after.all(), "it has left");
            assert_eq!(after.all_in_sync_since, since, "it has left, and is back");
        },
    );
}

#[test]
fn a_disk_that_hangs_behind_a_target_that_answers_is_out_in_time() {
    on_mirrors(
        |_| true,
        async |site, volume| {
            site.host(Which::A).hang_writes(1.0, 300 * SECOND);
            let tally = load(site, volume, 40).await;
            assert!(tally.longest < OUT_WITHIN, "{tally:?}");
            assert_eq!(site.record().in_sync, the_other(0));
            site.host(Which::A).hang_writes(0.0, Duration::ZERO);
        },
    );
}

#[test]
fn an_older_copy_that_is_there_first_is_never_served() {
    on_mirrors(has_two_storages, async |site, volume| {
        site.end(Which::A, End::PowerCut).await;
        load(site, volume, 20).await;
        assert_eq!(site.record().in_sync, the_other(0));
        site.end(Which::Owner, End::PowerCut).await;
        site.end(Which::B, End::PowerCut).await;
        site.restart(Which::A).await;
        let (begun, away) = (time::now(), 30 * SECOND);
        let newer = site.clone();
        let returning = spawn(async move {
            time::sleep(away).await;
            newer.restart(Which::B).await;
        });
        site.restart(Which::Owner).await;
        assert!(time::now() - begun >= away, "it served what is older");
        returning.await;
    });
}

#[test]
fn both_go_and_come_back_in_either_order_and_get_what_they_have_missed() {
    on_mirrors(has_two_storages, async |site, volume| {
        // Of the second region, which nobody writes: only a whole fill would mend it.
        let (at, wrong) = (100 << 10, 0xEE);
        for order in [[Which::A, Which::B], [Which::B, Which::A]] {
            // Regions that were written before are not marked any more.
            time::sleep(45 * SECOND).await;
            site.end(Which::A, End::Killed).await;
            let data = || Buf::copy_of(&[0; 4096]).into();
            let written = volume.write(0, data(), Durability::Fua).await;
            written.expect("the other one is there");
            let mut copy = site.backup(0);
            let right = std::mem::replace(&mut copy[at], wrong);
            site.host(Which::A).put_file(COPY, &copy);
            site.end(Which::B, End::Killed).await;
            for which in order {
                time::sleep(20 * SECOND).await;
                site.restart(which).await;
            }
            site.in_sync().await;
            let mut copy = site.backup(0);
            assert_eq!(copy[at], wrong, "it was filled whole");
            site.end(Which::A, End::Killed).await;
            copy = site.backup(0);
            copy[at] = right;
            site.host(Which::A).put_file(COPY, &copy);
            site.restart(Which::A).await;
            site.in_sync().await;
        }
    });
}

#[test]
fn the_last_copy_is_waited_for() {
    let waits = |site: &Mirrored| has_two_storages(site) && !site.is_hasty() && site.is_attached();
    on_mirrors(waits, async |site, volume| {
        site.end(Which::A, End::Killed).await;
        site.end(Which::B, End::Killed).await;
        let of_client = volume.clone();
        let is_over = Rc::new(Cell::new(false));
        let seen = is_over.clone();
        let writing = spawn(async move {
            let data = Buf::copy_of(&[0; 4096]).into();
            let written = of_client.write(0, data, Durability::Fua).await;
            seen.set(true);
            written
        });
        time::sleep(300 * SECOND).await;
        assert!(!is_over.get(), "there was nobody to answer it");
        for which in [Which::A, Which::B] {
            site.restart(which).await;
        }
        writing.await.expect("they are back");
    });
}

#[test]
fn a_request_that_no_copy_answers_fails_after_its_time() {
    let is_hasty = |site: &Mirrored| has_two_storages(site) && site.is_hasty();
    on_mirrors(is_hasty, async |site, volume| {
        site.end(Which::A, End::Killed).await;
        site.end(Which::B, End::Killed).await;
        let begun = time::now();
        let read = volume.read(0, 4096).await;
        let took = time::now() - begun;
        read.expect_err("nobody answers");
        let limit = 4 * SECOND;
        assert!(took >= limit && took < limit + SECOND, "after {took:?}");
        for which in [Which::A, Which::B] {
            site.restart(which).await;
        }
    });
}
