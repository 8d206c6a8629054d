//! Blocking work: it runs off the lane, in any number, and its answer comes back.

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use engine::{
    Lane, LaneConfig,
    blocking::{WorkKind, look_up, run, run_within},
    sim::{World, seeds},
    spawn,
    task::join_all,
    time::{Duration, sleep, timeout},
};

use crate::site::{MS, Site};

contract![
    the_answer_comes_to_the_lane_that_asked,
    more_work_than_there_is_room_for_is_done_once_each,
    what_nobody_waits_for_any_more_ends_or_is_not_begun,
    an_address_needs_nobody_to_look_it_up,
];

async fn the_answer_comes_to_the_lane_that_asked(site: Site) {
    let other = site.other.clone();
    let asked = site.other.call(move || async move {
        let answer = run(WorkKind::Files, || 6 * 7).await.expect("it is run");
        (answer, other.is_current())
    });
    assert_eq!(asked.await, Some((42, true)));
    assert_eq!(run(WorkKind::Names, || 1).await.expect("it is run"), 1);
}

async fn more_work_than_there_is_room_for_is_done_once_each(_: Site) {
    let done = Arc::new(AtomicUsize::new(0));
    let work = (0..500).map(|n| {
        let done = done.clone();
        run(WorkKind::Files, move || {
            done.fetch_add(1, Ordering::SeqCst);
            n
        })
    });
    let answers = join_all(work.map(Box::pin)).await;
    for (n, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.expect("it is run"), n);
    }
    assert_eq!(done.load(Ordering::SeqCst), 500);
}

async fn what_nobody_waits_for_any_more_ends_or_is_not_begun(_: Site) {
    let held = Arc::new(());
    for pause in 0..8 {
        let theirs = held.clone();
        let work = run(WorkKind::Files, move || drop(theirs));
        let _ = timeout(pause * MS / 4, work).await;
    }
    // However each ended, it has released what it held.
    while Arc::strong_count(&held) > 1 {
        sleep(MS).await;
    }
}

async fn an_address_needs_nobody_to_look_it_up(_: Site) {
    for host in ["127.0.0.1", "::1"] {
        let found = look_up(host, 3260, MS).await.expect("an address");
        assert_eq!(
            (found.ip().to_string().as_str(), found.port()),
            (host, 3260)
        );
    }
}

/// Work that hangs until it is released, and a count of how much of it has begun.
#[derive(Default)]
struct Hang {
    let_go: Mutex<bool>,
    changed: Condvar,
    begun: AtomicUsize,
}

impl Hang {
    fn hang(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let mut let_go = self.let_go.lock().expect("nobody panics here");
        while !*let_go {
            let_go = self.changed.wait(let_go).expect("nobody panics here");
        }
    }

    fn end(&self) {
        *self.let_go.lock().expect("nobody panics here") = true;
        self.changed.notify_all();
    }
}

#[test]
fn work_that_hangs_stops_neither_its_lane_nor_other_kinds_of_work() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let hang = Arc::new(Hang::default());
        // More than the threads and the queue can take.
        let hanging: Vec<_> = (0..200)
            .map(|_| {
                let hang = hang.clone();
                spawn(run(WorkKind::Names, move || hang.hang()))
            })
            .collect();
        while hang.begun.load(Ordering::SeqCst) < 4 {
            sleep(MS).await;
        }
        for n in 0..100 {
            assert_eq!(run(WorkKind::Files, move || n).await.expect("it is run"), n);
        }
        let late = run_within(20 * MS, WorkKind::Names, || {
            unreachable!("nobody waits for it")
        });
        let error = late.await.expect_err("all threads hang");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "no answer within 20ms");
        assert_eq!(hang.begun.load(Ordering::SeqCst), 4, "threads are bounded");
        hang.end();
        for hung in hanging {
            hung.await.expect("it ends");
        }
        assert_eq!(hang.begun.load(Ordering::SeqCst), 200);
    });
}

#[test]
fn a_panic_is_an_error_of_its_own_work_only() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        for n in 0..20 {
            let failed: io::Result<()> =
                run(WorkKind::Extents, || panic!("as this test wants")).await;
            let error = failed.expect_err("it panicked");
            assert_eq!(error.to_string(), "the work panicked");
            assert_eq!(
                run(WorkKind::Extents, move || n).await.expect("it is run"),
                n
            );
        }
    });
}

#[test]
fn a_name_is_looked_up() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let found = lane.block_on(look_up("localhost", 3260, Duration::from_secs(60)));
    assert!(found.expect("it is in /etc/hosts").ip().is_loopback());
}

#[test]
fn a_simulated_name_is_that_of_a_machine() {
    seeds(10, |seed| {
        let world = World::new(seed);
        let (here, there) = (world.host("here"), world.host("there"));
        let expected = there.addr(3260);
        world.block_on(&here, async move {
            let limit = Duration::from_secs(1);
            let found = look_up("there", 3260, limit).await;
            assert_eq!(found.expect("it is known"), expected);
            let error = look_up("nowhere", 3260, limit).await;
            let error = error.expect_err("no machine is called so");
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        });
    });
}

#[test]
fn simulated_work_lets_others_run_before_it_and_before_its_answer() {
    let (mut before, mut between) = (0, 0);
    for seed in 0..20 {
        let world = World::new(seed);
        let here = world.host("here");
        world.block_on(&here, async {
            let steps = Arc::new(AtomicUsize::new(0));
            let counted = steps.clone();
            spawn(async move {
                loop {
                    sleep(Duration::from_micros(100)).await;
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            });
            let seen = steps.clone();
            let done = run(WorkKind::Files, move || seen.load(Ordering::SeqCst)).await;
            let done = done.expect("it is run");
            before += usize::from(done > 0);
            between += usize::from(steps.load(Ordering::SeqCst) > done);
        });
    }
    assert!(before > 10 && between > 10, "{before} and {between} of 20");
}
