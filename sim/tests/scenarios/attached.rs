//! A volume that one machine has attached, on the disks of a daemon on another. Each is stopped, killed, cut from power
//! and restarted while the client writes, and the daemon is given other configurations, even one without the disks.
//! Promised data reads back, and the disk keeps its identity.

use std::rc::Rc;

use engine::{
    fs::{OpenOptions, SharedFile},
    sim::{Random, World, seeds},
    spawn, task, time,
};
use sim::{
    Count, assert_occurred,
    attached::{Attached, Served},
    attachment_machine::{AttachmentMachine, VOLUME},
    machine::End,
    workload::{self, Load, Tally, check_all, random_time},
};
use volume::ErrorKind;

use crate::MS;

const SEEDS: u64 = 100;
const ROUNDS: usize = 3;

/// How often the hard cases occurred, over all seeds.
#[derive(Default)]
struct Met {
    storage_cuts_unflushed: Count,
    storage_cuts_in_flight: Count,
    user_cuts_in_flight: Count,
    user_kills_in_flight: Count,
    user_stops_in_flight: Count,
    applied_in_flight: Count,
    disks_taken_away: Count,
    both: Count,
    refused: Count,
    flushes_failed: Count,
    reads_and_writes_failed: Count,
}

/// What happens to the storage in a round.
#[derive(Clone, Copy)]
enum Event {
    Fall(End),
    /// It serves something else for a while.
    Apply(Served),
}

fn draw_end(random: &mut Random) -> End {
    let ends = [End::PowerCut, End::PowerCut, End::Killed, End::Stopped];
    ends[random.index(ends.len())]
}

async fn storage_event(site: Rc<Attached>, event: Event, mut random: Random, met: Rc<Met>) {
    time::sleep(random_time(&mut random, 60 * MS)).await;
    let (is_in_flight, is_unflushed) = {
        let model = site.model.borrow();
        (model.in_flight() > 0, model.unflushed() > 0)
    };
    let down = random_time(&mut random, 1_500 * MS);
    match event {
        Event::Fall(how) => {
            let is_cut = how == End::PowerCut;
            met.storage_cuts_in_flight.when(is_cut && is_in_flight);
            met.storage_cuts_unflushed.when(is_cut && is_unflushed);
            site.end_storage(how).await;
            met.both.when(!site.user.host().is_on());
            time::sleep(down).await;
            site.storage.restart();
            site.storage.ready().await;
        }
        Event::Apply(served) => {
            met.applied_in_flight.when(is_in_flight);
            met.disks_taken_away.when(served == Served::Other);
            let changes = site.apply(served).await;
            assert!(!changes.is_empty(), "{served:?} is something else");
            time::sleep(down).await;
            site.apply(Served::Disks).await;
        }
    }
}

async fn user_falls(site: Rc<Attached>, how: End, mut random: Random, met: Rc<Met>) {
    time::sleep(random_time(&mut random, 60 * MS)).await;
    let is_in_flight = site.model.borrow().in_flight() > 0;
    let counter = match how {
        End::PowerCut => &met.user_cuts_in_flight,
        End::Killed => &met.user_kills_in_flight,
        End::Stopped => &met.user_stops_in_flight,
    };
    counter.when(is_in_flight);
    site.end_user(how).await;
    time::sleep(random_time(&mut random, 1_500 * MS)).await;
    site.restart_user().await;
}

/// Rounds of load in each of which something happens to the storage, the user or both.
async fn rounds(site: &Rc<Attached>, met: &Rc<Met>) -> Tally {
    let mut all = Tally::default();
    let mut random = site.world.random();
    let volume = site.begin().await;
    let identity = site.identity().await;
    for _ in 0..ROUNDS {
        let event = match random.below(4) {
            0 => None,
            1 => Some(Event::Apply(Served::More)),
            2 => Some(Event::Apply(Served::Other)),
            _ => Some(Event::Fall(draw_end(&mut random))),
        };
        let falls = event.is_none() || random.chance(0.4);
        let falls = falls.then(|| draw_end(&mut random));
        let mut happens = Vec::new();
        if let Some(event) = event {
            let random = site.world.random();
            happens.push(spawn(storage_event(
                site.clone(),
                event,
                random,
                met.clone(),
            )));
        }
        if let Some(how) = falls {
            let random = site.world.random();
            happens.push(spawn(user_falls(site.clone(), how, random, met.clone())));
        }
        let load = Load {
            errors: true,
            ..Load::default()
        };
        let tally = workload::run(site, &volume, load).await;
        task::join_all(happens).await;
        check_all(site, &volume).await;
        assert_eq!(site.identity().await, identity, "it is another disk");
        let _ = workload::flush(site, &volume).await;
        if site.model.borrow().flush_failed() {
            met.flushes_failed.add(1);
            site.end_user(draw_end(&mut random)).await;
            site.restart_user().await;
            check_all(site, &volume).await;
        }
        all.good += tally.good;
        all.failed.extend(tally.failed);
        all.flush_failed.extend(tally.flush_failed);
    }
    // After a successful flush and a loss of all power, exactly the written data survives.
    let flushed = workload::flush(site, &volume).await;
    flushed.expect("nothing has fallen since the last one");
    site.end_storage(End::PowerCut).await;
    site.end_user(End::PowerCut).await;
    site.storage.restart();
    site.restart_user().await;
    check_all(site, &volume).await;
    assert_eq!(site.identity().await, identity, "it is another disk");
    all
}

#[test]
fn an_attached_volume_keeps_what_it_promised_whatever_falls_when() {
    let met = Rc::new(Met::default());
    seeds(SEEDS, |seed| {
        let site = Attached::new(seed);
        let tally = site.run(rounds(&site, &met));
        for kind in tally.failed.iter().chain(&tally.flush_failed) {
            let told = [ErrorKind::Medium, ErrorKind::Unreachable];
            assert!(told.contains(kind), "{kind:?}");
        }
        met.reads_and_writes_failed.add(tally.failed.len());
        met.refused.add(site.user.refused());
    });
    assert_occurred([
        (
            "storage cut with unflushed data",
            met.storage_cuts_unflushed.get(),
        ),
        ("storage cut under load", met.storage_cuts_in_flight.get()),
        ("user cut under load", met.user_cuts_in_flight.get()),
        ("user killed under load", met.user_kills_in_flight.get()),
        ("user stopped under load", met.user_stops_in_flight.get()),
        ("applied under load", met.applied_in_flight.get()),
        ("disks taken away", met.disks_taken_away.get()),
        ("both down", met.both.get()),
        ("not opened at first", met.refused.get()),
        ("flushes failed", met.flushes_failed.get()),
        ("reads and writes failed", met.reads_and_writes_failed.get()),
    ]);
}

#[test]
fn the_same_seed_gives_the_same_run_of_an_attachment() {
    let run = |seed| {
        let site = Attached::new(seed);
        let tally = site.run(rounds(&site, &Rc::default()));
        (site.world.trace_hash(), tally)
    };
    let first: Vec<_> = (0..3).map(run).collect();
    let again: Vec<_> = (0..3).rev().map(run).collect();
    assert!(first.iter().eq(again.iter().rev()));
}

/// Gives the file at `path` on the current machine another length.
fn set_len(path: &str, len_bytes: u64) {
    let options = OpenOptions {
        write: true,
        create: true,
        ..OpenOptions::default()
    };
    let file = SharedFile::open(path.as_ref(), &options).expect("it opens");
    file.set_len_bytes(len_bytes).expect("there is room");
}

#[test]
fn an_attached_file_that_has_grown_may_not_shrink_while_nobody_has_it() {
    const FILE: &str = "/srv/db.img";
    seeds(10, |seed| {
        let world = World::new(seed);
        let host = world.host("user");
        let text = format!("[volume.{VOLUME}]\nfile = {{ path = \"db.img\" }}\n");
        let machine = AttachmentMachine::new(host.clone(), 1, &text);
        let client = world.host("client");
        world.block_on(&client, async {
            let resize = |kib: u64| host.spawn(async move { set_len(FILE, kib << 10) });
            resize(64).await;
            machine.start();
            machine.ready().await;
            assert!(!machine.look_again().await, "nothing has changed");
            resize(96).await;
            assert!(machine.look_again().await);
            let description = machine.describe().await;
            assert_eq!(description.volumes[VOLUME].tree.size_bytes, Some(96 << 10));
            machine.end(End::PowerCut).await;
            host.restart();
            resize(64).await;
            let refused = machine.try_once().await.expect_err("it is shorter");
            assert!(refused.to_string().contains("db.img"), "{refused}");
            resize(96).await;
            machine.try_once().await.expect("it is as long as it was");
        });
    });
}
