//! What a mirror does by itself, from time to time: it looks whether calls and requests take too long, clears regions that are
//! cold, sends heartbeats, looks whether a copy in sync is lost, and whether one that is out can be reached, sets the pace at
//! which a copy is filled, and tells how it is.

use std::{
    cell::RefCell,
    rc::{Rc, Weak},
};

use ::mirror::{CopyId, MirrorEvent, MirrorPhase, Stand};
use engine::{Duration, Instant, spawn, task, time};

use super::{
    compare,
    driver::{Driver, OLDER, living},
};
use crate::{Error, ErrorKind, SetClaim, member::Order};

/// How often the rest is looked at.
const TURN: Duration = Duration::from_millis(250);
/// Between two ticks. A region that was not written for that long is cleared, and copies that are written to get a
/// heartbeat.
const TICK: Duration = Duration::from_secs(10);
/// Between two looks at a copy that is out, at first and at most.
const LOOK_FIRST: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(60);
/// The most while nothing is served: everybody waits for it.
const LOOK_MAX_WAITED_FOR: Duration = Duration::from_secs(4);
/// Between two proofs that the mirror is still ours, for those above who answer from memory.
const PROOF: Duration = Duration::from_secs(1);
/// Between two pieces of filling while requests come, and while none do: 1 MiB each.
const FILL_BUSY: Duration = Duration::from_millis(40);
const FILL_IDLE: Duration = Duration::from_millis(2);

/// Begins the upkeep of `driver`, until it ends. `claim` is that of those above it.
pub(super) fn begin(driver: &Rc<Driver>, claim: SetClaim) {
    spawn(turns(Rc::downgrade(driver)));
    spawn(fill(Rc::downgrade(driver)));
    spawn(prove(Rc::downgrade(driver), claim));
    spawn(compare::answer(Rc::downgrade(driver)));
    spawn(expire(Rc::downgrade(driver)));
    for copy in driver.places() {
        spawn(give_up_late(Rc::downgrade(driver), copy));
        spawn(look(Rc::downgrade(driver), copy));
    }
}

async fn turns(driver: Weak<Driver>) {
    let mut ticked = time::now();
    let told = RefCell::new(None);
    let mut has_begun = false;
    while let Some(this) = living(&driver) {
        let is_serving = this.is_serving();
        if is_serving && !std::mem::replace(&mut has_begun, true) {
            // A copy that was set back to before this start is known by that, however short it is.
            this.tell(MirrorEvent::Beat);
        }
        let now = time::now();
        if now - ticked >= TICK {
            ticked = now;
            // What is cleared at the next tick is older than this heartbeat: a copy that was set back to before it was
            // written is known by that, once the bitmap tells of it no more.
            if this.takes_heartbeat() {
                this.tell(MirrorEvent::Beat);
            }
            this.tell(MirrorEvent::Tick);
        }
        this.report();
        log(&this, &told);
        drop(this);
        time::sleep(TURN).await;
    }
}

/// Logs which copies are in sync, when that has changed.
fn log(driver: &Driver, told: &RefCell<Option<Vec<Stand>>>) {
    if !driver.is_serving() {
        return;
    }
    let places = driver.places();
    let stands: Vec<Stand> = places.map(|it| driver.machine(|m| m.stand(it))).collect();
    let before = told.replace(Some(stands.clone()));
    for (place, stand) in driver.places().zip(&stands) {
        let was = before.as_ref().map(|before| before[place.place()]);
        if was == Some(*stand) {
            continue;
        }
        let of = driver.copy(place);
        let (mirror, copy) = (&driver.name, &of.name);
        match stand {
            Stand::InSync => {
                of.recovers();
                tracing::info!(mirror, copy, "the copy is in sync");
            }
            Stand::Filling => {
                of.recovers();
                tracing::info!(
                    mirror,
                    copy,
                    "the copy is back, and gets what it has missed"
                );
            }
            Stand::Out if of.trouble().is_none() => tracing::info!(
                mirror,
                copy,
                "the copy lacks what was written without it, and is filled soon"
            ),
            Stand::Out => tracing::warn!(
                mirror,
                copy,
                "the copy is out: the mirror goes on without it"
            ),
            Stand::Fencing | Stand::Leaving => {}
        }
    }
}

/// Fails requests that take too long.
async fn expire(driver: Weak<Driver>) {
    while let Some(this) = living(&driver) {
        let next = this.expire();
        drop(this);
        time::sleep_until(next).await;
    }
}

/// Gives `copy` up when a call takes too long there.
async fn give_up_late(driver: Weak<Driver>, copy: CopyId) {
    while let Some(this) = living(&driver) {
        let next = this.give_up_late(copy);
        drop(this);
        time::sleep_until(next).await;
    }
}

/// Looks whether `copy` can be reached while it is out, less and less often if it is of no use.
async fn look(driver: Weak<Driver>, copy: CopyId) {
    let (mut pause, mut missed) = (LOOK_FIRST, time::now());
    loop {
        time::sleep(pause).await;
        let Some(this) = living(&driver) else { return };
        let place = this.copy(copy);
        // Its newer disk may be put back while it is waited for.
        if this.machine(|it| it.phase() == MirrorPhase::Fencing && it.misses_beats(copy)) {
            this.give_up((copy, &place), &Error::new(ErrorKind::Unreachable, OLDER));
        }
        if !this.machine(|it| it.misses(copy)) {
            // One that comes and goes is not taken back each time at once.
            if time::now() - missed >= LOOK_MAX {
                pause = LOOK_FIRST;
            }
            continue;
        }
        missed = time::now();
        if !place.calls.are_over() || place.next.borrow().is_some() {
            continue;
        }
        let asked = {
            let _call = place.calls.begin();
            place.volume.member(Order::Look).await
        };
        match asked {
            Ok(_) => {
                // An attempt takes a key: there are 16 million in an epoch.
                let is_serving = this.is_serving();
                let most = if is_serving {
                    LOOK_MAX
                } else {
                    LOOK_MAX_WAITED_FOR
                };
                pause = (pause * 2).min(most);
                this.tell(MirrorEvent::Back(copy));
            }
            Err(error) => {
                place.suffers(&error);
            }
        }
    }
}

/// Lets one more piece be filled when it is time, while a copy returns.
async fn fill(driver: Weak<Driver>) {
    loop {
        let Some(this) = living(&driver) else { return };
        if !this.is_filling() {
            drop(this);
            time::sleep(TURN).await;
            continue;
        }
        let pause = match this.take_busy() {
            true => FILL_BUSY,
            false => FILL_IDLE,
        };
        this.tell(MirrorEvent::Room);
        drop(this);
        time::sleep(pause).await;
    }
}

/// Proves again and again that the mirror is still ours, by every copy in sync.
async fn prove(driver: Weak<Driver>, claim: SetClaim) {
    let claim = claim.of_child(0);
    loop {
        time::sleep(PROOF).await;
        let Some(this) = driver.upgrade() else { return };
        if let Err(error) = this.check() {
            return claim.end(error);
        }
        if !this.is_serving() {
            continue; // Fences are being made.
        }
        let began: Instant = time::now();
        let in_sync = this.machine(|it| it.record().in_sync);
        let proofs = in_sync.iter().map(|copy| {
            let this = this.clone();
            Box::pin(async move { this.prove(copy).await })
        });
        let proofs = task::join_all(proofs).await;
        let is_proved = proofs.iter().all(|proof: &Result<(), Error>| proof.is_ok());
        if is_proved && this.check().is_ok() {
            claim.proved(began);
        }
    }
}
