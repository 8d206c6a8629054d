//! A larger `size` of a file that is served: its disk grows while it is used, unless a step fails, and then no byte of the
//! file has changed.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use engine::{
    sim::{FaultKind, Host, InjectedFault, World, seeds},
    spawn, time,
};
use sim::{assert_occurred, raw::RawSession};

use super::{Ask, CONFIG, GOOD, KEPT, TEST_UNIT_READY, ask, described, load, login, start, target};
use crate::MS;

const EIO: i32 = 5;
const FILES: [&str; 2] = ["/srv/db", "/srv/other"];
const BEFORE_KIB: u64 = 64;
const AFTER_KIB: u64 = 160;
const CAPACITY_DATA_HAS_CHANGED: [u8; 3] = [6, 0x2A, 9];

/// How often the hard cases occurred, over all seeds.
#[derive(Default)]
struct Met {
    by_fault: u64,
    by_power_cut: u64,
    longer_after_cut: u64,
    shorter_after_cut: u64,
}

/// Two disks of `kib` each, one of them behind a link, and one that stays.
fn text(lanes: usize, kib: u64) -> String {
    let file = |name: &str| format!("file = {{ path = \"{name}\", size = \"{kib}KiB\" }}");
    format!(
        "lanes = {lanes}\nmemory = \"32MiB\"\n\
         [volume.kept]\nfile = {{ path = \"kept\", size = \"64KiB\" }}\n\
         [volume.db]\n{}\n\
         [volume.other]\nthrottle = {{ rate = \"1Gbit/s\", of = {{ {} }} }}\n\
         [target.\"{KEPT}\"]\nluns = [\"kept\"]\nallow = [\"*\"]\n\
         [target.\"{}\"]\nluns = [\"db\"]\nallow = [\"*\"]\n\
         [target.\"{}\"]\nluns = [\"other\"]\nallow = [\"*\"]\n",
        file("db"),
        file("other"),
        target(0),
        target(1)
    )
}

fn lens(server: &Host) -> [usize; 2] {
    FILES.map(|path| server.read_file(path).expect("it stays").len())
}

/// WRITE (10) of one block, durably.
async fn write_last(session: &RawSession, kib: u64, byte: u8) -> (Option<u8>, [u8; 3]) {
    let last = (kib * 2 - 1) as u32;
    let mut cdb = [0x2A, 8, 0, 0, 0, 0, 0, 0, 1, 0];
    cdb[2..6].copy_from_slice(&last.to_be_bytes());
    let answer = session.execute(&cdb, &[byte; 512], 0).await;
    let answer = answer.expect("the session goes on");
    (answer.status, answer.sense)
}

/// TEST UNIT READY, once: a unit attention is its answer.
async fn ready(session: &RawSession) -> (Option<u8>, [u8; 3]) {
    let task = session.submit(&TEST_UNIT_READY, &[], 0);
    let answer = session.answer(task.expect("the session goes on")).await;
    let answer = answer.expect("the session goes on");
    (answer.status, answer.sense)
}

fn run(seed: u64, met: &RefCell<Met>) {
    let world = World::new(seed);
    let mut random = world.random();
    let lanes = 1 + random.index(2);
    let server = world.host_with_lanes("server", lanes);
    let client = world.host("client");
    let (before, after) = (text(lanes, BEFORE_KIB), text(lanes, AFTER_KIB));
    let short = [(BEFORE_KIB << 10) as usize; 2];
    let long = [(AFTER_KIB << 10) as usize; 2];
    server.put_file(CONFIG, before.as_bytes());
    world.block_on(&client, async {
        let asks = start(&server, lanes);
        let first = described(&asks).await;
        let (is_over, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let kept = login(&server, KEPT).await;
        let loaded = spawn(load(kept, is_over.clone(), done.clone()));
        let mut sessions = Vec::new();
        for number in 0..2 {
            let session = login(&server, &target(number)).await;
            let written = write_last(&session, BEFORE_KIB, 1).await;
            assert_eq!(written, (GOOD, [0; 3]));
            sessions.push(session);
        }
        time::sleep(MS * random.below(20) as u32).await;
        server.put_file(CONFIG, after.as_bytes());
        if random.chance(0.5) {
            // The other file cannot be extended, so this one is cut again.
            server.add_fault(InjectedFault {
                path: Some(FILES[1].into()),
                ..InjectedFault::new(FaultKind::Allocate, EIO)
            });
            let failed = ask(&asks, Ask::Apply).await;
            failed.expect_err("one file cannot be extended");
            assert_eq!(lens(&server), short, "a file stays longer");
            assert_eq!(described(&asks).await, first, "it is not rolled back");
            server.clear_faults();
            for session in &sessions {
                assert_eq!(ready(session).await, (GOOD, [0; 3]), "nothing changed");
            }
            met.borrow_mut().by_fault += 1;
        }
        let applied = ask(&asks, Ask::Apply).await;
        let changes = applied.unwrap_or_else(|failure| panic!("{failure}"));
        let grows = |name| format!("~ volume {name} grows from 64 KiB to 160 KiB");
        assert_eq!(changes, [grows("db"), grows("other")]);
        assert_eq!(lens(&server), long);
        for session in &sessions {
            // Each session is told once, with the first command that comes after.
            let mut told = Vec::new();
            while told.is_empty() {
                time::sleep(MS).await;
                let (status, sense) = ready(session).await;
                told.extend((status != GOOD).then_some(sense));
            }
            assert_eq!(told, [CAPACITY_DATA_HAS_CHANGED]);
            let written = write_last(session, AFTER_KIB, 2).await;
            assert_eq!(written, (GOOD, [0; 3]), "there is room");
        }
        let again = ask(&asks, Ask::Apply).await;
        assert_eq!(again.expect("it is served"), [""; 0]);
        // A disk does not shrink.
        server.put_file(CONFIG, before.as_bytes());
        let refused = ask(&asks, Ask::Apply).await;
        let refused = refused.expect_err("it would be shorter").to_string();
        assert!(refused.contains("cannot become 64KiB while it is served with 160KiB"));
        server.put_file(CONFIG, after.as_bytes());
        is_over.set(true);
        loaded.await;
        let live = described(&asks).await;
        server.power_cut();
        server.restart();
        assert_eq!(lens(&server), long, "it is not durable");
        let asks = start(&server, lanes);
        assert_eq!(described(&asks).await, live);
        for path in FILES {
            let bytes = server.read_file(path).expect("it stays");
            for (kib, byte) in [(BEFORE_KIB, 1), (AFTER_KIB, 2)] {
                let end = (kib << 10) as usize;
                assert_eq!(bytes[end - 512..end], [byte; 512], "{path} at {kib} KiB");
            }
        }
        ask(&asks, Ask::Stop).await;
    });
}

/// The power goes at some moment of the change. Whatever the lengths of the files are then, the old configuration can be
/// served, and what was written is there.
fn lose_power(seed: u64, met: &RefCell<Met>) {
    for changes in 1.. {
        let world = World::new(seed);
        let (server, client) = (world.host("server"), world.host("client"));
        server.put_file(CONFIG, text(1, BEFORE_KIB).as_bytes());
        let is_over = world.block_on(&client, async {
            let asks = start(&server, 1);
            described(&asks).await;
            let session = login(&server, &target(0)).await;
            let written = write_last(&session, BEFORE_KIB, 1).await;
            assert_eq!(written, (GOOD, [0; 3]));
            // Until it is noted who has been told of the power-on: the change counted first shall be one of the growth.
            time::sleep(100 * MS).await;
            server.put_file(CONFIG, text(1, AFTER_KIB).as_bytes());
            server.doom_after(changes);
            let applied = ask(&asks, Ask::Apply).await;
            let was_cut = server.is_doomed();
            server.power_cut();
            server.restart();
            let [len, _] = lens(&server);
            let is_long = len as u64 == AFTER_KIB << 10;
            assert!(is_long || len as u64 == BEFORE_KIB << 10, "{len}");
            assert!(is_long || applied.is_err(), "it was said to be done");
            if was_cut {
                met.borrow_mut().by_power_cut += 1;
                match is_long {
                    true => met.borrow_mut().longer_after_cut += 1,
                    false => met.borrow_mut().shorter_after_cut += 1,
                }
            }
            server.put_file(CONFIG, text(1, BEFORE_KIB).as_bytes());
            let asks = start(&server, 1);
            described(&asks).await;
            let bytes = server.read_file(FILES[0]).expect("it stays");
            let end = (BEFORE_KIB << 10) as usize;
            assert_eq!(bytes[end - 512..end], [1; 512]);
            ask(&asks, Ask::Stop).await;
            !was_cut
        });
        if is_over {
            return;
        }
    }
}

#[test]
fn a_disk_grows_under_a_load_when_its_file_gets_a_larger_size() {
    let met = RefCell::default();
    seeds(30, |seed| run(seed, &met));
    assert_occurred([("faults", met.into_inner().by_fault)]);
}

#[test]
fn a_power_cut_while_a_file_is_extended_leaves_a_disk_that_can_be_served() {
    let met = RefCell::default();
    seeds(10, |seed| lose_power(seed, &met));
    let met = met.into_inner();
    assert_occurred([
        ("power cuts", met.by_power_cut),
        ("longer files", met.longer_after_cut),
        ("files as they were", met.shorter_after_cut),
    ]);
}
