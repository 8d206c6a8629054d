//! An `apply` that fails, loses power, is given up or is disturbed, leaves all as it was, or can be repeated.

use std::{cell::Cell, rc::Rc, time::Duration};

use engine::{
    sim::{FaultKind, Host, InjectedFault, World, seeds},
    spawn, time,
};
use sim::assert_occurred;

use super::{
    Ask, CONFIG, GOOD, HUNG, KEPT, ask, configuration, create_stripe, described, login, start,
    target,
};
use crate::MS;

const EIO: i32 = 5;

/// Two files that are there already when a daemon is given them.
const TAKEN: [&str; 2] = ["/srv/x", "/srv/y"];

/// A configuration with one target for the volume `kept` and `more`, at these LUNs.
fn text(more: &str, luns: &str) -> String {
    format!(
        "lanes = 1\nmemory = \"32MiB\"\n\
         [volume.kept]\nfile = {{ path = \"kept\", size = \"64KiB\" }}\n{more}\
         [target.\"{KEPT}\"]\nluns = [{luns}]\nallow = [\"*\"]\n"
    )
}

/// Has the disk fail while the two files become disks, then checks that each has a mark and a record, or no mark.
fn take_files_while_the_disk_fails(seed: u64, fail: impl FnOnce(&Host)) -> Failed {
    let world = World::new(seed);
    let (server, client) = (world.host("server"), world.host("client"));
    let before = text("", "\"kept\"");
    let after = text(
        "[volume.x]\nfile = { path = \"x\" }\n[volume.y]\nfile = { path = \"y\" }\n",
        "\"kept\", \"x\", \"y\"",
    );
    for path in TAKEN {
        server.put_file(path, &[1; 64 << 10]);
    }
    server.put_file(CONFIG, before.as_bytes());
    world.block_on(&client, async {
        let asks = start(&server, 1);
        let first = described(&asks).await;
        server.put_file(CONFIG, after.as_bytes());
        fail(&server);
        let applied = ask(&asks, Ask::Apply).await;
        let failed = match (server.is_doomed(), applied) {
            (true, _) => Failed::ByPowerCut,
            (false, Err(_)) => {
                assert_eq!(described(&asks).await, first, "it is not rolled back");
                server.clear_faults();
                Failed::ByFault
            }
            (false, Ok(_)) => Failed::No,
        };
        let marks = || TAKEN.map(|path| server.mark(path));
        let are_recorded = || {
            let records = server.read_file("/srv/daemon.state/volumes.toml");
            let records = String::from_utf8(records.unwrap_or_default()).expect("text");
            let marks = marks().into_iter().flatten();
            let mut marks = marks.map(|mark| String::from_utf8(mark).expect("text"));
            marks.all(|mark| records.contains(&mark))
        };
        if failed != Failed::ByPowerCut {
            server.doom_after(u64::MAX);
            assert!(are_recorded(), "a mark without a record, {failed:?}");
            let marked = marks();
            let again = ask(&asks, Ask::Apply).await;
            again.unwrap_or_else(|failure| panic!("{failure}"));
            for (marked, mark) in marked.into_iter().zip(marks()) {
                assert!(
                    marked.is_none() || marked == mark,
                    "it has become another disk"
                );
            }
            ask(&asks, Ask::Stop).await;
        }
        server.power_cut();
        server.restart();
        assert!(are_recorded(), "a mark without a record, {failed:?}");
        let asks = start(&server, 1);
        described(&asks).await;
        ask(&asks, Ask::Stop).await;
        failed
    })
}

/// What has kept two files from becoming disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failed {
    ByPowerCut,
    ByFault,
    No,
}

#[test]
fn a_file_that_an_apply_has_marked_is_recorded_whenever_the_power_goes() {
    let mut cuts = 0;
    seeds(20, |seed| {
        for changes in 1.. {
            let failed = take_files_while_the_disk_fails(seed, |server| server.doom_after(changes));
            match failed {
                Failed::ByPowerCut => cuts += 1,
                Failed::ByFault => panic!("only the power fails"),
                Failed::No => break,
            }
        }
    });
    assert_occurred([("power cuts", cuts)]);
}

#[test]
fn a_file_that_a_failed_apply_has_marked_is_recorded() {
    seeds(10, |seed| {
        let failed = take_files_while_the_disk_fails(seed, |server| {
            server.add_fault(InjectedFault {
                path: Some("/srv/y".into()),
                ..InjectedFault::new(FaultKind::Mark, EIO)
            });
        });
        assert_eq!(failed, Failed::ByFault);
    });
}

/// The configuration of a daemon with a target of its own for the volume `old`, or without; with `more` it is also given
/// a new file and a disk of another machine, which it waits for.
fn waiting_text(has_old: bool, has_more: bool, wait_s: u32) -> String {
    let mut text = "lanes = 1\nmemory = \"32MiB\"\n\
                    [volume.kept]\nfile = { path = \"kept\", size = \"64KiB\" }\n\
                    [volume.old]\nfile = { path = \"old\", size = \"64KiB\" }\n"
        .to_owned();
    let mut luns = "\"kept\"".to_owned();
    if has_more {
        text += "[volume.fresh]\nfile = { path = \"fresh\", size = \"64KiB\" }\n";
        text += &format!(
            "[volume.remote]\niscsi = {{ url = \"iscsi://storage/iqn.2026-11.io.sanstone:far/0\", \
             initiator = \"iqn.2026-11.io.sanstone:near\", wait_at_start = \"{wait_s}s\" }}\n"
        );
        luns += ", \"fresh\", \"remote\"";
    }
    text += &format!("[target.\"{KEPT}\"]\nluns = [{luns}]\nallow = [\"*\"]\n");
    if has_old {
        let target = target(0);
        text += &format!("[target.\"{target}\"]\nluns = [\"old\"]\nallow = [\"*\"]\n");
    }
    text
}

/// The daemon is told to stop while an `apply` waits for a disk.
fn stop_while_it_waits(seed: u64) {
    let world = World::new(seed);
    let mut random = world.random();
    let (server, client) = (world.host("server"), world.host("client"));
    world.host("storage");
    server.put_file(CONFIG, waiting_text(true, false, 0).as_bytes());
    world.block_on(&client, async {
        let asks = start(&server, 1);
        let first = described(&asks).await;
        let records = server.read_file("/srv/daemon.state/volumes.toml");
        server.put_file(CONFIG, waiting_text(true, true, 3_600).as_bytes());
        let config = Box::new(server.spawn(configuration()).await);
        let begun = time::now();
        let within = MS * random.below(5_000) as u32;
        let applied = ask(&asks, |answer| Ask::ApplyWithin(config, within, answer)).await;
        let failure = applied.expect_err("it is given up");
        assert!(failure.to_string().contains("is stopping"), "{failure}");
        assert!(time::now() - begun < Duration::from_secs(60), "it waits on");
        assert_eq!(described(&asks).await, first, "it is not rolled back");
        let now = server.read_file("/srv/daemon.state/volumes.toml");
        assert_eq!(now, records, "it is recorded");
        assert_eq!(server.read_file("/srv/fresh"), None, "its file stays");
        ask(&asks, Ask::Stop).await;
    });
}

/// The daemon is told to stop during an `apply` that creates a file on a disk that hangs from some moment on. Returns
/// whether the file was there at that moment, but the `apply` was given up.
fn stop_while_a_file_is_created(seed: u64) -> bool {
    let world = World::new(seed);
    let mut random = world.random();
    let (server, client) = (world.host("server"), world.host("client"));
    server.put_file(CONFIG, text("", "\"kept\"").as_bytes());
    world.block_on(&client, async {
        let asks = start(&server, 1);
        let first = described(&asks).await;
        let fresh = "[volume.fresh]\nfile = { path = \"fresh\", size = \"64KiB\" }\n";
        server.put_file(CONFIG, text(fresh, "\"kept\", \"fresh\"").as_bytes());
        let config = Box::new(server.spawn(configuration()).await);
        let begun = time::now();
        let within = MS * random.below(5_000) as u32;
        let hanging = spawn({
            let (server, moment) = (server.clone(), MS * random.below(14) as u32);
            async move {
                time::sleep(moment).await;
                server.stall_disk(HUNG);
                server.read_file("/srv/fresh").is_some()
            }
        });
        let applied = ask(&asks, |answer| Ask::ApplyWithin(config, within, answer)).await;
        assert!(time::now() - begun < Duration::from_secs(60), "it waits on");
        if applied.is_err() {
            assert_eq!(described(&asks).await, first, "it is not rolled back");
            assert_eq!(server.read_file("/srv/fresh"), None, "its file stays");
        }
        server.stall_disk(Duration::ZERO);
        ask(&asks, Ask::Stop).await;
        hanging.await && applied.is_err()
    })
}

/// The daemon is told to stop while an `apply` waits for another disk, and one that it has opened hangs when it is closed.
fn stop_while_a_new_disk_hangs(seed: u64) {
    let world = World::new(seed);
    let (server, client) = (world.host("server"), world.host("client"));
    world.host("storage");
    let child = |name: &str, is_hung: bool| {
        let file = format!("{{ file = {{ path = \"{name}\", size = \"4MiB\" }} }}");
        // The claim is written; its release hangs.
        let rule = format!(
            "{{ on = \"write\", skip = 1, delay = \"{}s\" }}",
            HUNG.as_secs()
        );
        match is_hung {
            true => format!("{{ fault = {{ rules = [{rule}], of = {file} }} }}"),
            false => file,
        }
    };
    let text = |is_hung: bool| {
        let stripe = format!(
            "[volume.early.stripe]\nof = [{}, {}]\n",
            child("s0", is_hung),
            child("s1", is_hung)
        );
        waiting_text(true, is_hung, 3_600).replace("\"remote\"", "\"early\", \"remote\"") + &stripe
    };
    server.put_file(CONFIG, text(false).as_bytes());
    world.block_on(&client, async {
        create_stripe(&server, "early").await;
        let asks = start(&server, 1);
        let first = described(&asks).await;
        server.put_file(CONFIG, text(true).as_bytes());
        let config = Box::new(server.spawn(configuration()).await);
        let begun = time::now();
        let within = Duration::from_secs(5);
        let applied = ask(&asks, |answer| Ask::ApplyWithin(config, within, answer)).await;
        let failure = applied.expect_err("it is given up");
        assert!(failure.to_string().contains("is stopping"), "{failure}");
        assert_eq!(described(&asks).await.targets, first.targets);
        assert_eq!(server.read_file("/srv/fresh"), None, "its file stays");
        ask(&asks, Ask::Stop).await;
        assert!(time::now() - begun < Duration::from_secs(60), "it waits on");
    });
}

/// The daemon is told to stop while an `apply` waits for a disk that it has removed: for what is done `on` it.
fn stop_while_a_removed_disk_hangs(seed: u64, on: &str) {
    let world = World::new(seed);
    let mut random = world.random();
    let (server, client) = (world.host("server"), world.host("client"));
    let text = |has_old| {
        let file = "file = { path = \"old\", size = \"64KiB\" }";
        let rule = format!("{{ on = \"{on}\", delay = \"{}s\" }}", HUNG.as_secs());
        let hung = format!("fault = {{ rules = [{rule}], of = {{ {file} }} }}");
        waiting_text(has_old, false, 0).replace(file, &hung)
    };
    server.put_file(CONFIG, text(true).as_bytes());
    world.block_on(&client, async {
        let asks = start(&server, 1);
        let first = described(&asks).await;
        let session = login(&server, &target(0)).await;
        let write = [0x2A, 0, 0, 0, 0, 0, 0, 0, 8, 0];
        session.submit(&write, &[1; 4096], 0).expect("it is sent");
        time::sleep(Duration::from_secs(1)).await;
        server.put_file(CONFIG, text(false).as_bytes());
        let config = Box::new(server.spawn(configuration()).await);
        let begun = time::now();
        let within = Duration::from_secs(15) + MS * random.below(5_000) as u32;
        let applied = ask(&asks, |answer| Ask::ApplyWithin(config, within, answer)).await;
        let changes = applied.unwrap_or_else(|failure| panic!("{failure}"));
        let last = changes.last().expect("changes");
        assert!(last.starts_with("! the daemon stops"), "{changes:?}");
        assert!(time::now() - begun < Duration::from_secs(60), "it waits on");
        let now = described(&asks).await;
        assert_eq!(now.targets.len(), first.targets.len() - 1, "it is applied");
        let stopping = time::now();
        let has_hung = ask(&asks, Ask::StopAtAHungDisk).await;
        // A stop waits for what was accepted, for a minute at most, but for no flush of a disk that is no longer served.
        assert_eq!(has_hung, on == "write");
        assert!(
            time::now() - stopping <= Duration::from_secs(60),
            "it waits on"
        );
    });
}

/// An initiator has a disk sanitized while an `apply` that removes it waits for another one.
fn sanitize_what_is_removed(seed: u64) {
    const BUSY: Option<u8> = Some(8);
    let world = World::new(seed);
    let (server, client) = (world.host("server"), world.host("client"));
    world.host("storage");
    // Slow enough to be sanitized still when the next `apply` comes.
    let text = |has_old, has_new, wait_s| {
        let file = "file = { path = \"old\", size = \"64KiB\" }";
        let slow = format!(
            "fault = {{ rules = [{{ on = \"write\", delay = \"1s\" }}], of = {{ {file} }} }}"
        );
        waiting_text(has_old, has_new, wait_s).replace(file, &slow)
    };
    server.put_file(CONFIG, text(true, false, 0).as_bytes());
    world.block_on(&client, async {
        let asks = Rc::new(start(&server, 1));
        described(&asks).await;
        let session = login(&server, &target(0)).await;
        server.put_file(CONFIG, text(false, true, 30).as_bytes());
        let applying = spawn({
            let asks = asks.clone();
            async move { ask(&asks, Ask::Apply).await }
        });
        time::sleep(Duration::from_secs(5)).await;
        // OVERWRITE, once, answered at the start.
        let sanitize = async || {
            let (cdb, list) = (
                [0x48, 0x81, 0, 0, 0, 0, 0, 0, 8, 0],
                [1, 0, 0, 4, 0, 0, 0, 0],
            );
            session
                .execute(&cdb, &list, 0)
                .await
                .expect("an answer")
                .status
        };
        assert_eq!(sanitize().await, BUSY, "its volume is about to be closed");
        let applied = applying.await;
        applied.expect_err("the other disk does not come");
        assert_eq!(sanitize().await, GOOD, "it stays");
        // It is not removed under the sanitize either.
        server.put_file(CONFIG, text(false, false, 0).as_bytes());
        let refused = ask(&asks, Ask::Apply).await;
        let refused = refused.expect_err("it is being sanitized").to_string();
        assert!(refused.contains("sanitize has finished"), "{refused}");
        time::sleep(Duration::from_secs(5)).await;
        let applied = ask(&asks, Ask::Apply).await;
        applied.unwrap_or_else(|failure| panic!("{failure}"));
        ask(&asks, Ask::Stop).await;
    });
}

#[test]
fn a_daemon_that_stops_while_an_apply_waits_undoes_it() {
    seeds(10, stop_while_it_waits);
}

#[test]
fn a_daemon_that_stops_while_an_apply_creates_a_file_leaves_no_file() {
    let there = Cell::new(0);
    seeds(20, |seed| {
        let was_there = stop_while_a_file_is_created(seed);
        there.set(there.get() + u32::from(was_there));
    });
    assert!((1..20).contains(&there.get()), "{there:?} of 20");
}

#[test]
fn a_daemon_stops_although_a_disk_hangs_that_an_apply_has_opened() {
    seeds(5, stop_while_a_new_disk_hangs);
}

#[test]
fn a_daemon_stops_although_a_disk_hangs_that_an_apply_has_removed() {
    for on in ["write", "flush"] {
        seeds(5, |seed| stop_while_a_removed_disk_hangs(seed, on));
    }
}

#[test]
fn no_sanitize_begins_on_a_disk_that_an_apply_removes() {
    seeds(5, sanitize_what_is_removed);
}
