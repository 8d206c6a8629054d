//! State that a unit needs after a restart is saved without blocking anybody and in the order of its changes, and a
//! change takes effect only once it is saved.

use std::{
    cell::Cell,
    collections::BTreeMap,
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use engine::{
    Lane, LaneConfig, LaneFuture, LaneHandle, blocking,
    sim::{World, seeds},
    spawn, time,
};
use front_iscsi::{Allow, IscsiServer, Limits, LunSpec, PortalGroup, ServerConfig, TargetSpec};
use sim::{
    Count, assert_occurred,
    raw::{Answer, RawSession},
};
use unit::{DiskSpec, Keep, Units, UnitsConfig};
use volume::{SharedVolume, leaf::ram::Region};

use crate::MS;

const IQN: &str = "iqn.2026-11.io.sanstone:kept";
const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
const GOOD: Option<u8> = Some(0);
/// HARDWARE ERROR, INTERNAL TARGET FAILURE.
const NOT_KEPT: [u8; 3] = [4, 0x44, 0];

/// A RAM disk behind `address`.
fn config(address: SocketAddr, keep: Keep) -> (UnitsConfig, ServerConfig) {
    let region = Region::new(1 << 20, 512).expect("memory for a small disk");
    let disk = DiskSpec {
        name: "disk".into(),
        uuid: [7; 16],
        open: Arc::new(move || {
            let region = region.clone();
            LaneFuture::new(async move { Ok(Rc::new(region.on_lane()) as SharedVolume) })
        }),
        kept: None,
        told: Vec::new(),
    };
    let lun = LunSpec {
        volume: "disk".into(),
        removable: false,
        read_only: false,
    };
    let target = TargetSpec {
        name: IQN.into(),
        portal_groups: vec![PortalGroup::only(vec![address])],
        luns: BTreeMap::from([(0, lun)]),
        allow: Allow::Everyone,
        allow_from: Vec::new(),
        chap: None,
        redirect: None,
    };
    let units = UnitsConfig {
        disks: vec![disk],
        keep: Some(keep),
        note: None,
        ..UnitsConfig::default()
    };
    let server = ServerConfig {
        targets: vec![target],
        discovery: None,
        digests: false,
        limits: Limits::default(),
    };
    (units, server)
}

async fn start((units, server): (UnitsConfig, ServerConfig), lanes: &[LaneHandle]) -> IscsiServer {
    let units = Units::open(units, lanes).await.expect("its disk");
    IscsiServer::start(server, &units).await.expect("a server")
}

/// PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY with APTPL.
fn register(session: &RawSession, key: u8) -> iscsi::TaskId {
    let mut list = [0; 24];
    (list[15], list[20]) = (key, 1);
    let cdb = [0x5F, 6, 0, 0, 0, 0, 0, 0, 24, 0];
    session.submit(&cdb, &list, 0).expect("it is sent")
}

/// The keys that PERSISTENT RESERVE IN reports.
async fn keys(session: &RawSession) -> Vec<u8> {
    let cdb = [0x5E, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    let reply = session.execute(&cdb, &[], 256).await.expect("a reply");
    let len = usize::from(reply.data[7]);
    reply.data[8..8 + len].chunks(8).map(|key| key[7]).collect()
}

async fn login(portal: SocketAddr, name: &str) -> Rc<RawSession> {
    let session = RawSession::login_at(portal, IQN, name).await;
    // Consumes the unit attention of the power-on.
    session.execute(&[0; 6], &[], 0).await.expect("it is ready");
    session
}

/// Reads over another session while one waits for its state to be saved. The last read lets the save proceed, so all of
/// them complete before it.
async fn reads_meanwhile(portal: SocketAddr, kept: &AtomicBool, let_go: mpsc::Sender<()>) {
    let one = login(portal, "one").await;
    let other = login(portal, "other").await;
    let task = register(&one, 1);
    let answered = Rc::new(Cell::new(false));
    let is_answered = answered.clone();
    let reader = spawn(async move {
        for _ in 0..20 {
            let read = other.execute(&READ, &[], 4096).await.expect("a read");
            assert_eq!(read.status, GOOD);
            assert!(!is_answered.get(), "it is answered before it is kept");
            time::sleep(MS).await;
        }
        let_go.send(()).expect("it waits to be written");
    });
    let answer = one.answer(task).await.expect("an answer");
    answered.set(true);
    assert_eq!(answer.status, GOOD);
    assert!(kept.load(SeqCst), "it is answered before it is kept");
    reader.await;
    assert_eq!(keys(&one).await, [1]);
}

#[test]
fn a_lane_goes_on_while_a_state_is_kept() {
    let kept = Arc::new(AtomicBool::new(false));
    let (let_go, waits) = mpsc::channel();
    let (told, waits) = (kept.clone(), Arc::new(Mutex::new(waits)));
    let keep: Keep = Arc::new(move |_, _| {
        let (told, waits) = (told.clone(), waits.clone());
        LaneFuture::new(async move {
            let write = move || {
                let waits = waits.lock().map_err(|error| error.to_string())?;
                let is_let_go = waits.recv_timeout(Duration::from_secs(120));
                is_let_go.map_err(|_| "the lane stands still meanwhile".to_owned())?;
                told.store(true, SeqCst);
                Ok(())
            };
            let kept = blocking::run(blocking::WorkKind::Files, write).await;
            kept.map_err(|error| error.to_string())?
        })
    });
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let handle = lane.handle();
    lane.block_on(async {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = start(config(address, keep), &[handle]).await;
        reads_meanwhile(server.portals()[0], &kept, let_go).await;
        server.stop().await;
    });
}

#[test]
fn nobody_sees_a_change_before_it_is_kept() {
    let aborted = Count::new();
    seeds(200, |seed| {
        let world = World::new(seed);
        let (machine, client) = (world.host("target"), world.host("client"));
        let keep: Keep = Arc::new(|_, _| {
            LaneFuture::new(async {
                time::sleep(Duration::from_secs(2)).await;
                Ok(())
            })
        });
        let server_config = config(machine.addr(3260), keep);
        let lanes = [machine.lane(0)];
        let started = machine.spawn(async move { start(server_config, &lanes).await });
        let (portal, aborted) = (machine.addr(3260), &aborted);
        world.block_on(&client, async move {
            let _server = started.await;
            let (one, other) = (login(portal, "one").await, login(portal, "other").await);
            let (began, task) = (time::now(), register(&one, 1));
            let mut looks = 0;
            while time::now() - began < Duration::from_millis(1900) {
                assert_eq!(keys(&other).await, []);
                looks += 1;
                time::sleep(MS).await;
            }
            assert!(looks > 100, "{looks} looks in 1.9 s");
            // An abort is answered only when the change has been made.
            let is_kept = time::now() - began >= Duration::from_secs(2);
            let response = one.abort(task).await.expect("an answer");
            aborted.when(!is_kept);
            assert!(time::now() - began >= Duration::from_secs(2), "{response}");
            assert_eq!(keys(&other).await, [1]);
        });
    });
    assert_occurred([("aborts of a change while it is kept", aborted.get())]);
}

/// The saved state, and which attempts fail.
#[derive(Default)]
struct File {
    text: Option<String>,
    attempts: usize,
}

#[test]
fn states_are_kept_in_their_order_and_what_is_not_kept_did_not_happen() {
    let [overlapping, not_kept] = [const { Count::new() }; 2];
    seeds(200, |seed| {
        let world = World::new(seed);
        let machine = world.host_with_lanes("target", 2);
        let client = world.host("client");
        let file = Arc::new(Mutex::new(File::default()));
        let keep: Keep = {
            let file = file.clone();
            Arc::new(move |_, text| {
                let file = file.clone();
                LaneFuture::new(async move {
                    let write = move || {
                        let mut file = file.lock().expect("nobody panics here");
                        file.attempts += 1;
                        let failed = match file.attempts {
                            3 => return Err("the disk is full".to_owned()),
                            // It is there all the same, and the next attempt stores what it was before.
                            7 => Err("the directory cannot be synced".to_owned()),
                            _ => Ok(()),
                        };
                        file.text = text;
                        failed
                    };
                    let kept = blocking::run(blocking::WorkKind::Files, write).await;
                    kept.expect("it is run")
                })
            })
        };
        let server_config = config(machine.addr(3260), keep);
        let lanes = [machine.lane(0), machine.lane(1)];
        let started = machine.spawn(async move { start(server_config, &lanes).await });
        let portal = machine.addr(3260);
        let mut random = world.random();
        let (overlapping, not_kept) = (&overlapping, &not_kept);
        world.block_on(&client, async move {
            let _server = started.await;
            let (unanswered, together) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let sessions = (1..=8u8).map(|key| {
                let (file, pause) = (file.clone(), random.below(3_000_000));
                let (unanswered, together) = (unanswered.clone(), together.clone());
                spawn(async move {
                    let session = login(portal, &key.to_string()).await;
                    time::sleep(Duration::from_nanos(pause)).await;
                    let task = register(&session, key);
                    unanswered.set(unanswered.get() + 1);
                    together.set(together.get() + usize::from(unanswered.get() > 1));
                    let answer = session.answer(task).await.expect("an answer");
                    unanswered.set(unanswered.get() - 1);
                    let text = file.lock().expect("nobody panics here").text.clone();
                    let is_kept = text.is_some_and(|text| text.contains(&format!("{key:016x}")));
                    let Answer { status, sense, .. } = answer;
                    let is_known = keys(&session).await.contains(&key);
                    match status {
                        GOOD => assert!(is_kept && is_known, "{key}"),
                        _ => {
                            assert_eq!(sense, NOT_KEPT);
                            assert!(!is_kept && !is_known, "{key}");
                        }
                    }
                    status == GOOD
                })
            });
            let mut good = 0;
            for session in sessions.collect::<Vec<_>>() {
                good += usize::from(session.await);
            }
            assert_eq!(good, 6, "two of eight fail");
            overlapping.add(together.get());
            not_kept.add(8 - good);
        });
    });
    assert_occurred([
        ("changes while another was kept", overlapping.get()),
        ("changes that were not kept", not_kept.get()),
    ]);
}
