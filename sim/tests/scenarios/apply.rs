//! A daemon is switched to another configuration at a random moment of a load. It then serves what a start with the new
//! configuration would serve, disks and ports keep their identity, and a session whose target is in both configurations
//! notices nothing.

mod drawn;
mod failures;
mod floors;
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
    blocking::{self, WorkKind},
    cross::{OneshotSender, Sender, channel, oneshot},
    sim::{Host, World, seeds},
    spawn, time,
};
use node::{
    Config, ConfigChange, Daemon, DaemonFailure, Process, StopError,
    description::{CacheDescription, Description, Node},
};
use sim::{assert_occurred, raw::RawSession, target_machine::Networks};
use uuid::Uuid;
use volume::graph::NewStripe;

use self::drawn::{Drawn, DrawnTarget, FAR, STRIPE, draw, draw_sizes, least_sizes};
use crate::MS;

const SEEDS: u64 = 60;
const CONFIG: &str = "/srv/daemon.toml";
const PORT: u16 = 3260;
const KEPT: &str = "iqn.2026-11.io.sanstone:kept";
/// How long a disk hangs.
const HUNG: Duration = Duration::from_secs(3_600);
const TEST_UNIT_READY: [u8; 6] = [0; 6];
const GOOD: Option<u8> = Some(0);
const LUNS_CHANGED: [u8; 3] = [6, 0x3F, 0x0E];
const CAPACITY_CHANGED: [u8; 3] = [6, 0x2A, 9];

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
    ports_changed: u64,
    secrets_changed: u64,
    stayed_beside: u64,
    sent_elsewhere: u64,
    stripes_came: u64,
    stripes_went: u64,
    grown: u64,
    told_of_growth: u64,
    kept_from_shrinking: u64,
    rolled_back: u64,
    went_back: u64,
}

fn target(number: usize) -> String {
    format!("iqn.2026-11.io.sanstone:t{number}")
}

enum Ask {
    Apply(OneshotSender<Result<Vec<String>, DaemonFailure>>),
    /// The same with a loaded one, given up after this time.
    ApplyWithin(
        Box<Config>,
        Duration,
        OneshotSender<Result<Vec<String>, DaemonFailure>>,
    ),
    Describe(OneshotSender<Description>),
    LookAgain(OneshotSender<bool>),
    Stop(OneshotSender<()>),
    /// Stops, whether or not a disk hangs. Answer: whether one did.
    StopAtAHungDisk(OneshotSender<bool>),
}

/// A daemon of a boot of its own: before its start the power may have been cut.
fn process() -> Process {
    Process {
        boot: Uuid::from_u128(1 + u128::from(time::now().as_ns())),
        name: "a daemon".to_owned(),
    }
}

/// The configuration of the current machine.
async fn configuration() -> Config {
    let loaded = blocking::run(WorkKind::Files, || Config::load(Path::new(CONFIG)));
    let loaded = loaded.await.expect("it is run");
    loaded.unwrap_or_else(|failure| panic!("{failure}"))
}

/// The lines that people read.
fn in_lines(changes: Vec<ConfigChange>) -> Vec<String> {
    changes.iter().map(ToString::to_string).collect()
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
                    let applied = daemon.apply(configuration().await, false, pending()).await;
                    answer.send(applied.map(in_lines));
                }
                Ask::ApplyWithin(config, time, answer) => {
                    let applied = daemon.apply(*config, false, time::sleep(time)).await;
                    answer.send(applied.map(in_lines));
                }
                Ask::Describe(answer) => answer.send(daemon.view().await.describe()),
                Ask::LookAgain(answer) => answer.send(daemon.look_again().await),
                Ask::StopAtAHungDisk(answer) => {
                    let stopped = daemon.stop().await;
                    return answer.send(matches!(stopped, Err(StopError::Hung { .. })));
                }
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
            from: None,
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
    /// Which logins to each of the other targets succeed.
    logins: BTreeMap<String, [bool; 3]>,
}

async fn seen(asks: &Sender<Ask>, server: &Host) -> Seen {
    let description = described(asks).await;
    let session = RawSession::login_at(server.addr(PORT), KEPT, "observer").await;
    let submitted = std::iter::repeat_with(|| session.submit(&TEST_UNIT_READY, &[], 0));
    let commands = submitted.take_while(Result::is_ok).count();
    session.end();
    let mut logins = BTreeMap::new();
    for name in description.targets.keys().filter(|name| *name != KEPT) {
        logins.insert(name.clone(), drawn::logins(server, name).await);
    }
    Seen {
        description,
        commands,
        logins,
    }
}

/// What it serves, without statistics. Which lane has a session, and its local port, may differ after a restart.
async fn described(asks: &Sender<Ask>) -> Description {
    let mut description = ask(asks, Ask::Describe).await;
    fn forget(node: &mut Node) {
        node.requests.clear();
        node.cache = node.cache.take().map(|_| CacheDescription::default());
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
    let networks = [Networks::TwoOfOneGroup, Networks::TwoGroups][random.index(2)];
    let storage = paths::storage(&world, networks);
    let sizes = draw_sizes(&mut random, least_sizes());
    let before = draw(&mut random, lanes, &storage, sizes, None);
    let after = match random.chance(0.1) {
        true => before.clone(),
        false => {
            let sizes = draw_sizes(&mut random, before.sizes);
            draw(&mut random, lanes, &storage, sizes, Some(&before))
        }
    };
    drawn::prepare(&server);
    server.put_file(CONFIG, before.text.as_bytes());
    world.block_on(&client, async {
        storage.ready().await;
        let asks = start(&server, lanes);
        let first = seen(&asks, &server).await;
        assert_eq!(first.commands, before.commands);
        let (is_over, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let kept = login(&server, KEPT).await;
        let mut loaded = vec![spawn(load(kept, is_over.clone(), done.clone()))];
        for (name, target) in &before.targets {
            if is_untouched(name, target, &before, &after) {
                let is_varied = after.targets.get(name) != Some(target);
                met.borrow_mut().stayed_beside += u64::from(is_varied);
                let session = target.login(&server, name, "another").await;
                loaded.push(spawn(load(session, is_over.clone(), done.clone())));
            }
        }
        let mut others = Vec::new();
        for (name, target) in &before.targets {
            if target.may_be_used() {
                let session = target.login(&server, name, "client").await;
                others.push((name, target, session));
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
        count_changes(&before, &after, met);
        for (name, target, session) in others {
            let grown = after.has_grown(&before, target.luns.get(&0).copied().unwrap_or(FAR));
            check_session(&session, &target.luns, after.targets.get(name), grown, met).await;
        }
        let went_on_from = done.get();
        while done.get() < went_on_from + 3 {
            time::sleep(MS).await;
        }
        if after.grows(&before) {
            server.put_file(CONFIG, before.text.as_bytes());
            let refused = ask(&asks, Ask::Apply).await;
            refused.expect_err("a disk does not shrink");
            assert_eq!(seen(&asks, &server).await, live, "it is not rolled back");
            server.put_file(CONFIG, after.text.as_bytes());
            met.borrow_mut().kept_from_shrinking += 1;
        } else if random.chance(0.5) {
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

/// Whether the change leaves everything at LUN 0 of this target as it is for a session that is there already.
fn is_untouched(name: &str, target: &DrawnTarget, before: &Drawn, after: &Drawn) -> bool {
    let is_kept = |now: &DrawnTarget| now.may_be_used() && now.luns == target.luns;
    let first = target.luns.get(&0);
    target.may_be_used()
        && after.targets.get(name).is_some_and(is_kept)
        && first.is_some_and(|volume| !after.has_grown(before, *volume))
}

fn count_changes(before: &Drawn, after: &Drawn, met: &RefCell<Met>) {
    let mut met = met.borrow_mut();
    let stays = |volume| before.serves(volume) && after.serves(volume);
    met.paths_changed += u64::from(stays(FAR) && before.far != after.far);
    met.limits_changed += u64::from(before.commands != after.commands);
    met.stripes_came += u64::from(!before.serves(STRIPE) && after.serves(STRIPE));
    met.stripes_went += u64::from(before.serves(STRIPE) && !after.serves(STRIPE));
    met.grown += u64::from(after.grows(before));
    for (name, was) in &before.targets {
        let Some(is) = after.targets.get(name) else {
            continue;
        };
        met.ports_changed += u64::from(was.ports != is.ports);
        met.secrets_changed += u64::from(was.secret != is.secret);
        met.sent_elsewhere += u64::from(was.may_be_used() && is.is_elsewhere);
    }
}

/// Checks what a session sees of the change from `luns` of its target to `now`, in which the disk of LUN 0 may have
/// grown.
async fn check_session(
    session: &RawSession,
    luns: &BTreeMap<usize, usize>,
    now: Option<&DrawnTarget>,
    has_grown: bool,
    met: &RefCell<Met>,
) {
    let task = session.submit(&TEST_UNIT_READY, &[], 0);
    let answer = match task {
        Ok(task) => time::timeout(Duration::from_secs(60), session.answer(task)).await,
        Err(over) => Some(Err(over)),
    };
    let answer = answer.expect("an answer, or the end");
    let Some(now) = now.filter(|now| now.may_be_used()) else {
        answer.expect_err("nobody may use it any more");
        met.borrow_mut().sessions_ended += 1;
        return;
    };
    let now = &now.luns;
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
            vec![[5, 0x25, 0]]
        }
        (Some(was), Some(is)) if was == is => {
            let mut expected = Vec::new();
            if luns != now {
                met.borrow_mut().luns_told += 1;
                expected.push(LUNS_CHANGED);
            }
            if has_grown {
                met.borrow_mut().told_of_growth += 1;
                expected.push(CAPACITY_CHANGED);
            }
            expected
        }
        // A disk it had not seen before: POWER ON OCCURRED.
        _ => vec![[6, 0x29, 0]],
    };
    let mut told = Vec::from_iter((answer.sense != [0; 3]).then_some(answer.sense));
    while told.len() < expected.len() {
        let task = session.submit(&TEST_UNIT_READY, &[], 0);
        let answer = session.answer(task.expect("it goes on")).await;
        told.push(answer.expect("it goes on").sense);
    }
    told.sort_by_key(|sense| expected.iter().position(|it| it == sense));
    assert_eq!(told, expected, "{was:?} to {is:?}");
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
        ("ports changed", met.ports_changed),
        ("secrets changed", met.secrets_changed),
        ("sessions at changed ports or secrets", met.stayed_beside),
        ("sent elsewhere", met.sent_elsewhere),
        ("stripes came", met.stripes_came),
        ("stripes went", met.stripes_went),
        ("grown", met.grown),
        ("told of growth", met.told_of_growth),
        ("kept from shrinking", met.kept_from_shrinking),
        ("rolled back", met.rolled_back),
        ("went back", met.went_back),
    ]);
}
