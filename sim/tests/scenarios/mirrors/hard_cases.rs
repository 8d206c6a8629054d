//! Cases of two owners that a whole history hardly ever reaches by chance, one for each rule that they are hard for.

use std::{ops::Range, rc::Rc, time::Duration};

use ::mirror::{CopyId, CopySet};
use engine::{
    Buf,
    sim::{FaultKind, InjectedFault, TrafficDirection, seeds},
    spawn, time,
};
use sim::{
    content::SECTOR_BYTES,
    machine::End,
    mirrored::COPY,
    model::Ending,
    two_owners::{REGISTER, TwoOwners},
    workload::{self, Load, check_all, random_time},
};
use volume::{Durability, Result};

use super::SECOND;
use crate::{MS, log};

const SEEDS: u64 = 3;
/// Of the first region.
const SOME: Range<usize> = 0..8;
/// Regions are not marked any more.
const CLEARED: Duration = Duration::from_secs(35);

/// Runs `case` on the mirrors of `seeds`.
fn holds(case: impl AsyncFn(&Rc<TwoOwners>)) {
    seeds(SEEDS, |seed| log::shown(|| run(seed, &case)));
}

/// Runs `case` on one mirror, which comes in sync afterwards, has all that was acknowledged, and is equal.
pub(super) fn run(seed: u64, case: &impl AsyncFn(&Rc<TwoOwners>)) {
    let site = TwoOwners::with(seed, |_| "4s");
    site.run(async {
        site.begin().await;
        site.in_sync().await;
        case(&site).await;
        site.in_sync().await;
        check_all(&site, &site.disk(site.owner())).await;
        site.end_owner(site.owner(), End::Stopped).await;
        site.compare();
    });
}

/// Writes `sectors` by an owner.
async fn write(site: &TwoOwners, owner: usize, sectors: Range<usize>) -> Result<()> {
    let at = (sectors.start * SECTOR_BYTES) as u64;
    let (write, data) = site.model.borrow_mut().begin_write(sectors, false);
    let data = Buf::copy_of(&data).into();
    let written = site.disk(owner).write(at, data, Durability::Fua).await;
    let ending = match written {
        Ok(()) => Ending::Durable,
        Err(_) => Ending::Failed,
    };
    site.model.borrow_mut().end_write(write, ending);
    written
}

async fn load(site: &Rc<TwoOwners>, owner: usize, requests: usize) {
    let load = Load {
        errors: true,
        requests,
        pause_max: 20 * MS,
        ..Load::default()
    };
    workload::run(site, &site.disk(owner), load).await;
}

async fn until_in_sync(site: &TwoOwners, copies: CopySet) {
    for _ in 0..600 {
        if site.record().in_sync == copies {
            return;
        }
        time::sleep(100 * MS).await;
    }
    panic!("{:?} does not come to {copies:?}", site.record());
}

/// Cuts the way of an owner to a storage or the register, in both directions.
fn part(site: &TwoOwners, owner: usize, far: usize) {
    for direction in [TrafficDirection::To, TrafficDirection::From] {
        site.cut(owner, far, direction);
    }
}

fn only(place: usize) -> CopySet {
    CopySet::from(CopyId::new(place))
}

/// Rule 1: no copy is out before the register says so, also when it does not answer.
pub(super) async fn the_register_is_lost_as_a_copy_leaves(site: &Rc<TwoOwners>) {
    let owner = site.owner();
    // What is sent to it waits on the way, and gets there in the end.
    site.cut(owner, REGISTER, TrafficDirection::To);
    site.end(0, End::Killed).await;
    // All that waits for the register fails, and what comes then.
    time::sleep(10 * SECOND).await;
    load(site, owner, 4).await;
    site.pause(owner, 60 * SECOND);
    part(site, 1 - owner, 1);
    site.restart(0, false);
    site.relieve().await;
    load(site, 1 - owner, 4).await;
    site.mend(1 - owner, 1);
    site.mend(owner, REGISTER);
}

/// Rule 3: what hangs at a copy when it is fenced has landed before the fence is made, or never does.
pub(super) async fn writes_hang_as_it_is_taken_over(site: &Rc<TwoOwners>) {
    let (owner, mut random) = (site.owner(), site.world.random());
    let of_former = site.clone();
    let old = spawn(async move { load(&of_former, owner, 60).await });
    time::sleep(random_time(&mut random, 200 * MS)).await;
    let hangs = random.index(2);
    site.host(hangs).hang_writes(1.0, 2 * SECOND);
    time::sleep(30 * MS).await;
    // What hangs already is not hurried by that.
    site.host(hangs).hang_writes(0.0, Duration::ZERO);
    site.relieve().await;
    load(site, 1 - owner, 40).await;
    old.await;
    time::sleep(10 * SECOND).await;
}

/// Rule 4: storages that have lost their state directories, and with them all reservations, let no former owner in.
pub(super) async fn storages_forget_while_the_former_owner_stands_still(site: &Rc<TwoOwners>) {
    let owner = site.owner();
    load(site, owner, 4).await;
    let still = 120 * SECOND;
    site.pause(owner, still);
    let begun = time::now();
    site.relieve().await;
    load(site, 1 - owner, 10).await;
    site.end_owner(1 - owner, End::PowerCut).await;
    for storage in 0..2 {
        site.end(storage, End::PowerCut).await;
        site.restart(storage, true);
    }
    time::sleep(still.saturating_sub(time::now() - begun)).await;
    load(site, owner, 10).await;
    site.restart_owner().await;
}

/// Rule 8: what a failed write has left can be read, but not be relied on.
pub(super) async fn the_last_copy_does_not_make_writes_durable(site: &Rc<TwoOwners>) {
    let owner = site.owner();
    load(site, owner, 20).await;
    site.end(0, End::Killed).await;
    load(site, owner, 4).await;
    until_in_sync(site, only(1)).await;
    site.host(1).add_fault(InjectedFault {
        path: Some(COPY.into()),
        ..InjectedFault::new(FaultKind::OwnSync, 5)
    });
    load(site, owner, 10).await;
    site.end(1, End::PowerCut).await;
    site.host(1).clear_faults();
    for storage in [0, 1] {
        site.restart(storage, false);
    }
}

/// Rule 10: a copy that the next owner cannot reach is not fenced.
pub(super) async fn a_copy_is_cut_off_from_the_next_owner(site: &Rc<TwoOwners>) {
    let owner = site.owner();
    load(site, owner, 4).await;
    // Heartbeats are sent no more, so that it hears of nothing.
    time::sleep(CLEARED).await;
    part(site, 1 - owner, 0);
    site.relieve().await;
    let written = write(site, 1 - owner, SOME).await;
    written.expect("it has a copy");
    for _ in 0..4 {
        let read = site.disk(owner).read(0, 4096).await;
        read.expect_err("it is no owner any more");
    }
    site.mend(1 - owner, 0);
}

/// Rule 10: a copy whose way into the set was sent, but not answered, may be in it.
pub(super) async fn a_copy_is_swapped_in_without_an_answer(site: &Rc<TwoOwners>) {
    let owner = site.owner();
    site.end(1, End::Killed).await;
    let written = write(site, owner, SOME).await;
    written.expect("the other one is there");
    until_in_sync(site, only(0)).await;
    // Heartbeats are sent no more.
    time::sleep(CLEARED).await;
    // It is filled slowly.
    site.host(1).hang_writes(1.0, 300 * MS);
    site.restart(1, false);
    while !site.has_noted(1) {
        time::sleep(20 * MS).await;
    }
    site.cut(owner, REGISTER, TrafficDirection::From);
    until_in_sync(site, CopySet::first(2)).await;
    site.host(1).hang_writes(0.0, Duration::ZERO);
    part(site, 1 - owner, 0);
    site.relieve().await;
    let written = write(site, 1 - owner, SOME).await;
    written.expect("it has a copy");
    for _ in 0..4 {
        let read = site.disk(owner).read(0, 4096).await;
        read.expect_err("it is no owner any more");
    }
    site.mend(owner, REGISTER);
    site.mend(1 - owner, 0);
}

/// Rule 11: a region that is being cleared is no marked one.
pub(super) async fn a_region_is_written_while_it_is_cleared(site: &Rc<TwoOwners>) {
    let (owner, mut random) = (site.owner(), site.world.random());
    for _ in 0..2 {
        // What was not written between two ticks is cleared: when, tells the first time.
        while site.is_marked(0, 0) {
            time::sleep(25 * MS).await;
        }
        let written = write(site, owner, SOME).await;
        written.expect("all is well");
        time::sleep(9 * SECOND).await;
    }
    time::sleep(10 * SECOND + 800 * MS).await;
    for storage in 0..2 {
        site.host(storage).hang_writes(1.0, 900 * MS);
    }
    time::sleep(200 * MS + random_time(&mut random, 200 * MS)).await;
    let of_client = site.clone();
    let writing = spawn(async move { write(&of_client, owner, SOME).await });
    let has_diverged = || {
        let copies = [0, 1].map(|place| site.copy(place));
        let differs = copies[0][..4096] != copies[1][..4096];
        differs && !site.is_marked(0, 0) && !site.is_marked(1, 0)
    };
    for _ in 0..80 {
        if has_diverged() {
            break;
        }
        time::sleep(25 * MS).await;
    }
    site.end_owner(owner, End::PowerCut).await;
    for storage in 0..2 {
        site.end(storage, End::PowerCut).await;
        site.host(storage).hang_writes(0.0, Duration::ZERO);
        site.restart(storage, false);
    }
    site.restart_owner().await;
    drop(writing.await);
}

/// Rule 12: what only the returning copy's bitmap marks, only that copy has.
pub(super) async fn a_copy_was_written_that_the_next_owner_begins_without(site: &Rc<TwoOwners>) {
    let owner = site.owner();
    time::sleep(CLEARED).await;
    for far in [0, REGISTER] {
        part(site, owner, far);
    }
    // The first copy is given up, but the register does not know.
    time::sleep(8 * SECOND).await;
    let of_client = site.clone();
    let writing = spawn(async move { write(&of_client, owner, SOME).await });
    time::sleep(2 * SECOND).await;
    site.end_owner(owner, End::Killed).await;
    for far in [0, REGISTER] {
        site.mend(owner, far);
    }
    part(site, 1 - owner, 1);
    site.relieve().await;
    writing.await.expect_err("it was never acknowledged");
    assert_ne!(
        site.copy(0)[..4096],
        site.copy(1)[..4096],
        "nothing has landed"
    );
    site.mend(1 - owner, 1);
}

macro_rules! cases {
    ($($case:ident;)*) => {
        mod in_hard_cases {
            $(#[test]
            fn $case() {
                super::holds(super::$case);
            })*
        }
    };
}

cases! {
    the_register_is_lost_as_a_copy_leaves;
    writes_hang_as_it_is_taken_over;
    storages_forget_while_the_former_owner_stands_still;
    the_last_copy_does_not_make_writes_durable;
    a_copy_is_cut_off_from_the_next_owner;
    a_copy_is_swapped_in_without_an_answer;
    a_region_is_written_while_it_is_cleared;
    a_copy_was_written_that_the_next_owner_begins_without;
}
