//! A session whose target is in both configurations does not notice a change in how long its commands take, either. In
//! a world in which everything always takes the same time, the slowest command while a daemon is switched to and fro is
//! as fast as the slowest while it is left alone.

use std::{cell::Cell, rc::Rc, time::Duration};

use engine::{
    sim::{World, WorldConfig, seeds},
    spawn, time,
};
use sim::{assert_occurred, target_machine::Networks};

use super::{
    Ask, CONFIG, Drawn, FAR, GOOD, KEPT, TEST_UNIT_READY, ask, described, draw, drawn, least_sizes,
    login, paths, start,
};

const SEEDS: u64 = 40;
const WRITE_10: [u8; 10] = [0x2A, 0, 0, 0, 0, 0, 0, 0, 8, 0];
/// How long the disk of the daemon takes for each look at a file: so long is everybody held up on a lane that looks
/// at one itself.
const STALL: Duration = Duration::from_millis(5);
/// What a switch may add to a command: other turns of its lane.
const MARGIN: Duration = Duration::from_micros(5);
/// Commands of a daemon that is left alone.
const COMMANDS: u64 = 300;
/// How often a daemon is switched.
const SWITCHES: usize = 4;

/// A world without chance in what takes how long.
fn calm(seed: u64) -> World {
    let mut config = WorldConfig::default();
    config.net.latency_ns = 50_000..50_001;
    config.net.split_probability = 0.0;
    config.disk.latency_ns = 80_000..80_001;
    config.disk.sync_latency_ns = 500_000..500_001;
    (config.disk.slow_probability, config.disk.short_probability) = (0.0, 0.0);
    config.turn_ns = 100..101;
    World::with_config(seed, config)
}

/// What the commands of the session took.
#[derive(Clone, Copy, Default, Debug)]
struct Took {
    commands: u64,
    slowest_write: Duration,
    slowest_test: Duration,
    /// What was changed.
    changes: u64,
    /// How often that were the paths of a disk in use.
    path_changes: u64,
}

/// Sends commands to the target that stays, one after the other, while the daemon is switched or left alone.
fn took(seed: u64, is_switched: bool) -> Took {
    let world = calm(seed);
    let mut random = world.random();
    let lanes = 1 + random.index(2);
    let server = world.host_with_lanes("server", lanes);
    let client = world.host("client");
    let storage = paths::storage(&world, Networks::TwoOfOneGroup);
    let texts = [(); 2].map(|()| draw(&mut random, lanes, &storage, least_sizes(), None));
    let [before, after] = &texts;
    let are_paths_changed = before.serves(FAR) && after.serves(FAR) && before.far != after.far;
    drawn::prepare(&server);
    server.put_file(CONFIG, before.text.as_bytes());
    world.block_on(&client, async {
        storage.ready().await;
        let asks = start(&server, lanes);
        described(&asks).await;
        let session = login(&server, KEPT).await;
        server.stall_disk(STALL);
        let (is_over, took) = (Rc::new(Cell::new(false)), Rc::new(Cell::<Took>::default()));
        let loaded = spawn({
            let (is_over, took) = (is_over.clone(), took.clone());
            async move {
                while !is_over.get() {
                    for (cdb, data) in [(&WRITE_10[..], &[7; 4096][..]), (&TEST_UNIT_READY, &[])] {
                        let begun = time::now();
                        let answer = session.execute(cdb, data, 0).await;
                        let answer = answer.expect("the session goes on");
                        assert_eq!((answer.status, answer.sense), (GOOD, [0; 3]));
                        let mut all = took.get();
                        let slowest = match data.is_empty() {
                            true => &mut all.slowest_test,
                            false => &mut all.slowest_write,
                        };
                        *slowest = (time::now() - begun).max(*slowest);
                        all.commands += 1;
                        took.set(all);
                    }
                }
                session.end();
            }
        });
        if is_switched {
            for Drawn { text, .. } in texts.iter().rev().cycle().take(SWITCHES) {
                server.put_file(CONFIG, text.as_bytes());
                let applied = ask(&asks, Ask::Apply).await;
                let changes = applied.unwrap_or_else(|failure| panic!("{failure}"));
                let mut all = took.get();
                all.changes += changes.len() as u64;
                all.path_changes += u64::from(are_paths_changed);
                took.set(all);
            }
        } else {
            while took.get().commands < COMMANDS {
                time::sleep(STALL).await;
            }
        }
        is_over.set(true);
        loaded.await;
        server.stall_disk(Duration::ZERO);
        ask(&asks, Ask::Stop).await;
        took.get()
    })
}

#[test]
fn a_command_to_a_target_that_stays_takes_no_longer_while_the_daemon_is_switched() {
    let (mut commands, mut changes, mut path_changes) = (0, 0, 0);
    seeds(SEEDS, |seed| {
        let (alone, switched) = (took(seed, false), took(seed, true));
        for (slowest, limit) in [
            (switched.slowest_write, alone.slowest_write),
            (switched.slowest_test, alone.slowest_test),
        ] {
            assert!(slowest <= limit + MARGIN, "{switched:?}, but {alone:?}");
        }
        commands += switched.commands;
        changes += switched.changes;
        path_changes += switched.path_changes;
    });
    assert_occurred([
        ("commands meanwhile", commands),
        ("changes", changes),
        ("changes of paths", path_changes),
    ]);
}
