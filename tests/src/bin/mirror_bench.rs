//! What two copies cost: 4 KiB requests to a mirror of a file here and a disk at a target, beside each of them alone, in
//! turn. `make mirror-bench` runs it.
//!
//! The files are in memory, so that the two media are no one disk; a second set has 500 µs imposed on each of them. A
//! mirrored write ends with the later one of its two writes, so it is compared with the greater of a local and a remote
//! latency, drawn at random again and again. So is a read, whose proof the other copy gives.
//!
//! Beside them goes a pair: the same two copies, used by whoever wants two copies and no mirror. It writes to both at once, and
//! reads from one and the other in turn, so that a mirror beside it shows what it costs to know that the two are equal; the sum
//! of two that ran alone also has not what two cost each other on the same cores.
//!
//! First touches are writes to regions that are not marked, each to another one. Parts: `plain`, `delayed`, `cached`, `marks`.

use engine::{Buf, Lane, LaneConfig, LaneHandle, Payload, task, time};
use harness::directory::Directory;
use harness::procfs::{cpu_time, sleeps};
use harness::samples::{Call, Samples};
use harness::sanstone::Sanstone;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};
use uuid::Uuid;
use volume::claim::Owner;
use volume::config::Volumes;
use volume::graph::{Graph, NewStripe, Tree};
use volume::stats::RequestKind;
use volume::{Durability, MirrorHandle, SharedVolume};

const BLOCK: usize = 4096;
const SPAN_BYTES: u64 = 64 << 20;
/// As the mirror has them.
const REGION_BYTES: u64 = 64 << 10;
const REGIONS: u64 = SPAN_BYTES / REGION_BYTES;
/// Pairs of a local and a remote latency that are drawn.
const PAIRS: u64 = 20_000;
/// The volumes, in this order.
const VOLUMES: [&str; 3] = ["local", "remote", "mirror"];
/// What is measured, each in turn.
const WAYS: [&str; 4] = ["local", "remote", "pair", "mirror"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    RandomWrite,
    SequentialWrite,
    FirstTouch,
    RandomRead,
}

#[derive(Clone, Copy)]
struct Load {
    access: Access,
    depth: usize,
}

const ACCESSES: [Access; 4] = [
    Access::RandomWrite,
    Access::SequentialWrite,
    Access::FirstTouch,
    Access::RandomRead,
];
const DEPTHS: [usize; 2] = [1, 32];

impl Access {
    fn name(self) -> &'static str {
        match self {
            Access::RandomWrite => "random write",
            Access::SequentialWrite => "sequential write",
            Access::FirstTouch => "first touch",
            Access::RandomRead => "random read",
        }
    }

    /// Where the request of this number begins, in bytes. `None`: there is none.
    fn at(self, number: u64) -> Option<u64> {
        let blocks = SPAN_BYTES / BLOCK as u64;
        match self {
            Access::RandomWrite | Access::RandomRead => Some(mixed(number) % blocks * BLOCK as u64),
            Access::SequentialWrite => Some(number % blocks * BLOCK as u64),
            // Each region once: their number is a power of two.
            Access::FirstTouch => (number < REGIONS).then(|| number * 389 % REGIONS * REGION_BYTES),
        }
    }
}

fn loads() -> impl Iterator<Item = Load> {
    let at_depths = |access| DEPTHS.map(|depth| Load { access, depth });
    ACCESSES.into_iter().flat_map(at_depths)
}

/// What a load took on one volume.
struct Taken {
    latencies_us: Vec<f64>,
    cpu_us: f64,
    /// How often a thread went to sleep, the kernel's for these processes among them.
    sleeps: f64,
}

/// One set of media.
struct Media {
    name: &'static str,
    cache: &'static str,
    delay: Option<&'static str>,
}

const MEDIA: [Media; 3] = [
    Media {
        name: "plain",
        cache: "direct-sync",
        delay: None,
    },
    Media {
        name: "delayed",
        cache: "direct-sync",
        delay: Some("500us"),
    },
    Media {
        name: "cached",
        cache: "write-through",
        delay: None,
    },
];

impl Media {
    /// A file, with what is imposed on it.
    fn file(&self, directory: &Path, name: &str) -> String {
        let path = directory.join(name);
        let size = SPAN_BYTES + (1 << 20);
        let file = format!(
            "file = {{ path = {path:?}, size = \"{size}B\", cache = \"{}\" }}",
            self.cache
        );
        match self.delay {
            Some(delay) => {
                format!("fault = {{ rules = [{{ delay = \"{delay}\" }}], of = {{ {file} }} }}")
            }
            None => file,
        }
    }
}

fn main() {
    let call = Call::read(6, 1.0);
    let mut samples = Samples::default();
    println!(
        "{} rounds of {} s for each load and volume; latency and CPU time in µs\n",
        call.rounds, call.seconds
    );
    for media in MEDIA {
        if call.wants(media.name) {
            let lane = Lane::new(&LaneConfig::default());
            let lane = lane.expect("the kernel gives a ring");
            let home = lane.handle();
            lane.block_on(measure(&call, &media, &home, &mut samples));
        }
    }
    if call.wants("marks") {
        let lane = Lane::new(&LaneConfig::default());
        let lane = lane.expect("the kernel gives a ring");
        let home = lane.handle();
        lane.block_on(count_marks(&home));
    }
    samples.write(&call);
}

/// A target, and the configuration of the volumes here.
struct Setting {
    here: Directory,
    target: Sanstone,
    /// The target's.
    _there: Directory,
    text: String,
}

impl Setting {
    fn new(media: &Media) -> Setting {
        let (here, there) = (Directory::in_memory(), Directory::in_memory());
        let served = format!(
            "[volume.alone]\n{}\n[volume.copy]\n{}\n",
            media.file(there.path(), "alone"),
            media.file(there.path(), "copy")
        );
        let target = Sanstone::serve(there.path(), &served, &["alone", "copy"]);
        let remote = |lun: u32| format!("iscsi = {{ url = \"{}\" }}", target.url(lun));
        let text = format!(
            "[local]\n{}\n[remote]\n{}\n[mirror]\nmirror = {{ of = [ {{ {} }}, {{ {} }} ] }}\n",
            media.file(here.path(), "alone"),
            remote(0),
            media.file(here.path(), "copy"),
            remote(1)
        );
        Setting {
            here,
            target,
            _there: there,
            text,
        }
    }
}

async fn measure(call: &Call, media: &Media, home: &LaneHandle, samples: &mut Samples) {
    let setting = Setting::new(media);
    setting.create(home).await;
    let mut opened = setting.open(home).await;
    for volume in &opened.volumes {
        fill(volume).await;
    }
    for round in 0..call.rounds {
        for load in loads() {
            let mut taken = Vec::new();
            // What goes first changes from round to round.
            for turn in 0..WAYS.len() {
                let at = (turn + round) % WAYS.len();
                match load.access {
                    _ if WAYS[at] != "mirror" => {}
                    Access::FirstTouch => {
                        // What is closed has no marks.
                        opened.close().await;
                        opened = setting.open(home).await;
                    }
                    _ => touch(opened.mirror()).await,
                }
                let pid = setting.target.pid();
                let one = run(opened.way(WAYS[at]), load, call.seconds, pid).await;
                taken.push((at, one));
            }
            taken.sort_by_key(|one| one.0);
            let taken: Vec<Taken> = taken.into_iter().map(|one| one.1).collect();
            note(samples, media, load, &taken, round as u64);
        }
    }
    opened.close().await;
    report(media, samples);
}

/// Says how many writes of metadata sequential writes cost each copy.
async fn count_marks(home: &LaneHandle) {
    let [plain, ..] = MEDIA;
    let setting = Setting::new(&plain);
    setting.create(home).await;
    let mut opened = setting.open(home).await;
    println!("## metadata writes of each copy, for 1,000 sequential writes\n");
    println!("| writes | local | remote |");
    println!("| --- | --- | --- |");
    let mut before = opened.written();
    for first in (0..SPAN_BYTES / BLOCK as u64 / 1000).map(|thousand| thousand * 1000) {
        let mirror = opened.mirror();
        for number in first..first + 1000 {
            let written = mirror.write(number * BLOCK as u64, block(), Durability::Fua);
            written.await.expect("it writes");
        }
        let after = opened.written();
        let [here, there] = [0, 1].map(|copy| after[copy] - before[copy] - 1000);
        println!("| from {first} on | {here} | {there} |");
        before = after;
    }
    opened.close().await;
}

/// The open volumes.
struct Opened {
    graph: Graph,
    trees: Vec<Tree>,
    volumes: Vec<SharedVolume>,
}

impl Setting {
    fn graph(&self) -> Graph {
        let volumes: Volumes = toml::from_str(&self.text).expect("a configuration");
        let mut graph = Graph::new(volumes, self.here.path()).expect("it is valid");
        graph.set_state_directory(self.here.path());
        graph.set_owner(Owner::passing("mirror-bench"));
        graph
    }

    async fn create(&self, home: &LaneHandle) {
        let new = NewStripe {
            uuid: Uuid::new_v4(),
            created_unix_s: 0,
            force: false,
            from: None,
        };
        let mut graph = self.graph();
        let created = graph.create_stripe("mirror", home, &new).await;
        created.unwrap_or_else(|error| panic!("{error}"));
        graph.close().await;
    }

    async fn open(&self, home: &LaneHandle) -> Opened {
        let mut graph = self.graph();
        let (mut trees, mut opened) = (Vec::new(), Vec::new());
        for name in VOLUMES {
            let tree = graph.open(name, home).await;
            let tree = tree.unwrap_or_else(|error| panic!("{error}"));
            opened.push(tree.on_lane().await.expect("its lane is this one"));
            trees.push(tree);
        }
        // Nobody knows whether a remote disk is blank, so that a new copy there is filled at first.
        let mirror = graph.handles().get::<MirrorHandle>("mirror/mirror");
        let mirror = mirror.expect("it is open");
        while !mirror.status().is_in_sync() {
            time::sleep(Duration::from_millis(10)).await;
        }
        Opened {
            graph,
            trees,
            volumes: opened,
        }
    }
}

impl Opened {
    /// How many writes each copy of the mirror has had.
    fn written(&self) -> [u64; 2] {
        let report = self.graph.report();
        ["mirror/mirror/0", "mirror/mirror/1"].map(|copy| {
            let of_copy = report.0.iter().find(|(path, _)| path.starts_with(copy));
            let (_, counts) = of_copy.expect("it is counted");
            counts.of(RequestKind::Write).requests
        })
    }

    fn mirror(&self) -> &SharedVolume {
        &self.volumes[2]
    }

    /// The volumes that are used in this way: each write goes to all of them, each read to one.
    fn way(&self, name: &str) -> &[SharedVolume] {
        match VOLUMES.iter().position(|volume| *volume == name) {
            Some(at) => &self.volumes[at..=at],
            None => &self.volumes[..2],
        }
    }

    async fn close(&mut self) {
        self.volumes.clear();
        self.trees.clear();
        self.graph.close().await;
    }
}

fn block() -> Payload {
    Buf::copy_of(&[7; BLOCK]).into()
}

/// Writes all of it, so that nothing is sparse.
async fn fill(volume: &SharedVolume) {
    let data = Buf::copy_of(&vec![7; 1 << 20]);
    for at in (0..SPAN_BYTES).step_by(1 << 20) {
        let written = volume.write(at, Buf::copy_of(&data).into(), Durability::Fua);
        written.await.expect("it writes");
    }
}

/// Writes one block of each region.
async fn touch(volume: &SharedVolume) {
    for at in (0..SPAN_BYTES).step_by(REGION_BYTES as usize) {
        volume
            .write(at, block(), Durability::Fua)
            .await
            .expect("it writes");
    }
}

async fn run(volumes: &[SharedVolume], load: Load, seconds: f64, target: u32) -> Taken {
    let (next, latencies_us) = (Rc::new(Cell::new(0_u64)), Rc::new(RefCell::new(Vec::new())));
    let cpu = || cpu_time(std::process::id()) + cpu_time(target);
    let slept = || sleeps(std::process::id()) + sleeps(target);
    let (cpu_start, slept_before) = (cpu(), slept());
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let workers = (0..load.depth).map(|_| {
        let volumes = volumes.to_vec();
        let (next, latencies_us) = (next.clone(), latencies_us.clone());
        task::spawn(async move {
            while Instant::now() < end {
                let number = next.replace(next.get() + 1);
                let Some(at) = load.access.at(number) else {
                    break;
                };
                let start = Instant::now();
                match load.access {
                    Access::RandomRead => {
                        let volume = &volumes[number as usize % volumes.len()];
                        drop(volume.read(at, BLOCK).await.expect("it reads"));
                    }
                    _ => {
                        let writes = volumes
                            .iter()
                            .map(|volume| volume.write(at, block(), Durability::Fua));
                        let written = task::join_all(writes).await;
                        written.into_iter().for_each(|one| one.expect("it writes"));
                    }
                }
                let took = start.elapsed();
                latencies_us.borrow_mut().push(took.as_secs_f64() * 1e6);
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    task::join_all(workers).await;
    let latencies_us = latencies_us.take();
    let count = latencies_us.len() as f64;
    Taken {
        cpu_us: cpu().saturating_sub(cpu_start).as_secs_f64() * 1e6 / count,
        sleeps: slept().saturating_sub(slept_before) as f64 / count,
        latencies_us,
    }
}

/// A fixed sequence without a pattern (SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

fn percentile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part) as usize]
}

fn name_of(media: &Media, load: Load, what: &str) -> String {
    let access = load.access.name();
    format!("{}: {access} at {}: {what}", media.name, load.depth)
}

fn note(samples: &mut Samples, media: &Media, load: Load, taken: &[Taken], seed: u64) {
    let [local, remote, pair, mirror] = taken else {
        unreachable!("one for each way");
    };
    let draw = |from: &Taken, number: u64| {
        let at = mixed(seed << 32 | number) % from.latencies_us.len() as u64;
        from.latencies_us[at as usize]
    };
    let pairs = (0..PAIRS).map(|pair| [draw(local, 2 * pair), draw(remote, 2 * pair + 1)]);
    let mut later: Vec<f64> = pairs.map(|[local, remote]| local.max(remote)).collect();
    for (name, one) in WAYS.iter().zip(taken) {
        let mut latencies = one.latencies_us.clone();
        for (percent, part) in [("p50", 0.5), ("p99", 0.99)] {
            let value = percentile(&mut latencies, part);
            samples.note(name_of(media, load, &format!("{name} {percent}")), value);
        }
        samples.note(name_of(media, load, &format!("{name} CPU")), one.cpu_us);
        samples.note(name_of(media, load, &format!("{name} sleeps")), one.sleeps);
    }
    let mut mirrored = mirror.latencies_us.clone();
    for (percent, part) in [("p50", 0.5), ("p99", 0.99)] {
        let ratio = percentile(&mut mirrored, part) / percentile(&mut later, part);
        samples.note(name_of(media, load, &format!("ratio {percent}")), ratio);
    }
    let mut paired = pair.latencies_us.clone();
    let of_pair = percentile(&mut mirrored, 0.5) / percentile(&mut paired, 0.5);
    samples.note(name_of(media, load, "pair ratio p50"), of_pair);
    let sum = local.cpu_us + remote.cpu_us;
    samples.note(name_of(media, load, "ratio CPU"), mirror.cpu_us / sum);
    let of_pair = mirror.cpu_us / pair.cpu_us;
    samples.note(name_of(media, load, "pair ratio CPU"), of_pair);
}

fn report(media: &Media, samples: &Samples) {
    println!("## {} ({})\n", media.name, media.cache);
    println!(
        "| load | local | remote | pair | mirror | of the later one: 50 % | 99 % | CPU of the sum | of the pair: 50 % | CPU |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for load in loads() {
        let of = |what: &str| {
            samples
                .median(&name_of(media, load, what))
                .expect("measured")
        };
        let times = WAYS.map(|volume| {
            let [p50, p99, cpu, sleeps] =
                ["p50", "p99", "CPU", "sleeps"].map(|what| of(&format!("{volume} {what}")).median);
            format!("{p50:.0} / {p99:.0} ({cpu:.1} CPU, {sleeps:.2} sleeps)")
        });
        let ratios = [
            "ratio p50",
            "ratio p99",
            "ratio CPU",
            "pair ratio p50",
            "pair ratio CPU",
        ];
        let ratios = ratios.map(|what| of(what).to_string());
        println!(
            "| {} at {} | {} | {} |",
            load.access.name(),
            load.depth,
            times.join(" | "),
            ratios.join(" | ")
        );
    }
    println!();
}
