//! What two copies cost: 4 KiB requests to a mirror of a file here and a disk at a target, beside each of them alone, in
//! turn. `make mirror-bench` runs it.
//!
//! The files are in memory, so that the two media are no one disk; a second set has 500 µs imposed on each of them. A
//! mirrored write ends with the later one of its two writes, so it is compared with the greater of a local and a remote
//! latency, drawn at random again and again. Parts: `plain`, `delayed`, `cached`.

use engine::{Buf, Lane, LaneConfig, LaneHandle, Payload, task};
use harness::directory::Directory;
use harness::procfs::cpu_time;
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
use volume::{Durability, SharedVolume};

const BLOCK: usize = 4096;
const SPAN_BYTES: u64 = 64 << 20;
/// Pairs of a local and a remote latency that are drawn.
const PAIRS: u64 = 20_000;
/// In this order, everywhere.
const VOLUMES: [&str; 3] = ["local", "remote", "mirror"];

#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    reads: bool,
    is_random: bool,
    depth: usize,
}

const LOADS: [Load; 6] = [
    load("random write", false, true, 1),
    load("random write", false, true, 32),
    load("sequential write", false, false, 1),
    load("sequential write", false, false, 32),
    load("random read", true, true, 1),
    load("random read", true, true, 32),
];

const fn load(name: &'static str, reads: bool, is_random: bool, depth: usize) -> Load {
    Load {
        name,
        reads,
        is_random,
        depth,
    }
}

/// What a load took on one volume.
struct Taken {
    latencies_us: Vec<f64>,
    cpu_us: f64,
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
        "{} rounds of {} s for each load and volume; latency in µs\n",
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
    samples.write(&call);
}

async fn measure(call: &Call, media: &Media, home: &LaneHandle, samples: &mut Samples) {
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
    let mut opened = Opened::open(&text, here.path(), home).await;
    for volume in &opened.volumes {
        fill(volume).await;
    }
    for round in 0..call.rounds {
        for load in LOADS {
            let mut taken = Vec::new();
            // What goes first changes from round to round.
            for turn in 0..VOLUMES.len() {
                let at = (turn + round) % VOLUMES.len();
                if VOLUMES[at] == "mirror" && !load.reads {
                    // First touches are measured by themselves.
                    touch(&opened.volumes[at]).await;
                }
                let seconds = call.seconds;
                taken.push((
                    at,
                    run(&opened.volumes[at], load, seconds, target.pid()).await,
                ));
            }
            taken.sort_by_key(|one| one.0);
            let taken: Vec<Taken> = taken.into_iter().map(|one| one.1).collect();
            note(samples, media, load, &taken, round as u64);
        }
    }
    opened.close().await;
    report(media, samples);
}

/// The open volumes.
struct Opened {
    graph: Graph,
    trees: Vec<Tree>,
    volumes: Vec<SharedVolume>,
}

impl Opened {
    async fn open(text: &str, state: &Path, home: &LaneHandle) -> Opened {
        let volumes: Volumes = toml::from_str(text).expect("a configuration");
        let mut graph = Graph::new(volumes, state).expect("it is valid");
        graph.set_state_directory(state);
        graph.set_owner(Owner::passing("mirror-bench"));
        let new = NewStripe {
            uuid: Uuid::new_v4(),
            created_unix_s: 0,
            force: false,
            from: None,
        };
        let created = graph.create_stripe("mirror", home, &new).await;
        created.unwrap_or_else(|error| panic!("{error}"));
        let (mut trees, mut opened) = (Vec::new(), Vec::new());
        for name in VOLUMES {
            let tree = graph.open(name, home).await;
            let tree = tree.unwrap_or_else(|error| panic!("{error}"));
            opened.push(tree.on_lane().await.expect("its lane is this one"));
            trees.push(tree);
        }
        Opened {
            graph,
            trees,
            volumes: opened,
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
    for at in (0..SPAN_BYTES).step_by(64 << 10) {
        volume
            .write(at, block(), Durability::Fua)
            .await
            .expect("it writes");
    }
}

async fn run(volume: &SharedVolume, load: Load, seconds: f64, target: u32) -> Taken {
    let (next, latencies_us) = (Rc::new(Cell::new(0_u64)), Rc::new(RefCell::new(Vec::new())));
    let cpu = || cpu_time(std::process::id()) + cpu_time(target);
    let (cpu_start, end) = (cpu(), Instant::now() + Duration::from_secs_f64(seconds));
    let workers = (0..load.depth).map(|_| {
        let (volume, next, latencies_us) = (volume.clone(), next.clone(), latencies_us.clone());
        task::spawn(async move {
            while Instant::now() < end {
                let number = next.replace(next.get() + 1);
                let block = if load.is_random {
                    mixed(number)
                } else {
                    number
                };
                let at = block % (SPAN_BYTES / BLOCK as u64) * BLOCK as u64;
                let start = Instant::now();
                match load.reads {
                    true => drop(volume.read(at, BLOCK).await.expect("it reads")),
                    false => {
                        let written = volume.write(at, self::block(), Durability::Fua);
                        written.await.expect("it writes");
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
    Taken {
        cpu_us: (cpu() - cpu_start).as_secs_f64() * 1e6 / latencies_us.len() as f64,
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
    format!("{}: {} at {}: {what}", media.name, load.name, load.depth)
}

fn note(samples: &mut Samples, media: &Media, load: Load, taken: &[Taken], seed: u64) {
    let [local, remote, mirror] = taken else {
        unreachable!("one for each volume");
    };
    let draw = |from: &Taken, number: u64| {
        let at = mixed(seed << 32 | number) % from.latencies_us.len() as u64;
        from.latencies_us[at as usize]
    };
    let pairs = (0..PAIRS).map(|pair| draw(local, 2 * pair).max(draw(remote, 2 * pair + 1)));
    let mut later: Vec<f64> = pairs.collect();
    for (name, one) in VOLUMES.iter().zip(taken) {
        let mut latencies = one.latencies_us.clone();
        for (percent, part) in [("p50", 0.5), ("p99", 0.99)] {
            let value = percentile(&mut latencies, part);
            samples.note(name_of(media, load, &format!("{name} {percent}")), value);
        }
        samples.note(name_of(media, load, &format!("{name} CPU")), one.cpu_us);
    }
    let mut mirrored = mirror.latencies_us.clone();
    for (percent, part) in [("p50", 0.5), ("p99", 0.99)] {
        let ratio = percentile(&mut mirrored, part) / percentile(&mut later, part);
        samples.note(name_of(media, load, &format!("ratio {percent}")), ratio);
    }
    let sum = local.cpu_us + remote.cpu_us;
    samples.note(name_of(media, load, "ratio CPU"), mirror.cpu_us / sum);
}

fn report(media: &Media, samples: &Samples) {
    println!("## {} ({})\n", media.name, media.cache);
    println!("| load | local | remote | mirror | of the later one: 50 % | 99 % | CPU of the sum |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for load in LOADS {
        let of = |what: &str| {
            samples
                .median(&name_of(media, load, what))
                .expect("measured")
        };
        let times = VOLUMES.map(|volume| {
            let [p50, p99, cpu] =
                ["p50", "p99", "CPU"].map(|what| of(&format!("{volume} {what}")).median);
            format!("{p50:.0} / {p99:.0} ({cpu:.0} CPU)")
        });
        let ratios = ["p50", "p99", "CPU"].map(|what| of(&format!("ratio {what}")).to_string());
        let (name, depth) = (load.name, load.depth);
        println!(
            "| {name} at {depth} | {} | {} |",
            times.join(" | "),
            ratios.join(" | ")
        );
    }
    println!();
}
