//! What a power cut leaves of names, replaced files and marks.

use std::{path::Path, time::Duration};

use engine::{
    sim::{Host, World, seeds},
    store,
};

const SEEDS: u64 = 100;
const FILE: &str = "/a/state/unit";

/// Cuts the power of `host` in the middle of `change`, after `steps` of its steps.
fn doom(world: &World, host: &Host, steps: u64, change: impl FnOnce() -> bool) -> bool {
    host.doom_after(steps);
    let ended = world.block_on(host, async { change() });
    world.power_cut(host);
    world.run_for(Duration::from_millis(1));
    world.restart(host);
    ended
}

#[test]
fn a_power_cut_leaves_the_old_file_or_the_new_one() {
    let mut after_a_cut = Vec::new();
    seeds(SEEDS, |seed| {
        for steps in 0.. {
            let world = World::new(seed);
            let host = world.host("disk");
            host.put_file(FILE, b"old");
            let ended = doom(&world, &host, steps, || {
                store::replace(Path::new(FILE), b"new").is_ok()
            });
            let found = host.read_file(FILE).expect("one of them is there");
            let is_new = found == b"new";
            assert!(is_new || !ended && found == b"old", "{found:?} at {steps}");
            if ended {
                assert!(steps > 3, "a replacement has more steps than {steps}");
                break;
            }
            after_a_cut.push(is_new);
        }
    });
    assert!(after_a_cut.contains(&true) && after_a_cut.contains(&false));
}

#[test]
fn a_new_directory_is_there_with_what_leads_to_it() {
    let mut lost = 0;
    seeds(SEEDS, |seed| {
        for is_synced in [true, false] {
            let world = World::new(seed);
            let host = world.host("disk");
            host.put_file("/a/x", b"");
            let directory = Path::new("/a/b/state");
            world.block_on(&host, async {
                store::make_directory(directory, true).expect("it is made");
                let file = directory.join("unit");
                match is_synced {
                    true => store::replace(&file, b"kept").expect("room"),
                    // Nothing is promised for a file that is not synced.
                    false => drop(
                        engine::fs::SharedFile::open(
                            &file,
                            &engine::fs::OpenOptions {
                                write: true,
                                create: true,
                                ..Default::default()
                            },
                        )
                        .expect("a file"),
                    ),
                }
            });
            world.power_cut(&host);
            world.run_for(Duration::from_millis(1));
            world.restart(&host);
            let found = host.read_file(directory.join("unit"));
            match is_synced {
                true => assert_eq!(found.as_deref(), Some(&b"kept"[..])),
                false => lost += usize::from(found.is_none()),
            }
        }
    });
    assert!(0 < lost && lost < SEEDS as usize, "{lost} were lost");
}

#[test]
fn a_mark_is_durable_once_it_is_set() {
    let mut after_a_cut = Vec::new();
    seeds(SEEDS, |seed| {
        for steps in 0.. {
            let world = World::new(seed);
            let host = world.host("disk");
            host.put_file(FILE, b"data");
            let ended = doom(&world, &host, steps, || {
                store::set_mark(Path::new(FILE), b"mark").is_ok()
            });
            let is_marked = host.mark(FILE).is_some();
            assert!(is_marked || !ended);
            if ended {
                break;
            }
            after_a_cut.push(is_marked);
        }
    });
    assert!(after_a_cut.contains(&true) && after_a_cut.contains(&false));
}
