//! A daemon is switched to another configuration at a random moment of a load. It then serves what a start with the new
//! configuration would serve, disks and ports keep their identity, and a session whose target is in both configurations
//! notices nothing.

mod failures;
mod growth;
mod latency;
mod luns;
mod paths;
mod stalls;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::pending,
    path::Path,
    rc::Rc,
    time::Duration,
};

use engine::{
    blocking::{self, Kind},
    cross::{OneshotSender, Sender, channel, oneshot},
    sim::{Host, Random, World, seeds},
    spawn, time,
};
use node::{
    Config, Daemon, Failure, Process,
    description::{Cache, Description, Node},
};
use sim::{
    assert_occurred,
    raw::RawSession,
    target_machine::{Networks, TargetMachine},
};
use uuid::Uuid;
use volume::graph::NewStripe;

use crate::MS;

const SEEDS: u64 = 60;
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
/// The number of the volume on another machine, whose paths and sessions change.
const FAR: usize = VOLUMES.len();
/// How long a disk hangs.
const HUNG: Duration = Duration::from_secs(3_600);
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
    paths_changed: u64,
    limits_changed: u64,
    rolled_back: u64,
    went_back: u64,
}

/// A configuration as it was drawn.
#[derive(Clone, PartialEq)]
struct Drawn {
    text: String,
    /// The LUNs of each target, and whether the client may use it.
    targets: BTreeMap<String, (BTreeMap<usize, usize>, bool)>,
    /// The settings of the volume on another machine.
    far: String,
    /// How many commands a session may have in flight.
    commands: usize,
}

impl Drawn {
    fn serves(&self, volume: usize) -> bool {
        let mut luns = self.targets.values().flat_map(|(luns, _)| luns.values());
        luns.any(|it| *it == volume)
    }
}

fn target(number: usize) -> String {
    format!("iqn.2026-11.io.sanstone:t{number}")
}

fn draw(random: &mut Random, lanes: usize, storage: &TargetMachine) -> Drawn {
    let commands = [8, 20][random.index(2)];
    let (paths, sessions) = paths::draw(random, &paths::portals(storage));
    let far = paths::remote(storage, &paths, sessions);
    let kinds: Vec<&str> = VOLUMES.into_iter().chain([&*far]).collect();
    let mut text = format!("lanes = {lanes}\nmemory = \"32MiB\"\n");
    text += &format!("[limits]\ncommands = {commands}\n");
    text += "[volume.kept]\nfile = { path = \"kept\", size = \"64KiB\" }\n";
    let mut tables = format!("[target.\"{KEPT}\"]\nluns = [\"kept\"]\nallow = [\"*\"]\n");
    let mut targets = BTreeMap::new();
    let mut used = [false; FAR + 1];
    for number in 0..TARGETS {
        if random.chance(0.4) {
            continue;
        }
        let mut luns = BTreeMap::new();
        for volume in 0..=FAR {
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
    for (volume, kind) in kinds.iter().enumerate() {
        if used[volume] || random.chance(0.3) {
            text += &format!("[volume.v{volume}]\n{kind}\n");
        }
    }
    text += &tables;
    Drawn {
        text,
        targets,
        far,
        commands,
    }
}

enum Ask {
    Apply(OneshotSender<Result<Vec<String>, Failure>>),
    /// The same with a loaded one, given up after this time.
    ApplyWithin(
        Box<Config>,
        Duration,
        OneshotSender<Result<Vec<String>, Failure>>,
    ),
    Describe(OneshotSender<Description>),
    LookAgain(OneshotSender<bool>),
    Stop(OneshotSender<()>),
}

fn process() -> Process {
    Process {
        boot: Uuid::from_u128(1),
        name: "a daemon".to_owned(),
    }
}

/// The configuration of the current machine.
async fn configuration() -> Config {
    let loaded = blocking::run(Kind::Files, || Config::load(Path::new(CONFIG)));
    let loaded = loaded.await.expect("it is run");
    loaded.unwrap_or_else(|failure| panic!("{failure}"))
}

/// Starts the daemon on `host`.
fn start(host: &Host, lanes: usize) -> Sender<Ask> {
    let (asks, told) = channel();
    let on = host.clone();
    drop(host.spawn(async move {
        let process = process();
        let lanes: Vec<_> = (0..lanes).map(|lane| on.lane(lane)).collect();
        let daemon = Daemon::start(configuration().await, &process, &lanes, true).await;
        let mut daemon = daemon.unwrap_or_else(|failure| panic!("{failure}"));
        while let Some(ask) = told.receive().await {
            match ask {
                Ask::Apply(answer) => {
                    answer.send(daemon.apply(configuration().await, false, pending()).await);
                }
                Ask::ApplyWithin(config, time, answer) => {
                    answer.send(daemon.apply(*config, false, time::sleep(time)).await);
                }
                Ask::Describe(answer) => answer.send(daemon.view().await.describe()),
                Ask::LookAgain(answer) => answer.send(daemon.look_again().await),
                Ask::Stop(answer) => {
                    daemon.stop().await.expect("all is flushed");
                    return answer.send(());
                }
            }
        }
    }));
    asks
}

/// Creates the stripe of the configuration that is the volume `name`.
async fn create_stripe(server: &Host, name: &'static str) {
    let home = server.lane(0);
    let created = server.spawn(async move {
        let config = Config::load(Path::new(CONFIG))?;
        let new = NewStripe {
            uuid: Uuid::from_u128(7),
            created_unix_s: 0,
            force: false,
        };
        node::create_stripe(&config, &process(), name, &home, &new).await
    });
    created.await.unwrap_or_else(|failure| panic!("{failure}"));
}

async fn ask<T>(asks: &Sender<Ask>, make: impl FnOnce(OneshotSender<T>) -> Ask) -> T {
    let (sender, answer) = oneshot();
    assert!(asks.send(make(sender)).is_ok(), "the daemon listens");
    answer.outcome().await.expect("the daemon answers")
}

/// What a client sees of a daemon.
#[derive(Clone, PartialEq, Debug)]
struct Seen {
    description: Description,
    /// How many commands a new session may have in flight.
    commands: usize,
}

async fn seen(asks: &Sender<Ask>, server: &Host) -> Seen {
    let description = described(asks).await;
    let session = RawSession::login_at(server.addr(PORT), KEPT, "observer").await;
    let submitted = std::iter::repeat_with(|| session.submit(&TEST_UNIT_READY, &[], 0));
    let commands = submitted.take_while(Result::is_ok).count();
    session.end();
    Seen {
        description,
        commands,
    }
}

/// What it serves, without statistics. Which lane has a session, and its local port, may differ after a restart.
async fn described(asks: &Sender<Ask>) -> Description {
    let mut description = ask(asks, Ask::Describe).await;
    fn forget(node: &mut Node) {
        node.requests.clear();
        node.cache = node.cache.take().map(|_| Cache::default());
        for session in &mut node.sessions {
            (session.local, session.lane) = (None, 0);
        }
        node.children.iter_mut().for_each(forget);
    }
    for volume in description.volumes.values_mut() {
        forget(&mut volume.tree);
        volume.commands.clear();
    }
    description.sessions.clear();
    description
}

/// Logs in as soon as the target is up, and consumes the unit attentions.
async fn login(host: &Host, target: &str) -> Rc<RawSession> {
    login_as("client", host, target).await
}

/// The same as the initiator called `name`.
async fn login_as(name: &str, host: &Host, target: &str) -> Rc<RawSession> {
    let session = RawSession::login_at(host.addr(PORT), target, name).await;
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
    let networks = [Networks::TwoOfOneGroup, Networks::TwoGroups][random.index(2)];
    let storage = paths::storage(&world, networks);
    let before = draw(&mut random, lanes, &storage);
    let after = match random.chance(0.1) {
        true => before.clone(),
        false => draw(&mut random, lanes, &storage),
    };
    server.put_file(CONFIG, before.text.as_bytes());
    world.block_on(&client, async {
        storage.ready().await;
        let asks = start(&server, lanes);
        let first = seen(&asks, &server).await;
        assert_eq!(first.commands, before.commands);
        let (is_over, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let kept = login(&server, KEPT).await;
        let mut loaded = vec![spawn(load(kept, is_over.clone(), done.clone()))];
        for (name, (luns, is_allowed)) in &before.targets {
            let stays = after.targets.get(name) == before.targets.get(name);
            if stays && *is_allowed && luns.contains_key(&0) {
                let session = login_as("another", &server, name).await;
                loaded.push(spawn(load(session, is_over.clone(), done.clone())));
            }
        }
        let mut others = Vec::new();
        for (name, (luns, is_allowed)) in &before.targets {
            if *is_allowed {
                others.push((name, luns, login(&server, name).await));
            }
        }
        time::sleep(MS * random.below(20) as u32).await;

        if random.chance(0.3) {
            // A step that fails, early or late: nothing may change.
            let (file, portals) = match random.chance(0.5) {
                true => ("path = \"gone\"", ""),
                false => (
                    "path = \"gone\", size = \"64KiB\"",
                    "portals = [\"192.0.2.1:4000\"]\n",
                ),
            };
            let gone = format!(
                "[volume.gone]\nfile = {{ {file} }}\n\
                 [target.\"iqn.2026-11.io.sanstone:gone\"]\nluns = [\"gone\"]\nallow = [\"*\"]\n{portals}"
            );
            server.put_file(CONFIG, (after.text.clone() + &gone).as_bytes());
            let refused = ask(&asks, Ask::Apply).await;
            refused.expect_err("there is no such file, or no such address");
            assert_eq!(seen(&asks, &server).await, first, "it is not rolled back");
            met.borrow_mut().rolled_back += 1;
        }
        server.put_file(CONFIG, after.text.as_bytes());
        let applied = ask(&asks, Ask::Apply).await;
        let changes = applied.unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(
            changes.is_empty(),
            before.text == after.text,
            "{changes:?}"
        );
        let live = seen(&asks, &server).await;
        if changes.is_empty() {
            assert_eq!(live, first);
            met.borrow_mut().nothing_changed += 1;
        }
        let stays_far = before.serves(FAR) && after.serves(FAR);
        met.borrow_mut().paths_changed += u64::from(stays_far && before.far != after.far);
        met.borrow_mut().limits_changed += u64::from(first.commands != live.commands);
        for (name, luns, session) in others {
            check_session(&session, luns, after.targets.get(name), met).await;
        }
        let went_on_from = done.get();
        while done.get() < went_on_from + 3 {
            time::sleep(MS).await;
        }
        if random.chance(0.5) {
            // There and back: removed resources are free again at once.
            for (text, expected) in [(&before.text, &first), (&after.text, &live)] {
                server.put_file(CONFIG, text.as_bytes());
                let applied = ask(&asks, Ask::Apply).await;
                applied.unwrap_or_else(|failure| panic!("{failure}"));
                assert_eq!(seen(&asks, &server).await, *expected);
                met.borrow_mut().went_back += 1;
            }
        }
        is_over.set(true);
        for loaded in loaded {
            loaded.await;
        }

        ask(&asks, Ask::Stop).await;
        // As when a process ends: its locks are released.
        server.power_cut();
        server.restart();
        let asks = start(&server, lanes);
        assert_eq!(
            seen(&asks, &server).await,
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
        ("paths changed", met.paths_changed),
        ("limits changed", met.limits_changed),
        ("rolled back", met.rolled_back),
        ("went back", met.went_back),
    ]);
}
