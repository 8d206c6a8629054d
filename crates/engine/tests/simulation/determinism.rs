//! The seed alone decides what happens.

use std::{
    cell::RefCell, collections::BTreeSet, env, os::unix::process::ExitStatusExt, panic,
    process::Command, rc::Rc, task::Poll, thread, time::Duration,
};

use engine::{
    Buf,
    net::{TcpListener, TcpStream},
    sim::{Host, World, WorldConfig},
    spawn,
    task::yield_now,
    time::{sleep, timeout},
};

use crate::{open, pattern, send};

/// Runs an echo server that also writes what it receives to a file, and syncs now and then.
fn serve(host: &Host) {
    let addr = host.addr(7);
    host.spawn(async move {
        let listener = TcpListener::bind(addr).expect("a free port");
        let mut at = 0;
        loop {
            let stream = listener.accept().await.expect("a connection");
            let file = open("/log");
            at += 100_000;
            spawn(async move {
                let mut buf = Buf::zeroed(4096);
                for round in 0.. {
                    let result;
                    (result, buf) = stream.receive(buf, 0).await;
                    let Ok(n @ 1..) = result else { break };
                    let bytes = Buf::copy_of(&buf[..n]).into();
                    file.write_all_at(at + round * 4096, bytes, round % 3 == 0)
                        .await
                        .expect("a healthy disk");
                    if round % 5 == 0 {
                        file.sync().await.expect("a healthy disk");
                    }
                    if send(&stream, &buf[..n]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
}

/// Runs three clients, a partition and two power cuts. Returns the trace and the disk's content.
fn run(seed: u64) -> (u64, Option<Vec<u8>>) {
    let world = World::new(seed);
    let server = world.host_with_lanes("server", 2);
    let clients: Vec<Host> = (0..3).map(|i| world.host(&format!("client {i}"))).collect();
    serve(&server);
    for (i, client) in clients.iter().enumerate() {
        let addr = server.addr(7);
        client.spawn(async move {
            for round in 0..40u64 {
                let attempt = timeout(Duration::from_millis(20), async {
                    let stream = TcpStream::connect(addr).await?;
                    send(&stream, &pattern(3000, round)).await?;
                    stream.receive_exact(Buf::zeroed(3000), 0).await.0
                });
                let _ = attempt.await;
                sleep(Duration::from_micros(700 * i as u64)).await;
            }
        });
    }
    let mut chance = world.random();
    for client in &clients[..2] {
        world.run_for(Duration::from_millis(30 + chance.below(20)));
        world.partition(&server, client);
        world.run_for(Duration::from_millis(chance.below(10)));
        world.power_cut(&server);
        world.heal(&server, client);
        world.run_for(Duration::from_millis(5));
        world.restart(&server);
        serve(&server);
    }
    world.run_for(Duration::from_millis(100));
    (world.trace_hash(), server.read_file("/log"))
}

#[test]
fn a_seed_gives_the_same_run_beside_other_worlds_and_lanes() {
    let first: Vec<_> = (0..8).map(run).collect();
    let others = thread::spawn(|| (100..130).map(run).count());
    let again: Vec<_> = (0..8).rev().map(run).collect();
    assert!(first.iter().eq(again.iter().rev()));
    let traces: BTreeSet<u64> = first.iter().map(|(trace, _)| *trace).collect();
    assert_eq!(traces.len(), 8, "different seeds give different runs");
    assert_eq!(others.join().expect("the other worlds end well"), 30);
}

#[test]
fn ready_tasks_run_in_every_order() {
    let mut orders = BTreeSet::new();
    for seed in 0..200 {
        let world = World::new(seed);
        let host = world.host("host");
        let order = Rc::new(RefCell::new(Vec::new()));
        for i in 0..4 {
            let order = order.clone();
            host.spawn(async move { order.borrow_mut().push(i) });
        }
        world.run_for(Duration::from_millis(1));
        orders.insert(order.take());
    }
    assert_eq!(orders.len(), 24);
}

#[test]
fn a_late_waker_of_an_earlier_block_on_keeps_no_lane_busy() {
    let config = WorldConfig {
        steps_max: 10_000,
        ..WorldConfig::default()
    };
    let world = World::with_config(1, config);
    let (one, two) = (world.host("one"), world.host("two"));
    let mut earlier = None;
    world.block_on(&one, async {
        std::future::poll_fn(|cx| {
            earlier = Some(cx.waker().clone());
            Poll::Ready(())
        })
        .await;
    });
    world.block_on(&two, async move {
        earlier.expect("it ran").wake();
        sleep(Duration::from_secs(1)).await;
    });
}

/// The message of the panic that `run` must end with.
fn panic_of(run: impl FnOnce()) -> String {
    let panic =
        panic::catch_unwind(panic::AssertUnwindSafe(run)).expect_err("it must not end well");
    panic
        .downcast_ref::<String>()
        .cloned()
        .expect("a message with values")
}

#[test]
fn a_deadlock_is_an_error_that_names_the_seed_and_who_waits() {
    let message = panic_of(|| {
        let world = World::new(4711);
        let host = world.host("server");
        let addr = host.addr(3260);
        world.block_on(&host, async move {
            let listener = TcpListener::bind(addr).expect("a free port");
            let _ = listener.accept().await;
        });
    });
    assert!(message.contains("seed 4711"), "{message}");
    assert!(message.contains("deadlock"), "{message}");
    assert!(
        message.contains("server waits: accept on 10.0.0.1:3260"),
        "{message}"
    );
}

#[test]
fn a_world_that_takes_too_long_or_runs_in_circles_is_stopped() {
    let message = panic_of(|| {
        let world = World::new(1);
        let host = world.host("sleeper");
        world.block_on(&host, async {
            sleep(Duration::from_secs(7 * 24 * 3600)).await
        });
    });
    assert!(message.contains("time_max"), "{message}");
    let message = panic_of(|| {
        let config = WorldConfig {
            steps_max: 10_000,
            ..WorldConfig::default()
        };
        let world = World::with_config(1, config);
        let host = world.host("spinner");
        world.block_on(&host, async {
            loop {
                yield_now().await;
            }
        });
    });
    assert!(message.contains("steps_max"), "{message}");
}

/// Runs `task` on a machine called `looper`, under seed 17 and these limits. Does not return if it loops.
fn loops(config: WorldConfig, task: impl Future<Output = ()> + 'static) {
    let world = World::with_config(17, config);
    let (host, other) = (world.host("looper"), world.host("other"));
    host.spawn(task);
    world.block_on(&other, async { sleep(Duration::from_secs(3600)).await });
}

/// Checks that `message` says that seed 17 of `test` has exceeded the limit called `limit`, and how to replay it.
fn assert_names_the_run(message: &str, test: &str, limit: &str) {
    assert!(message.contains(&format!("seed 17 of {test}")), "{message}");
    let replay = "SANSTONE_SEED=17 cargo test -p sanstone-engine";
    assert!(message.contains(replay), "{message}");
    assert!(message.contains(&format!("{test} -- --exact")), "{message}");
    assert!(message.contains(limit), "{message}");
}

#[test]
fn a_task_that_loops_is_stopped_and_its_run_is_named() {
    let test = "determinism::a_task_that_loops_is_stopped_and_its_run_is_named";
    // It is ready again at once, for ever.
    let message = panic_of(|| {
        let config = WorldConfig {
            busy_turns_max: 10_000,
            ..WorldConfig::default()
        };
        loops(config, async {
            loop {
                yield_now().await;
            }
        });
    });
    assert_names_the_run(&message, test, "busy_turns_max");
    // It never returns to the executor. The sleep is over before it begins.
    let message = panic_of(|| {
        loops(WorldConfig::default(), async {
            loop {
                sleep(Duration::ZERO).await;
            }
        });
    });
    assert_names_the_run(&message, test, "turn_calls_max");
    assert!(message.contains("looper"), "{message}");
}

#[test]
fn a_task_that_loops_without_the_engine_ends_its_process_and_its_run_is_named() {
    const CHILD: &str = "SANSTONE_TEST_LOOPS";
    let test =
        "determinism::a_task_that_loops_without_the_engine_ends_its_process_and_its_run_is_named";
    if env::var_os(CHILD).is_some() {
        let config = WorldConfig {
            turn_cpu_max: Duration::from_millis(300),
            ..WorldConfig::default()
        };
        loops(config, async {
            loop {
                std::future::ready(()).await;
            }
        });
    }
    let program = env::current_exe().expect("a test program");
    let mut child = Command::new(program);
    child.args(["--exact", test]).env(CHILD, "1");
    let child = child.output().expect("it starts");
    assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{child:?}");
    let message = String::from_utf8_lossy(&child.stderr);
    assert_names_the_run(&message, test, "turn_cpu_max");
}

#[test]
fn a_long_run_with_a_busy_task_is_within_the_limits() {
    let config = WorldConfig {
        busy_turns_max: 1_000,
        turn_calls_max: 1_000,
        ..WorldConfig::default()
    };
    let world = World::with_config(1, config);
    let host = world.host("worker");
    world.block_on(&host, async {
        for _ in 0..100 {
            for _ in 0..100 {
                yield_now().await;
            }
            sleep(Duration::from_micros(1)).await;
        }
    });
}
