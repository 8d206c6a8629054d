//! Lanes: passing messages, waking from outside, being driven again, and being idle.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{Arc, Mutex},
    task::{Poll, Waker},
    thread,
};

use engine::{
    Buf, Gather, Lane, LaneConfig, LaneFuture, Waiting,
    net::{TcpListener, TcpStream},
    sim::{World, seeds},
    spawn,
    time::{Duration, now, sleep, turn_began},
};

use crate::site::{MS, Site, anywhere};

contract![
    a_call_runs_on_the_other_lane_and_answers_here,
    a_spawn_runs_on_the_other_lane,
    what_another_lane_asks_for_begins_at_its_own_time,
    a_call_to_an_ended_lane_gives_none,
    a_call_that_its_lane_cannot_finish_gives_none,
    boxed_futures_nest_and_are_used_again,
];

async fn a_call_runs_on_the_other_lane_and_answers_here(site: Site) {
    assert!(!site.other.is_current());
    let handle = site.other.clone();
    let answer = site.other.call(move || async move {
        assert!(handle.is_current());
        sleep(2 * MS).await;
        6 * 7
    });
    assert_eq!(answer.await, Some(42));
    let mut calls = Vec::new();
    for i in 0..200u32 {
        let other = site.other.clone();
        calls.push(spawn(
            async move { other.call(move || async move { i }).await },
        ));
    }
    for (i, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await, Some(i as u32));
    }
}

async fn a_spawn_runs_on_the_other_lane(site: Site) {
    let done = Arc::new(Mutex::new(false));
    let set = done.clone();
    site.other.spawn(move || async move {
        sleep(MS).await;
        *set.lock().expect("nobody panics here") = true;
    });
    while !*done.lock().expect("nobody panics here") {
        sleep(MS).await;
    }
}

/// Stage times start from this instant, so it must be right even if the turn began before the lane slept. Each lane
/// measures by a clock of its own, and two of them differ by microseconds; a turn that began before the sleep would be
/// milliseconds too early.
async fn what_another_lane_asks_for_begins_at_its_own_time(site: Site) {
    for _ in 0..10 {
        sleep(5 * MS).await;
        let asked = now();
        let began = site.other.call(|| {
            let began = turn_began();
            async move { began }
        });
        let began = began.await.expect("it answers");
        assert!(asked.since(began) < MS, "{asked:?} {began:?}");
    }
}

async fn a_call_to_an_ended_lane_gives_none(site: Site) {
    assert_eq!(site.doomed.call(|| async { 1 }).await, Some(1));
    site.end_doomed();
    assert_eq!(site.doomed.call(|| async { 1 }).await, None);
    site.doomed
        .spawn(|| async { unreachable!("nobody runs it") });
    assert!(!site.doomed.is_current());
}

async fn a_call_that_its_lane_cannot_finish_gives_none(site: Site) {
    let doomed = site.doomed.clone();
    let call = spawn(async move {
        doomed
            .call(|| async { sleep(Duration::from_secs(3600)).await })
            .await
    });
    sleep(5 * MS).await;
    site.end_doomed();
    assert_eq!(call.await, None);
}

async fn boxed_futures_nest_and_are_used_again(_: Site) {
    fn down(depth: u32) -> LaneFuture<'static, u32> {
        LaneFuture::new(async move {
            let big = [depth as u8; 3000];
            if depth == 0 {
                sleep(Duration::from_micros(10)).await;
                return u32::from(big[2999]);
            }
            down(depth - 1).await + u32::from(big[17])
        })
    }
    for _ in 0..20 {
        assert_eq!(down(12).await, 78);
    }
}

/// Counts ten sleeps of two milliseconds each.
async fn ten_steps(counted: Rc<Cell<u32>>) {
    for _ in 0..10 {
        sleep(2 * MS).await;
        counted.set(counted.get() + 1);
    }
}

#[test]
fn a_lane_that_is_driven_again_goes_on_with_its_tasks() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let steps = Rc::new(Cell::new(0));
    let mut task = None;
    lane.block_on(async { task = Some(spawn(ten_steps(steps.clone()))) });
    assert!(steps.get() < 10, "the first call did not wait for the task");
    lane.block_on(async {});
    lane.block_on(task.expect("it was spawned"));
    assert_eq!(steps.get(), 10);
}

#[test]
fn a_simulated_lane_that_is_driven_again_goes_on_with_its_tasks() {
    seeds(10, |seed| {
        let world = World::new(seed);
        let (one, two) = (world.host("one"), world.host("two"));
        let steps = Rc::new(Cell::new(0));
        let task = one.spawn(ten_steps(steps.clone()));
        world.block_on(&one, async {});
        assert_eq!(steps.get(), 0);
        world.run_for(5 * MS);
        assert!((1..=3).contains(&steps.get()), "{}", steps.get());
        world.block_on(&two, task); // awaited on another machine's lane
        assert_eq!(steps.get(), 10);
    });
}

#[test]
fn a_task_is_woken_from_another_thread() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let shared = Arc::new(Mutex::new((0, None::<Waker>)));
    let theirs = shared.clone();
    let thread = thread::spawn(move || {
        for _ in 0..20 {
            thread::sleep(MS);
            let waker = {
                let mut shared = theirs.lock().expect("nobody panics here");
                shared.0 += 1;
                shared.1.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    });
    let all_twenty = std::future::poll_fn(move |cx| {
        let mut shared = shared.lock().expect("nobody panics here");
        if shared.0 == 20 {
            return Poll::Ready(());
        }
        shared.1 = Some(cx.waker().clone());
        Poll::Pending
    });
    lane.block_on(async { spawn(all_twenty).await });
    thread.join().expect("the thread ends well");
}

/// CPU time that this thread has used.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a live timespec.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_lane_uses_no_cpu() {
    let lane = Lane::new(&LaneConfig {
        waiting: Waiting::Latency,
        ..LaneConfig::default()
    })
    .expect("a ring");
    lane.block_on(async {
        let listener = TcpListener::bind(anywhere()).expect("loopback");
        let accept = spawn(async move { listener.accept().await });
        let (began, before) = (now(), cpu_time());
        sleep(300 * MS).await;
        assert!(now() - began >= 300 * MS);
        let used = cpu_time() - before;
        assert!(used < 10 * MS, "{used:?} of CPU in 300 ms of nothing");
        drop(accept);
    });
}

#[test]
fn a_handle_to_an_ended_lane_never_means_another() {
    let ended = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = ended.handle();
    drop(ended);
    for _ in 0..4 {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async { assert!(!handle.is_current()) });
    }
}

#[test]
fn dropping_a_lane_ends_what_it_had_in_flight() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let held = Rc::new(());
    let theirs = held.clone();
    lane.block_on(async move {
        let listener = TcpListener::bind(anywhere()).expect("loopback");
        let client = TcpStream::connect(listener.local_addr())
            .await
            .expect("open");
        let server = listener.accept().await.expect("a connection");
        spawn(async move {
            let _held = theirs;
            let mut gather = Gather::new();
            gather.push_bytes(b"half");
            client.send_all(gather).await.0.expect("open");
            let _ = server.receive_exact(Buf::new(8), 0).await;
            let _ = listener.accept().await;
        });
        sleep(5 * MS).await;
    });
    assert_eq!(Rc::strong_count(&held), 2);
    drop(lane);
    assert_eq!(Rc::strong_count(&held), 1);
}
