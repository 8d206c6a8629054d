//! With the default settings each lane has one session, over one of two networks. One of these swallows everything, under
//! load.

use std::{cell::RefCell, net::IpAddr};

use engine::{
    Instant,
    sim::TrafficDirection,
    spawn,
    task::{JoinHandle, join_all},
};

use super::{lanes::site_of, paths::path, *};
use crate::SharedVolume;

/// Requests outstanding at a time.
const DEPTH: usize = 8;
/// Each of them pauses for this long, so that a test has few of them.
const PAUSE: Duration = Duration::from_millis(5);
/// A lane does not send new requests on its session by then: after half of the limit its target has been pinged, and the
/// watchdog has looked twice.
const AVOIDED_WITHIN: Duration = Duration::from_millis(3500 * 3 / 4);
/// A request that goes over the other network takes less.
const PROMPT: Duration = Duration::from_millis(100);
/// By then the other network carries the load.
const CARRIES_WITHIN: Duration = Duration::from_secs(5);
const WINDOW: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    Write,
}

/// Requests to all lanes in turn.
struct Load {
    kind: Kind,
    lanes: Vec<SharedVolume>,
    begun: Cell<usize>,
    is_over: Cell<bool>,
    /// When each request began and ended.
    done: RefCell<Vec<(Instant, Instant)>>,
}

async fn ask(kind: Kind, lane: &SharedVolume, at: u64) {
    let done = match kind {
        Kind::Read => lane.read(at, 512).await.map(drop),
        Kind::Write => {
            lane.write(at, Payload::zeroes(512), Durability::Cached)
                .await
        }
    };
    done.expect("a path is there");
}

impl Load {
    fn begin(self: &Rc<Self>) -> Vec<JoinHandle<()>> {
        let one = |number: usize| {
            let load = self.clone();
            spawn(async move {
                while !load.is_over.get() {
                    let turn = load.begun.replace(load.begun.get() + 1);
                    let began = time::now();
                    let lane = &load.lanes[turn % load.lanes.len()];
                    ask(load.kind, lane, 512 * number as u64).await;
                    load.done.borrow_mut().push((began, time::now()));
                    time::sleep(PAUSE).await;
                }
            })
        };
        (0..DEPTH).map(one).collect()
    }

    /// How many requests have ended since `from`.
    fn done_since(&self, from: Instant) -> usize {
        let done = self.done.borrow();
        done.iter().filter(|(_, ended)| *ended >= from).count()
    }

    fn longest(&self) -> Duration {
        let done = self.done.borrow();
        let took = done.iter().map(|(began, ended)| *ended - *began);
        took.max().unwrap_or_default()
    }
}

/// Loses the network at `ip`, and has it back later.
async fn lose(disk: &Rc<IscsiDisk>, load: &Rc<Load>, (host, ip): (&Host, IpAddr), what: &str) {
    let running = load.begin();
    let begun = time::now();
    time::sleep(WINDOW).await;
    let before = load.done_since(begun);
    for direction in [TrafficDirection::To, TrafficDirection::From] {
        host.cut(ip, direction);
    }
    let cut = time::now();
    time::sleep(AVOIDED_WITHIN).await;
    let began = time::now();
    let new = (0..2 * DEPTH).map(|number| {
        let at = 512 * (DEPTH + number) as u64;
        let lane = &load.lanes[number % load.lanes.len()];
        Box::pin(ask(load.kind, lane, at))
    });
    join_all(new).await;
    let took = time::now() - began;
    assert!(took < PROMPT, "{what}: {took:?}");
    assert_eq!(disk.path_counts().lost, 0, "{what}: nothing is lost yet");
    time::sleep(cut + CARRIES_WITHIN - time::now()).await;
    let begun = time::now();
    time::sleep(WINDOW).await;
    let now = load.done_since(begun);
    assert!(now * 10 >= before * 9, "{what}: {now}, and {before} before");
    let lost = disk.path_counts().lost as usize;
    assert_eq!(lost, load.lanes.len() / 2, "{what}");
    host.mend(ip);
    while disk.live_paths() < load.lanes.len() {
        time::sleep(Duration::from_millis(10)).await;
    }
    load.is_over.set(true);
    join_all(running).await;
    let longest = load.longest();
    assert!(longest < CARRIES_WITHIN, "{what}: {longest:?}");
}

/// Has one of two networks swallow everything. Half of the lanes have their session over it.
fn survives(lanes: usize, lost: usize, kind: Kind) {
    let (site, lanes) = site_of(lanes);
    let networks = [site.config().address, site.second_network()];
    let more = (1..lanes.len()).map(|number| path(networks[number % 2], 1 + number as u16));
    let config = IscsiConfig {
        multipath: Multipath {
            more: more.collect(),
            ..Multipath::default()
        },
        request_timeout: Duration::from_secs(30),
        reconnect_timeout: Duration::from_secs(30),
        ..site.config()
    };
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open_on(config, &lanes).await;
        let disk = disk.expect("as many logins");
        let mut used = vec![disk.clone() as SharedVolume];
        used.extend(disk.from_branches().await.expect("the lanes run"));
        assert_eq!(used.len(), lanes.len());
        let load = Rc::new(Load {
            kind,
            lanes: used,
            begun: Cell::new(0),
            is_over: Cell::new(false),
            done: RefCell::default(),
        });
        let what = format!("{} lanes, network {lost}, {kind:?}", lanes.len());
        lose(&disk, &load, (&site.host, networks[lost].ip()), &what).await;
        disk.close().await;
    });
}

/// The first network is that of the home lane's session.
#[test]
fn the_other_network_carries_the_load_soon_whichever_lanes_used_the_lost_one() {
    for lanes in [2, 4] {
        for lost in [0, 1] {
            for kind in [Kind::Read, Kind::Write] {
                survives(lanes, lost, kind);
            }
        }
    }
}
