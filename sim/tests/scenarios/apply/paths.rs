//! Other paths for a remote disk that is served: under a load that notices nothing, a daemon is switched to and fro between
//! lists of paths, and has the sessions that a start with the same list opens. What fails leaves all as it was.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use engine::{
    sim::{Random, World, seeds},
    spawn, time,
};
use node::description::Node;
use sim::{
    assert_occurred,
    target_machine::{Networks, Served, TargetMachine},
};

use super::{Ask, CONFIG, KEPT, ask, described, load, login, start, target};
use crate::MS;

/// How often the hard cases occurred, over all seeds.
#[derive(Default)]
struct Met {
    changed: u64,
    unchanged: u64,
    down: u64,
    rolled_back: u64,
}

/// A machine with a disk of 64 KiB on two networks.
pub(super) fn storage(world: &World, networks: Networks) -> TargetMachine {
    let served = Served {
        caching: "write-back",
        block_size_bytes: 512,
        behind_faults: false,
        lanes: 1,
        everywhere: false,
        networks,
    };
    TargetMachine::new(world.host("storage"), "storage", &served, &[0; 64 << 10])
}

/// The portals of `storage`, one on each network.
pub(super) fn portals(storage: &TargetMachine) -> Vec<String> {
    storage.ips().iter().map(ToString::to_string).collect()
}

/// The settings of the disk of `storage` over these paths.
pub(super) fn remote(storage: &TargetMachine, paths: &[String], sessions: Option<usize>) -> String {
    let paths: Vec<_> = paths
        .iter()
        .map(|portal| format!("{{ portal = \"{portal}\" }}"))
        .collect();
    let sessions = sessions.map(|count| format!(", sessions = {count}"));
    format!(
        "iscsi = {{ url = \"iscsi://storage/{}/0\", initiator = \"{KEPT}\", request_timeout = \"2s\", \
         connect_timeout = \"1s\", paths = [{}]{} }}",
        storage.iqn,
        paths.join(", "),
        sessions.unwrap_or_default(),
    )
}

/// A configuration that serves the disk of `storage` over these paths.
fn text(
    lanes: usize,
    storage: &TargetMachine,
    paths: &[String],
    sessions: Option<usize>,
) -> String {
    format!(
        "lanes = {lanes}\nmemory = \"32MiB\"\n\
         [volume.kept]\nfile = {{ path = \"kept\", size = \"64KiB\" }}\n\
         [volume.far]\nstats = {{ of = {{ {} }} }}\n\
         [target.\"{KEPT}\"]\nluns = [\"kept\"]\nallow = [\"*\"]\n\
         [target.\"{}\"]\nluns = [\"far\"]\nallow = [\"*\"]\n",
        remote(storage, paths, sessions),
        target(0)
    )
}

/// Paths over some of these portals, in some order, and a number of sessions.
pub(super) fn draw(random: &mut Random, portals: &[String]) -> (Vec<String>, Option<usize>) {
    let mut paths = portals.to_vec();
    if random.chance(0.5) {
        paths.reverse();
    }
    let first = random.index(paths.len());
    let paths = match random.chance(0.5) {
        true => paths,
        false => vec![paths.swap_remove(first)],
    };
    let sessions = random.chance(0.3).then(|| paths.len() + random.index(3));
    (paths, sessions)
}

/// The portals of the sessions with the remote disk, in order.
fn sessions(node: &Node) -> Vec<(String, String)> {
    let below = node.children.iter().flat_map(sessions);
    let own = node.sessions.iter();
    let own = own.map(|it| (it.portal.clone(), it.state.clone()));
    own.chain(below).collect()
}

async fn shown(asks: &engine::cross::Sender<Ask>) -> (Option<String>, Vec<(String, String)>) {
    let description = described(asks).await;
    let tree = &description.volumes["far"].tree;
    let first = tree.children[0].session.as_ref();
    (first.and_then(|it| it.address.clone()), sessions(tree))
}

fn run(seed: u64, met: &RefCell<Met>) {
    let world = World::new(seed);
    let mut random = world.random();
    let lanes = 1 + random.index(2);
    let server = world.host_with_lanes("server", lanes);
    let client = world.host("client");
    let networks = [Networks::TwoOfOneGroup, Networks::TwoGroups][random.index(2)];
    let storage = storage(&world, networks);
    let portals = portals(&storage);
    let (before, after) = (draw(&mut random, &portals), draw(&mut random, &portals));
    let text =
        |(paths, sessions): &(Vec<String>, Option<usize>)| text(lanes, &storage, paths, *sessions);
    server.put_file(CONFIG, text(&before).as_bytes());
    world.block_on(&client, async {
        storage.ready().await;
        let asks = start(&server, lanes);
        let first = shown(&asks).await;
        let (is_over, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let mut loaded = Vec::new();
        for name in [KEPT, &target(0)] {
            let session = login(&server, name).await;
            loaded.push(spawn(load(session, is_over.clone(), done.clone())));
        }
        time::sleep(MS * random.below(20) as u32).await;

        if random.chance(0.3) {
            // The new paths work, and then another step fails.
            let gone = "[volume.gone]\nfile = { path = \"gone\", size = \"64KiB\" }\n\
                        [target.\"iqn.2026-11.io.sanstone:gone\"]\nluns = [\"gone\"]\nallow = [\"*\"]\n\
                        portals = [\"192.0.2.1:4000\"]\n";
            server.put_file(CONFIG, (text(&after) + gone).as_bytes());
            let failed = ask(&asks, Ask::Apply).await;
            failed.expect_err("there is no such address");
            assert_eq!(shown(&asks).await, first, "it is not rolled back");
            met.borrow_mut().rolled_back += 1;
        }
        server.put_file(CONFIG, text(&after).as_bytes());
        let applied = ask(&asks, Ask::Apply).await;
        let changes = applied.unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(changes.is_empty(), before == after, "{changes:?}");
        match changes.is_empty() {
            true => met.borrow_mut().unchanged += 1,
            false => met.borrow_mut().changed += 1,
        }
        let live = shown(&asks).await;
        for (drawn, expected) in [(&before, &first), (&after, &live)] {
            server.put_file(CONFIG, text(drawn).as_bytes());
            let applied = ask(&asks, Ask::Apply).await;
            applied.unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(shown(&asks).await, *expected);
        }
        is_over.set(true);
        for loaded in loaded {
            loaded.await;
        }
        assert!(done.get() > 0);
        ask(&asks, Ask::Stop).await;
        server.power_cut();
        server.restart();
        let asks = start(&server, lanes);
        assert_eq!(shown(&asks).await, live, "a restart serves something else");
        ask(&asks, Ask::Stop).await;
    });
}

/// A path that is down is added, and is used when it is there; the only one that works cannot be removed.
fn add_one_that_is_down(seed: u64, met: &RefCell<Met>) {
    let world = World::new(seed);
    let (server, client) = (world.host("server"), world.host("client"));
    let storage = storage(&world, Networks::TwoOfOneGroup);
    let portals = portals(&storage);
    let second = storage.second_ip.expect("two networks");
    server.put_file(CONFIG, text(1, &storage, &portals[..1], None).as_bytes());
    world.block_on(&client, async {
        storage.ready().await;
        let asks = start(&server, 1);
        let first = shown(&asks).await;
        storage.host.cut(second, engine::sim::TrafficDirection::To);
        server.put_file(CONFIG, text(1, &storage, &portals[1..], None).as_bytes());
        let failed = ask(&asks, Ask::Apply).await.expect_err("it is down");
        let failed = failed.to_string();
        assert!(
            failed.contains("none of the paths that would be left works"),
            "{failed}"
        );
        assert_eq!(shown(&asks).await, first, "it is not rolled back");

        server.put_file(CONFIG, text(1, &storage, &portals, None).as_bytes());
        let changes = ask(&asks, Ask::Apply).await.expect("one path works");
        let [added, down] = &changes[..] else {
            panic!("{changes:?}");
        };
        let expected = format!("~ volume far: a path to {}:3260 is added", portals[1]);
        assert_eq!(*added, expected);
        assert!(down.starts_with("! volume far: the path to "), "{down}");
        assert!(down.contains("does not work yet"), "{down}");
        storage.host.mend(second);
        time::sleep(Duration::from_secs(20)).await;
        let (_, sessions) = shown(&asks).await;
        assert!(
            sessions.iter().all(|(_, state)| state == "logged in"),
            "{sessions:?}"
        );
        met.borrow_mut().down += 1;
        ask(&asks, Ask::Stop).await;
    });
}

#[test]
fn a_disk_has_the_sessions_of_a_start_after_its_paths_have_changed_under_a_load() {
    let met = RefCell::default();
    seeds(60, |seed| run(seed, &met));
    let met = met.into_inner();
    assert_occurred([
        ("changed", met.changed),
        ("unchanged", met.unchanged),
        ("rolled back", met.rolled_back),
    ]);
}

#[test]
fn a_path_that_is_down_may_be_added_and_the_only_one_that_works_not_removed() {
    let met = RefCell::default();
    seeds(10, |seed| add_one_that_is_down(seed, &met));
    assert_occurred([("down", met.into_inner().down)]);
}
