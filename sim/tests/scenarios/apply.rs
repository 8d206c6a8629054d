//! A daemon is switched to another configuration at a random moment of a load. It then serves what a start with the new
//! configuration would serve, disks and ports keep their identity, and a session whose target is in both configurations
//! notices nothing.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::pending,
    path::Path,
    rc::Rc,
    time::Duration,
};

use engine::{
    cross::{OneshotSender, Sender, channel, oneshot},
    sim::{Fault, FaultKind, Host, Random, World, seeds},
    spawn, time,
};
use node::{
    Config, Daemon, Failure, Process,
    description::{Description, Node},
};
use sim::{
    assert_occurred,
    raw::{CLEAR_TASK_SET, ORDERED, Over, RawSession, reserve_out},
};
use uuid::Uuid;
use volume::graph::NewStripe;

use crate::MS;

const SEEDS: u64 = 60;
const EIO: i32 = 5;
const CONFIG: &str = "/srv/daemon.toml";
const PORT: u16 = 3260;
const KEPT: &str = "iqn.2026-11.io.sanstone:kept";
/// How many targets may come and go.
const TARGETS: usize = 3;
const VOLUMES: [&str; 4] = [
    "file = { path = \"v0\", size = \"64KiB\" }",
    "ram = { size = \"64KiB\" }",
    "cache = { size = \"1MiB\", of = { file = { path = \"v2\", size = \"64KiB\" } } }",
    "stats = { of = { ram = { size = \"64KiB\" } } }",
];
const TEST_UNIT_READY: [u8; 6] = [0; 6];
const GOOD: Option<u8> = Some(0);

/// How often the hard cases occurred, over all seeds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Met {
    sessions_ended: u64,
    sessions_with_another_disk: u64,
    sessions_went_on: u64,
    luns_taken: u64,
    luns_told: u64,
    nothing_changed: u64,
    rolled_back: u64,
    went_back: u64,
}

/// A configuration as it was drawn.
#[derive(Clone, PartialEq)]
struct Drawn {
    text: String,
    /// The LUNs of each target, and whether the client may use it.
    targets: BTreeMap<String, (BTreeMap<usize, usize>, bool)>,
}

fn target(number: usize) -> String {
    format!("iqn.2026-11.io.sanstone:t{number}")
}

fn draw(random: &mut Random, lanes: usize) -> Drawn {
    let mut text = format!("lanes = {lanes}\nmemory = \"32MiB\"\n");
    text += "[volume.kept]\nfile = { path = \"kept\", size = \"64KiB\" }\n";
    let mut tables = format!("[target.\"{KEPT}\"]\nluns = [\"kept\"]\nallow = [\"*\"]\n");
    let mut targets = BTreeMap::new();
    let mut used = [false; VOLUMES.len()];
    for number in 0..TARGETS {
        if random.chance(0.4) {
            continue;
        }
        let mut luns = BTreeMap::new();
        for volume in 0..VOLUMES.len() {
            if random.chance(0.4) {
                luns.insert(luns.len() + random.index(2) * 4, volume);
            }
        }
        if luns.is_empty() {
            luns.insert(0, number);
        }
        luns.values().for_each(|volume| used[*volume] = true);
        let name = target(number);
        let written: Vec<String> = luns
            .iter()
            .map(|(lun, volume)| format!("{lun} = \"v{volume}\""))
            .collect();
        let is_allowed = random.chance(0.8);
        let allow = if is_allowed {
            "*"
        } else {
            "iqn.2026-11.io.sanstone:other"
        };
        tables += &format!(
            "[target.\"{name}\"]\nluns = {{ {} }}\nallow = [\"{allow}\"]\n",
            written.join(", ")
        );
        targets.insert(name, (luns, is_allowed));
    }
    for (volume, kind) in VOLUMES.iter().enumerate() {
        if used[volume] || random.chance(0.3) {
            text += &format!("[volume.v{volume}]\n{kind}\n");
        }
    }
    text += &tables;
    Drawn { text, targets }
}

enum Ask {
    Apply(OneshotSender<Result<Vec<String>, Failure>>),
    /// The same, given up after this time.
    ApplyWithin(Duration, OneshotSender<Result<Vec<String>, Failure>>),
    Describe(OneshotSender<Description>),
    Stop(OneshotSender<()>),
}

fn process() -> Process {
    Process {
        boot: Uuid::from_u128(1),
        name: "a daemon".to_owned(),
    }
}

/// Starts the daemon on `host`.
fn start(host: &Host, lanes: usize) -> Sender<Ask> {
    let (asks, told) = channel();
    let on = host.clone();
    drop(host.spawn(async move {
        let load = || Config::load(Path::new(CONFIG)).unwrap_or_else(|failure| panic!("{failure}"));
        let process = process();
        let lanes: Vec<_> = (0..lanes).map(|lane| on.lane(lane)).collect();
        let daemon = Daemon::start(load(), &process, &lanes, true).await;
        let mut daemon = daemon.unwrap_or_else(|failure| panic!("{failure}"));
        while let Some(ask) = told.receive().await {
            match ask {
                Ask::Apply(answer) => {
                    answer.send(daemon.apply(load(), false, pending()).await);
                }
                Ask::ApplyWithin(time, answer) => {
                    answer.send(daemon.apply(load(), false, time::sleep(time)).await);
                }
                Ask::Describe(answer) => answer.send(daemon.view().await.describe()),
                Ask::Stop(answer) => {
                    daemon.stop().await.expect("all is flushed");
                    return answer.send(());
                }
            }
        }
    }));
    asks
}

async fn ask<T>(asks: &Sender<Ask>, make: impl FnOnce(OneshotSender<T>) -> Ask) -> T {
    let (sender, answer) = oneshot();
    assert!(asks.send(make(sender)).is_ok(), "the daemon listens");
    answer.await.expect("the daemon answers")
}

/// What it serves, without statistics.
async fn described(asks: &Sender<Ask>) -> Description {
    let mut description = ask(asks, Ask::Describe).await;
    fn forget(node: &mut Node) {
        node.requests.clear();
        node.children.iter_mut().for_each(forget);
    }
    let volumes = description.volumes.values_mut();
    volumes.for_each(|volume| forget(&mut volume.tree));
    description.sessions.clear();
    description
}

/// Logs in as soon as the target is up, and consumes the unit attentions.
async fn login(host: &Host, target: &str) -> Rc<RawSession> {
    let session = RawSession::login_at(host.addr(PORT), target, "client").await;
    let ready = session.execute(&TEST_UNIT_READY, &[], 0).await;
    ready.expect("a session");
    session
}

/// Sends commands to the target that stays, until told to stop; none may notice a change.
async fn load(session: Rc<RawSession>, is_over: Rc<Cell<bool>>, done: Rc<Cell<u64>>) {
    let write: [u8; 10] = [0x2A, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    while !is_over.get() {
        for (cdb, data) in [(&write[..], &[7; 4096][..]), (&TEST_UNIT_READY, &[])] {
            let task = session.submit(cdb, data, 0).expect("the session goes on");
            let answer = session.answer(task).await.expect("the session goes on");
            assert_eq!((answer.status, answer.sense), (GOOD, [0; 3]));
        }
        done.set(done.get() + 1);
    }
    session.end();
}

fn run(seed: u64, met: &RefCell<Met>) {
    let world = World::new(seed);
    let mut random = world.random();
    let lanes = 1 + random.index(2);
    let server = world.host_with_lanes("server", lanes);
    let client = world.host("client");
    let before = draw(&mut random, lanes);
    let after = match random.chance(0.1) {
        true => before.clone(),
        false => draw(&mut random, lanes),
    };
    server.put_file(CONFIG, before.text.as_bytes());
    world.block_on(&client, async {
        let asks = start(&server, lanes);
        let first = described(&asks).await;
        let (is_over, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let kept = login(&server, KEPT).await;
        let loaded = spawn(load(kept, is_over.clone(), done.clone()));
        let mut others = Vec::new();
        for (name, (luns, is_allowed)) in &before.targets {
            if *is_allowed {
                others.push((name, luns, login(&server, name).await));
            }
        }
        time::sleep(MS * random.below(20) as u32).await;

        if random.chance(0.3) {
            // A step that fails: nothing may change.
            let mut text = after.text.clone();
            text += "[volume.gone]\nfile = { path = \"gone\" }\n";
            text +=
                "[target.\"iqn.2026-11.io.sanstone:gone\"]\nluns = [\"gone\"]\nallow = [\"*\"]\n";
            server.put_file(CONFIG, text.as_bytes());
            let refused = ask(&asks, Ask::Apply).await;
            refused.expect_err("its file is not there");
            assert_eq!(described(&asks).await, first, "it is not rolled back");
            met.borrow_mut().rolled_back += 1;
        }
        server.put_file(CONFIG, after.text.as_bytes());
        let applied = ask(&asks, Ask::Apply).await;
        let changes = applied.unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(
            changes.is_empty(),
            described(&asks).await == first,
            "{changes:?}"
        );
        if changes.is_empty() {
            met.borrow_mut().nothing_changed += 1;
        }
        for (name, luns, session) in others {
            check_session(&session, luns, after.targets.get(name), met).await;
        }
        let went_on_from = done.get();
        while done.get() < went_on_from + 3 {
            time::sleep(MS).await;
        }
        let live = described(&asks).await;
        if random.chance(0.5) {
            // There and back: removed resources are free again at once.
            for (text, expected) in [(&before.text, &first), (&after.text, &live)] {
                server.put_file(CONFIG, text.as_bytes());
                let applied = ask(&asks, Ask::Apply).await;
                applied.unwrap_or_else(|failure| panic!("{failure}"));
                assert_eq!(described(&asks).await, *expected);
                met.borrow_mut().went_back += 1;
            }
        }
        is_over.set(true);
        loaded.await;

        ask(&asks, Ask::Stop).await;
        // As when a process ends: its locks are released.
        server.power_cut();
        server.restart();
        let asks = start(&server, lanes);
        assert_eq!(
            described(&asks).await,
            live,
            "a restart serves something else"
        );
        ask(&asks, Ask::Stop).await;
    });
}

/// Checks what a session sees of the change from `luns` of its target to `now`.
async fn check_session(
    session: &RawSession,
    luns: &BTreeMap<usize, usize>,
    now: Option<&(BTreeMap<usize, usize>, bool)>,
    met: &RefCell<Met>,
) {
    let task = session.submit(&TEST_UNIT_READY, &[], 0);
    let answer = match task {
        Ok(task) => time::timeout(Duration::from_secs(60), session.answer(task)).await,
        Err(over) => Some(Err(over)),
    };
    let answer = answer.expect("an answer, or the end");
    let Some((now, true)) = now else {
        answer.expect_err("nobody may use it any more");
        met.borrow_mut().sessions_ended += 1;
        return;
    };
    let is_other = |(lun, was): (&usize, &usize)| now.get(lun).is_some_and(|is| is != was);
    if luns.iter().any(is_other) {
        answer.expect_err("a LUN means one disk as long as the session lasts");
        met.borrow_mut().sessions_with_another_disk += 1;
        return;
    }
    let answer = answer.expect("it goes on");
    met.borrow_mut().sessions_went_on += 1;
    let (was, is) = (luns.get(&0), now.get(&0));
    let expected = match (was, is) {
        (None, None) => return,
        // LOGICAL UNIT NOT SUPPORTED
        (Some(_), None) => {
            met.borrow_mut().luns_taken += 1;
            [5, 0x25, 0]
        }
        (Some(was), Some(is)) if was == is => match luns == now {
            true => [0; 3],
            // REPORTED LUNS DATA HAS CHANGED
            false => {
                met.borrow_mut().luns_told += 1;
                [6, 0x3F, 0x0E]
            }
        },
        // A disk it had not seen before: POWER ON OCCURRED.
        _ => [6, 0x29, 0],
    };
    assert_eq!(answer.sense, expected, "{was:?} to {is:?}");
    session.end();
}

/// Two files that are there already when a daemon is given them.
const TAKEN: [&str; 2] = ["/srv/x", "/srv/y"];

/// Has the disk fail while the two files become disks, then checks that each has a mark and a record, or no mark.
fn take_files_while_the_disk_fails(seed: u64, fail: impl FnOnce(&Host)) -> Failed {
    let world = World::new(seed);
    let (server, client) = (world.host("server"), world.host("client"));
    let text = |more: &str, luns: &str| {
        format!(
            "lanes = 1\nmemory = \"32MiB\"\n\
             [volume.kept]\nfile = {{ path = \"kept\", size = \"64KiB\" }}\n{more}\
             [target.\"{KEPT}\"]\nluns = [{luns}]\nallow = [\"*\"]\n"
        )
    };
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
            server.add_fault(Fault {
                path: Some("/srv/y".into()),
                ..Fault::new(FaultKind::Mark, EIO)
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
        let begun = time::now();
        let within = MS * random.below(5_000) as u32;
        let applied = ask(&asks, |answer| Ask::ApplyWithin(within, answer)).await;
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

/// An initiator has a disk sanitized while an `apply` that removes it waits for another one.
fn sanitize_what_is_removed(seed: u64) {
    const BUSY: Option<u8> = Some(8);
    let world = World::new(seed);
    let (server, client) = (world.host("server"), world.host("client"));
    world.host("storage");
    server.put_file(CONFIG, waiting_text(true, false, 0).as_bytes());
    world.block_on(&client, async {
        let asks = Rc::new(start(&server, 1));
        described(&asks).await;
        let session = login(&server, &target(0)).await;
        server.put_file(CONFIG, waiting_text(false, true, 30).as_bytes());
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
        server.put_file(CONFIG, waiting_text(false, false, 0).as_bytes());
        let refused = ask(&asks, Ask::Apply).await;
        let refused = refused.expect_err("it is being sanitized").to_string();
        assert!(refused.contains("sanitize has finished"), "{refused}");
        time::sleep(Duration::from_secs(5)).await;
        let applied = ask(&asks, Ask::Apply).await;
        applied.unwrap_or_else(|failure| panic!("{failure}"));
        ask(&asks, Ask::Stop).await;
    });
}

/// What fences off an initiator whose LUN has just been removed or moved.
#[derive(Clone, Copy, Debug)]
enum Fence {
    ClearTaskSet,
    PreemptAndAbort,
}

/// An initiator fences off another one, on the other lane, whose write was in progress when its LUN was removed or moved.
fn fence_over_a_moved_lun(seed: u64, fence: Fence) {
    const SLOW: Duration = Duration::from_secs(2);
    let world = World::new(seed);
    let mut random = world.random();
    let (server, client) = (world.host_with_lanes("server", 2), world.host("client"));
    let text = |luns: &str| {
        let (moved, fixed) = (target(0), target(1));
        format!(
            "lanes = 2\nmemory = \"32MiB\"\n[volume.db]\n\
             fault = {{ rules = [{{ on = \"write\", delay = \"{}ms\", times = 1 }}], \
             of = {{ file = {{ path = \"db\", size = \"64KiB\" }} }} }}\n\
             [volume.spare]\nram = {{ size = \"64KiB\" }}\n\
             [target.\"{moved}\"]\nluns = {{ {luns} }}\nallow = [\"*\"]\n\
             [target.\"{fixed}\"]\nluns = {{ 0 = \"db\" }}\nallow = [\"*\"]\n",
            SLOW.as_millis()
        )
    };
    let write: [u8; 10] = [0x2A, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    let read: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    let after = match random.chance(0.5) {
        true => "5 = \"db\", 1 = \"spare\"",
        false => "1 = \"spare\"",
    };
    server.put_file(CONFIG, text("0 = \"db\", 1 = \"spare\"").as_bytes());
    world.block_on(&client, async {
        let asks = Rc::new(start(&server, 2));
        described(&asks).await;
        // One after the other, they get different lanes.
        let slow = login(&server, &target(0)).await;
        let quick = RawSession::login_at(server.addr(PORT), &target(1), "other").await;
        for (session, key) in [(&slow, 1), (&quick, 2)] {
            let (cdb, list) = reserve_out(0, 0, 0, key);
            let registered = session.execute(&cdb, &list, 0).await;
            assert_eq!(registered.expect("an answer").status, GOOD);
        }
        let lanes = ask(&asks, Ask::Describe).await.sessions;
        assert_eq!(lanes.len(), 2);
        assert_ne!(
            lanes[0].lane, lanes[1].lane,
            "they are to be on different lanes"
        );
        let written = slow.submit(&write, &[1; 4096], 0).expect("it is sent");
        time::sleep(MS * 200).await;
        server.put_file(CONFIG, text(after).as_bytes());
        let applying = spawn({
            let asks = asks.clone();
            async move { ask(&asks, Ask::Apply).await }
        });
        time::sleep(MS * (100 + random.below(300) as u32)).await;
        match fence {
            Fence::ClearTaskSet => {
                let response = quick.task_management(CLEAR_TASK_SET).await;
                assert_eq!(response, Ok(0));
            }
            Fence::PreemptAndAbort => {
                let (cdb, list) = reserve_out(5, 1, 2, 1);
                let preempted = quick.execute(&cdb, &list, 0).await;
                assert_eq!(preempted.expect("an answer").status, GOOD);
            }
        }
        let newer = quick.execute(&write, &[2; 4096], 0).await;
        assert_eq!(newer.expect("an answer").status, GOOD);
        let aborted = slow.answer(written).await.expect("the session goes on");
        assert_eq!(aborted.status, Some(0x40), "TASK ABORTED");
        let applied = applying.await;
        applied.unwrap_or_else(|failure| panic!("{failure}"));
        time::sleep(2 * SLOW).await;
        let seen = quick.execute(&read, &[], 4096).await.expect("a read");
        assert!(
            seen.data == [2; 4096],
            "{fence:?}: the aborted write has landed after the newer one"
        );
        ask(&asks, Ask::Stop).await;
    });
}

#[test]
fn a_daemon_that_stops_while_an_apply_waits_undoes_it() {
    seeds(10, stop_while_it_waits);
}

#[test]
fn no_sanitize_begins_on_a_disk_that_an_apply_removes() {
    seeds(5, sanitize_what_is_removed);
}

#[test]
fn a_fence_waits_for_the_write_of_a_lun_that_was_removed_or_moved() {
    for fence in [Fence::ClearTaskSet, Fence::PreemptAndAbort] {
        seeds(20, |seed| fence_over_a_moved_lun(seed, fence));
    }
}

/// How a LUN becomes another disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Replaced {
    AtOnce,
    /// Removed by one `apply`, added by the next.
    InTwoSteps,
    /// Two LUNs exchange their disks.
    Swapped,
}

/// Sends writes of `byte` to LUN 0, some of them ORDERED, and looks at no answer; ends with the session.
async fn write_blindly(session: Rc<RawSession>, byte: u8) -> Over {
    let write = [0x2A, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    loop {
        let mut tasks = Vec::new();
        for attribute in [1, ORDERED, 1, 1] {
            match session.submit_as(attribute, &write, &[byte; 4096], 0) {
                Ok(task) => tasks.push(task),
                Err(over) => return over,
            }
        }
        for task in tasks {
            if let Err(over) = session.answer(task).await {
                return over;
            }
        }
    }
}

/// LUN 0 becomes another disk while an initiator writes to it without looking.
fn replace_under_a_blind_initiator(seed: u64, how: Replaced) {
    let world = World::new(seed);
    let mut random = world.random();
    let lanes = 1 + random.index(2);
    let (server, client) = (world.host_with_lanes("server", lanes), world.host("client"));
    let delay_ms = random.below(30);
    let text = |luns: &str| {
        // Slow, so that there are always commands in progress and in line.
        let slow = |name: &str| {
            format!(
                "[volume.{name}]\nfault = {{ rules = [{{ on = \"write\", delay = \"{delay_ms}ms\" }}], \
                 of = {{ file = {{ path = \"{name}\", size = \"64KiB\" }} }} }}\n"
            )
        };
        format!(
            "lanes = {lanes}\nmemory = \"32MiB\"\n{}{}[volume.kept]\n\
             file = {{ path = \"kept\", size = \"64KiB\" }}\n\
             [target.\"{KEPT}\"]\nluns = [\"kept\"]\nallow = [\"*\"]\n\
             [target.\"{}\"]\nluns = {{ {luns} }}\nallow = [\"*\"]\n",
            slow("old"),
            slow("new"),
            target(0)
        )
    };
    let (before, between, after) = match how {
        Replaced::AtOnce => ("0 = \"old\"", None, "0 = \"new\""),
        Replaced::InTwoSteps => (
            "0 = \"old\", 1 = \"kept\"",
            Some("1 = \"kept\""),
            "0 = \"new\", 1 = \"kept\"",
        ),
        Replaced::Swapped => ("0 = \"old\", 1 = \"new\"", None, "0 = \"new\", 1 = \"old\""),
    };
    server.put_file(CONFIG, text(before).as_bytes());
    world.block_on(&client, async {
        let asks = start(&server, lanes);
        // It serves when it answers.
        described(&asks).await;
        let other = login(&server, KEPT).await;
        let blind = login(&server, &target(0)).await;
        let writing = spawn(write_blindly(blind, 7));
        for luns in between.into_iter().chain([after]) {
            time::sleep(MS * random.below(100) as u32).await;
            server.put_file(CONFIG, text(luns).as_bytes());
            let applied = ask(&asks, Ask::Apply).await;
            let changes = applied.unwrap_or_else(|failure| panic!("{failure}"));
            let is_announced = changes
                .iter()
                .any(|line| line.contains("becomes another disk"));
            assert_eq!(is_announced, how != Replaced::InTwoSteps, "{changes:?}");
        }
        let is_over = time::timeout(Duration::from_secs(1), writing).await;
        is_over.expect("its session is over when the change is");

        // The next session of the same initiator port is told before it is served.
        let session = RawSession::login_at(server.addr(PORT), &target(0), "client").await;
        let mut told = Vec::new();
        loop {
            let task = session.submit(&TEST_UNIT_READY, &[], 0).expect("a session");
            let answer = session.answer(task).await.expect("an answer");
            match answer.sense {
                [0, ..] => break,
                sense => told.push(sense),
            }
        }
        assert_eq!(told, [[6, 0x29, 0], [6, 0x3F, 3], [6, 0x3F, 0xE]]);
        let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
        let seen = session.execute(&read, &[], 4096).await.expect("a read");
        assert!(
            seen.data == [0; 4096],
            "a write to the old disk has reached the new one"
        );
        session.end();
        let answer = other.submit(&TEST_UNIT_READY, &[], 0).expect("it goes on");
        let answer = other.answer(answer).await.expect("it goes on");
        assert_eq!(
            answer.sense, [0; 3],
            "the session of another target hears of it"
        );
        other.end();
        ask(&asks, Ask::Stop).await;
    });
}

/// Gives a daemon with one lane a stripe more while its disk stalls; a session of it is served all the time.
fn apply_with_a_stalled_disk(seed: u64) {
    const STALL: Duration = Duration::from_secs(2);
    let world = World::new(seed);
    let (server, client) = (world.host("server"), world.host("client"));
    let text = |luns: &str| {
        format!(
            "lanes = 1\nmemory = \"32MiB\"\n\
             [volume.kept]\nfile = {{ path = \"kept\", size = \"64KiB\" }}\n\
             [volume.more]\nfile = {{ path = \"more\", size = \"64KiB\" }}\n\
             [volume.wide.stripe]\nof = [{{ file = {{ path = \"s0\", size = \"4MiB\" }} }}, \
             {{ file = {{ path = \"s1\", size = \"4MiB\" }} }}]\n\
             [target.\"{KEPT}\"]\nluns = [{luns}]\nallow = [\"*\"]\n"
        )
    };
    server.put_file(CONFIG, text("\"kept\"").as_bytes());
    world.block_on(&client, async {
        let home = server.lane(0);
        let created = server.spawn(async move {
            let config = Config::load(Path::new(CONFIG))?;
            let new = NewStripe {
                uuid: Uuid::from_u128(7),
                created_unix_s: 0,
                force: false,
            };
            node::create_stripe(&config, &process(), "wide", &home, &new).await
        });
        created.await.unwrap_or_else(|failure| panic!("{failure}"));
        let asks = start(&server, 1);
        // It serves when it answers.
        described(&asks).await;
        let session = login(&server, KEPT).await;
        server.stall_disk(STALL);
        let (is_over, slowest) = (Rc::new(Cell::new(false)), Rc::new(Cell::default()));
        let loaded = spawn({
            let (is_over, slowest) = (is_over.clone(), slowest.clone());
            async move {
                while !is_over.get() {
                    let begun = time::now();
                    let task = session.submit(&TEST_UNIT_READY, &[], 0);
                    let task = task.expect("the session goes on");
                    session.answer(task).await.expect("the session goes on");
                    slowest.set((time::now() - begun).max(slowest.get()));
                }
                session.end();
            }
        });
        server.put_file(CONFIG, text("\"kept\", \"wide\", \"more\"").as_bytes());
        let applied = ask(&asks, Ask::Apply).await;
        let changes = applied.unwrap_or_else(|failure| panic!("{failure}"));
        assert!(changes.iter().any(|it| it.contains("wide")), "{changes:?}");
        is_over.set(true);
        loaded.await;
        assert!(slowest.get() < STALL, "a command took {:?}", slowest.get());
        ask(&asks, Ask::Stop).await;
    });
}

#[test]
fn an_initiator_that_does_not_look_never_writes_to_the_disk_that_took_the_place_of_its_own() {
    for how in [Replaced::AtOnce, Replaced::InTwoSteps, Replaced::Swapped] {
        seeds(20, |seed| replace_under_a_blind_initiator(seed, how));
    }
}

#[test]
fn a_disk_that_stalls_while_it_is_looked_at_holds_up_no_session() {
    seeds(5, apply_with_a_stalled_disk);
}

#[test]
fn a_daemon_that_was_given_another_configuration_serves_what_a_start_with_it_serves() {
    let met = RefCell::new(Met::default());
    seeds(SEEDS, |seed| run(seed, &met));
    let met = met.into_inner();
    assert_occurred([
        ("sessions ended", met.sessions_ended),
        ("sessions with another disk", met.sessions_with_another_disk),
        ("sessions went on", met.sessions_went_on),
        ("luns taken", met.luns_taken),
        ("luns told", met.luns_told),
        ("nothing changed", met.nothing_changed),
        ("rolled back", met.rolled_back),
        ("went back", met.went_back),
    ]);
}
