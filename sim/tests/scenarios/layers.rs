//! Where the time of an I/O goes, across both ends: a delay planted in one place shows up in its row and in no other,
//! and the rows add up.

use std::{path::Path, time::Duration};

use engine::{
    Payload,
    sim::{World, WorldConfig, seeds},
    time,
};
use sim::{assert_occurred, daemon_machine::DaemonMachine};
use volume::{
    Durability, SharedVolume,
    config::Volumes,
    graph::Graph,
    layers::{Layers, Ran, Span, Watch, watched},
};

const TARGET: &str = "iqn.2026-11.io.sanstone:t0";
const US: Duration = Duration::from_micros(1);
const PLANTED: Duration = Duration::from_micros(200);
/// Tolerance: passes of a lane take time too, and one may be counted in the neighbouring row.
const NEAR: Duration = Duration::from_micros(8);
const IOS: u64 = 100;

/// How long an I/O takes in each place.
#[derive(Clone, Copy)]
struct Delays {
    /// In a layer at the initiator.
    own: Duration,
    /// Each way.
    link: Duration,
    /// In a layer at the target.
    tree: Duration,
    /// In a rule of a `fault` layer beneath that.
    fault: Duration,
    /// At its disk.
    disk: Duration,
}

const PLAIN: Delays = Delays {
    own: Duration::from_micros(5),
    link: Duration::from_micros(25),
    tree: Duration::from_micros(10),
    fault: Duration::ZERO,
    disk: Duration::from_micros(80),
};

/// The rows: what was spent in the volume's layers, at the initiator, on the wire, at the target, at its medium.
type Rows = [Duration; 5];

/// Many I/Os of one kind, each after the other.
#[derive(Debug, Default)]
struct Seen(Vec<Rows>);

impl Seen {
    fn mean(&self) -> Rows {
        let of = |row: usize| self.0.iter().map(|rows| rows[row]).sum::<Duration>();
        std::array::from_fn(|row| of(row) / self.0.len() as u32)
    }

    /// Each row at this part of a hundred of the I/Os, which are ordered by their time in all, as in the lab: the row of
    /// one I/O that lies there, so that the rows add up.
    fn at_percent(&self, percent: usize) -> Rows {
        let mut all = self.0.clone();
        all.sort_by_key(|rows| rows.iter().sum::<Duration>());
        all[(all.len() * percent / 100).min(all.len() - 1)]
    }

    /// The mean, the median and the 99th percentile.
    fn bands(&self) -> [(&'static str, Rows); 3] {
        [
            ("mean", self.mean()),
            ("p50", self.at_percent(50)),
            ("p99", self.at_percent(99)),
        ]
    }
}

/// Of reads and of writes.
#[derive(Debug, Default)]
struct Both {
    read: Seen,
    write: Seen,
}

fn world(seed: u64, delays: Delays) -> World {
    let exactly = |delay: Duration| {
        let ns = delay.as_nanos() as u64;
        ns..ns + 1
    };
    let mut config = WorldConfig::default();
    config.net.latency_ns = exactly(delays.link);
    config.net.split_probability = 0.0;
    config.disk.latency_ns = exactly(delays.disk);
    (config.disk.slow_probability, config.disk.short_probability) = (0.0, 0.0);
    config.turn_ns = 100..101;
    World::with_config(seed, config)
}

/// The configurations of a daemon with this many lanes, and of the client. If there are several, the volume does not live
/// on the first one, which serves the only session.
fn texts(lanes: usize, delays: Delays) -> [String; 2] {
    let throttled = |latency: Duration, of: &str| {
        format!(
            "throttle = {{ rate = \"1Tbit/s\", latency = \"{}us\", of = {of} }}\n",
            latency.as_micros()
        )
    };
    let file = "{ file = { path = \"disk\", size = \"8MiB\", cache = \"direct\" } }";
    let fault = match delays.fault.as_micros() {
        0 => file.to_owned(),
        us => format!("{{ fault = {{ rules = [{{ delay = \"{us}us\" }}], of = {file} }} }}"),
    };
    let served = throttled(delays.tree, &fault);
    let iscsi = format!("{{ iscsi = {{ url = \"iscsi://target/{TARGET}/0\", sessions = 1 }} }}");
    let used = throttled(delays.own, &iscsi);
    [
        format!(
            "lanes = {lanes}\n[volume.aside]\nram = {{ size = \"1MiB\" }}\n[volume.db]\n{served}\
             [target.\"{TARGET}\"]\nluns = [\"db\", \"aside\"]\nallow = [\"*\"]\n"
        ),
        format!("disk.{used}"),
    ]
}

/// Runs `scenario` on the client's volume, opened with stage times enabled. Both machines have this many lanes; the
/// volume lives on the last one, and the scenario is on the first.
fn run<T>(
    seed: u64,
    lanes: usize,
    delays: Delays,
    scenario: impl AsyncFnOnce(SharedVolume) -> T,
) -> T {
    let world = world(seed, delays);
    let [served, used] = texts(lanes, delays);
    let target = DaemonMachine::new(world.host_with_lanes("target", lanes), &served);
    let client = world.host_with_lanes("client", lanes);
    let client_lanes: Vec<_> = (0..lanes).map(|lane| client.lane(lane)).collect();
    let home = client.lane(lanes - 1);
    world.block_on(&client, async {
        target.start();
        target.ready().await;
        let volumes: Volumes = toml::from_str(&used).expect("it parses");
        let mut graph = Graph::new(volumes, Path::new("/")).expect("the configuration is valid");
        graph.set_lanes(&client_lanes);
        graph.set_watched(true);
        let tree = graph.open("disk", &home).await.expect("it is served");
        let volume = tree.on_lane().await.expect("it is open");
        let done = scenario(volume).await;
        drop(tree);
        graph.close().await;
        done
    })
}

/// How long `io` took in all, and where.
async fn watch<T>(io: impl Future<Output = volume::Result<T>>) -> (Duration, Layers) {
    let (watch, began) = (Watch::new(), time::now());
    watched(watch.clone(), io).await.expect("it works");
    (time::now() - began, watch.layers())
}

fn rows(took: Duration, layers: Layers) -> Rows {
    assert!(!layers.is_partial && layers.untold.is_zero(), "{layers:?}");
    let below = layers.below().expect("all of it is told");
    let own = took.checked_sub(below + layers.initiator);
    let own = own.expect("no more than the whole");
    [
        own,
        layers.initiator,
        layers.wire,
        layers.target,
        layers.medium,
    ]
}

fn seen(seed: u64, lanes: usize, delays: Delays) -> Both {
    run(seed, lanes, delays, async |volume| {
        let mut both = Both::default();
        let row = |(took, layers)| rows(took, layers);
        for at in (0..IOS).map(|io| io * 4096) {
            let write = volume.write(at, Payload::zeroes(4096), Durability::Cached);
            both.write.0.push(row(watch(write).await));
            both.read.0.push(row(watch(volume.read(at, 4096)).await));
        }
        both
    })
}

fn plant(lanes: usize) {
    seeds(4, |seed| {
        let plain = seen(seed, lanes, PLAIN);
        for (kind, seen) in [("read", &plain.read), ("write", &plain.write)] {
            let initiator = Duration::ZERO;
            let expected = [PLAIN.own, initiator, 2 * PLAIN.link, PLAIN.tree, PLAIN.disk];
            for (at, rows) in seen.bands() {
                for (row, (got, expected)) in rows.into_iter().zip(expected).enumerate() {
                    let is_near = got.abs_diff(expected) < NEAR;
                    assert!(is_near, "{kind}, {at}, row {row}: {rows:?}");
                }
            }
        }
        let own = PLAIN.own + PLANTED;
        let link = PLAIN.link + PLANTED / 2;
        let (tree, disk) = (PLAIN.tree + PLANTED, PLAIN.disk + PLANTED);
        let fault = PLANTED;
        for (planted, delays) in [
            (0, Delays { own, ..PLAIN }),
            (2, Delays { link, ..PLAIN }),
            (3, Delays { tree, ..PLAIN }),
            // Seen from outside, any delaying layer belongs to the target, whatever it simulates.
            (3, Delays { fault, ..PLAIN }),
            (4, Delays { disk, ..PLAIN }),
        ] {
            let with = seen(seed, lanes, delays);
            for (before, after) in [(&plain.read, &with.read), (&plain.write, &with.write)] {
                for ((at, before), (_, after)) in before.bands().into_iter().zip(after.bands()) {
                    for row in 0..before.len() {
                        let expected = match row == planted {
                            true => before[row] + PLANTED,
                            false => before[row],
                        };
                        assert!(
                            after[row].abs_diff(expected) < NEAR,
                            "planted in row {planted}, {at}: {before:?} became {after:?}"
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn a_planted_delay_shows_in_its_row_and_in_no_other() {
    plant(1);
}

#[test]
fn a_planted_delay_on_another_lane_shows_in_its_row_and_in_no_other() {
    plant(2);
}

#[test]
fn a_trace_says_the_same_by_node_and_command() {
    trace(1);
}

#[test]
fn a_trace_of_what_runs_on_another_lane_says_the_same() {
    trace(2);
}

fn trace(lanes: usize) {
    let (spans, rows) = run(3, lanes, PLAIN, async |volume| {
        let (watch, began) = (Watch::tracing(), time::now());
        watched(watch.clone(), async { volume.read(0, 4096).await })
            .await
            .expect("it reads");
        let took = time::now() - began;
        (watch.take_spans().0, rows(took, watch.layers()))
    });
    let nodes: Vec<&str> = spans.iter().map(|span| &*span.node).collect();
    // A command ends before the request that it serves, and that request before the one above it.
    assert_eq!(
        nodes,
        [
            "disk/throttle/iscsi",
            "disk/throttle/iscsi",
            "disk/throttle"
        ]
    );
    let Ran::Command {
        sent,
        told: Some(told),
    } = spans[0].ran
    else {
        panic!("{spans:?}");
    };
    let trip = spans[0].ended - sent;
    assert_eq!(trip - told.total, rows[2], "the wire");
    assert_eq!(told.total, rows[3] + rows[4], "the target and its medium");
    assert_eq!(told.medium, Some(rows[4]));
    let took = |span: usize| spans[span].ended - spans[span].began;
    assert!((took(2) - took(1)).abs_diff(PLAIN.own) < NEAR, "{spans:?}");
}

#[test]
fn the_rows_of_an_io_of_many_commands_add_up() {
    let (took, layers, commands) = run(1, 1, PLAIN, async |volume| {
        // More than one command carries, so that several are in flight.
        let (watch, began) = (Watch::tracing(), time::now());
        let read = watched(watch.clone(), async { volume.read(0, 8 << 20).await });
        read.await.expect("it reads");
        let took = time::now() - began;
        let mut spans = watch.take_spans().0;
        spans.retain(|span| matches!(span.ran, Ran::Command { .. }));
        (took, watch.layers(), spans)
    });
    let beside = |(at, one): (usize, &Span)| {
        let mut others = commands[..at].iter();
        others.any(|other| other.began < one.ended && one.began < other.ended)
    };
    let beside = commands.iter().enumerate().filter(|it| beside(*it)).count();
    assert_occurred([("commands beside others of their I/O", beside as u64)]);
    let [own, initiator, wire, target, medium] = rows(took, layers);
    assert!(
        own + initiator < took / 10,
        "{own:?}, {initiator:?} of {took:?}"
    );
    assert!(wire > 2 * PLAIN.link && target > Duration::ZERO && medium >= PLAIN.disk / 2);
}

#[test]
fn a_command_that_waits_for_the_window_waits_at_the_initiator() {
    let waits = |count: u64| {
        run(2, 1, PLAIN, async move |volume| {
            let ios = (0..count).map(|io| {
                let volume = volume.clone();
                engine::spawn(async move { watch(volume.read(io * 4096, 4096)).await })
            });
            let mut longest = [Duration::ZERO; 2];
            for io in ios.collect::<Vec<_>>() {
                let (took, layers) = io.await;
                let rows = rows(took, layers);
                longest = [0, 1].map(|row| longest[row].max(rows[row]));
            }
            longest
        })
    };
    let [volume, initiator] = waits(8);
    assert!(
        volume < 20 * US && initiator < 20 * US,
        "{volume:?}, {initiator:?}"
    );
    // Far more than the target's command window.
    let [volume, initiator] = waits(1500);
    assert!(initiator > 5 * PLAIN.disk, "{initiator:?}");
    assert!(volume < PLAIN.disk, "{volume:?}");
}
