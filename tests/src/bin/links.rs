//! Measures what several networks are worth: bandwidth over one, two and four links of a given rate, the effect of
//! losing one of two links, and the initiator's cost per I/O over one share and over four. `make links` runs it; it
//! needs root.
//!
//! The links are virtual, into a network namespace in which `sanstone serve` runs; `tc tbf` limits each to the rate.
//! The volumes are `ram`, so that only the links are measured. Parts: `rates`, `losses`, `costs`.

use harness::attachment::{Attachment, Front};
use harness::directory::Directory;
use harness::fio::{At, Load, figures};
use harness::links::Links;
use harness::process::Daemon;
use harness::procfs::{cpu_time, idle_ever};
use harness::samples::{Call, Samples};
use harness::sanstone::binary;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt::Write;
use std::thread::sleep;
use std::time::{Duration, Instant};

const IQN: &str = "iqn.2026-11.io.sanstone";
const PORT: u16 = 3260;
const MIB: u32 = 1 << 20;
/// The range that a load covers; every volume is at least this long.
const SIZE_BYTES: u64 = 240 << 20;

/// A volume over some of the links.
#[derive(Clone, Copy)]
enum Kind {
    /// One share, over this many links.
    Paths(u32),
    /// A stripe of this many shares, each over its own link.
    Shares(u32),
}

/// The setups. All are compared with one path to one share.
const SET_UPS: [(&str, Kind); 5] = [
    ("one link", Kind::Paths(1)),
    ("two paths", Kind::Paths(2)),
    ("four paths", Kind::Paths(4)),
    ("two shares", Kind::Shares(2)),
    ("four shares", Kind::Shares(4)),
];

fn main() {
    let call = Call::read(6, 1.5);
    let rate_mbit = call.number("rate", 1000);
    let Some(links) = Links::new(4) else {
        eprintln!("a network namespace needs root and iproute2");
        std::process::exit(1);
    };
    links.limit(rate_mbit);
    println!(
        "4 links of {rate_mbit} Mbit/s each, {} rounds of {} s",
        call.rounds, call.seconds
    );
    let mut samples = Samples::default();
    let there = Directory::new();
    let target = serve(&links, &there);
    if call.wants("rates") {
        rates(&call, &links, rate_mbit, &mut samples);
    }
    if call.wants("losses") {
        losses(&call, &links, rate_mbit, &mut samples);
    }
    drop(target);
    if call.wants("costs") {
        costs(&call, &links, &mut samples);
    }
    samples.write(&call);
}

/// `sanstone serve` at the far end: one share with a portal on each link, and shares for stripes.
fn serve(links: &Links, directory: &Directory) -> Daemon {
    let mut text = "state = \"state\"\n[volume.paths]\nram = { size = \"256MiB\" }\n".to_owned();
    let mut targets = String::new();
    let portal = |link| format!("\"{}:{PORT}\"", links.far_address(link));
    let all: Vec<String> = (0..links.count()).map(portal).collect();
    let mut target = |name: &str, portals: &str| {
        let table =
            format!("[target.\"{IQN}:{name}\"]\nportals = [{portals}]\nluns = [\"{name}\"]");
        writeln!(targets, "{table}\nallow = [\"*\"]").expect("room");
    };
    target("paths", &all.join(", "));
    for shares in [2, 4] {
        for share in 0..shares {
            let name = format!("of-{shares}-{share}");
            let size = format!("{}MiB", 256 / shares + 2);
            writeln!(text, "[volume.{name}]\nram = {{ size = \"{size}\" }}").expect("room");
            target(&name, &all[share as usize]);
        }
    }
    let file = directory.write("sanstone.toml", format!("{text}{targets}"));
    let mut command = links.command();
    command.arg(binary()).args(["serve", "-c"]).arg(file);
    let daemon = Daemon::start(&command, directory.join("sanstone.log"));
    daemon.log_with_times("serving", links.count() as usize);
    daemon
}

/// The volume `db` of a set-up.
fn volume(links: &Links, kind: Kind) -> String {
    let url =
        |link, name: &str| format!("iscsi://{}:{PORT}/{IQN}:{name}/0", links.far_address(link));
    match kind {
        Kind::Paths(count) => {
            let path = |link| {
                let (portal, from) = (links.far_address(link), links.near_port(link));
                format!("{{ portal = \"{portal}:{PORT}\", from = \"{from}\" }}")
            };
            let paths: Vec<String> = (0..count).map(path).collect();
            format!(
                "[volume.db]\niscsi = {{ url = \"{}\", paths = [{}] }}\n",
                url(0, "paths"),
                paths.join(", ")
            )
        }
        Kind::Shares(count) => {
            let share = |share| {
                let url = url(share, &format!("of-{count}-{share}"));
                format!("  {{ iscsi = {{ url = \"{url}\" }} }},\n")
            };
            let shares: String = (0..count).map(share).collect();
            format!("[volume.db]\nstripe = {{ unit = \"64KiB\", of = [\n{shares}] }}\n")
        }
    }
}

fn attach(links: &Links, kind: Kind) -> Attachment {
    Attachment::start(Front::Fuse, &volume(links, kind))
}

fn sequential(kind: &'static str) -> Load {
    Load {
        kind,
        block_bytes: MIB,
        depth: 8,
        rate: None,
        size_bytes: SIZE_BYTES,
    }
}

/// 1 MiB, sequential, depth 8: the bandwidth of each setup, also as a multiple of one link.
fn rates(call: &Call, links: &Links, rate_mbit: u32, samples: &mut Samples) {
    let attached = SET_UPS.map(|(name, kind)| (name, attach(links, kind)));
    for _ in 0..call.rounds {
        for kind in ["read", "write"] {
            for (name, attached) in &attached {
                let done = sequential(kind).run(&At::Direct(attached.path()), call.seconds);
                samples.note(format!("{name}, {kind}, MB/s"), done.bytes_per_s / 1e6);
            }
        }
    }
    let link = f64::from(rate_mbit) / 8.0;
    println!(
        "\n{:12} {:6} {:>26} {:>24} {:>9}",
        "", "", "MB/s", "× one link", "of links"
    );
    for (name, kind) in SET_UPS {
        let (Kind::Paths(links) | Kind::Shares(links)) = kind;
        for way in ["read", "write"] {
            let what = format!("{name}, {way}, MB/s");
            let (Some(rate), Some(ratio)) = (
                samples.median(&what),
                samples.ratio(&what, &format!("one link, {way}, MB/s")),
            ) else {
                continue;
            };
            let of = rate.median / link / f64::from(links) * 100.0;
            println!("{name:12} {way:6} {rate:>26} {ratio:>24} {of:7.1} %");
        }
    }
}

/// When, in seconds since the load began, one of two links is lost, when it is restored, and when the load ends.
const LOST_S: f64 = 3.0;
const BACK_S: f64 = 10.0;
const END_S: f64 = 16.0;

/// What is measured of a loss.
const OF_A_LOSS: [&str; 6] = [
    "MB/s before",
    "MB/s without",
    "MB/s afterwards",
    "s to one link",
    "s to two links",
    "s longest I/O",
];

/// Loses one of two links under load, in every round: measures the bandwidth meanwhile, and how soon it recovers.
fn losses(call: &Call, links: &Links, rate_mbit: u32, samples: &mut Samples) {
    type Do = fn(&Links);
    let ways: [(&str, Do, Do); 2] = [
        (
            "taken down",
            |links| links.take_down(1),
            |links| links.bring_up(1),
        ),
        ("black hole", |links| links.swallow(1), Links::let_through),
    ];
    for _ in 0..call.rounds {
        for (how, lose, mend) in ways {
            for kind in ["read", "write"] {
                let attached = attach(links, Kind::Paths(2));
                let traced = trace(&attached, kind, || lose(links), || mend(links));
                let lost = traced.log.matches("session lost").count();
                assert!(lost > 0, "the loss was not noticed:\n{}", traced.log);
                note_loss(&traced, &format!("{how}, {kind}"), rate_mbit, samples);
            }
        }
    }
    println!(
        "\none of two links is lost after {LOST_S} s and back after {BACK_S} s, {} times each; no I/O failed; medians, \
         and in brackets the least and the most",
        call.rounds
    );
    println!(
        "{:18}{}",
        "",
        OF_A_LOSS.map(|what| format!("{what:>24}")).concat()
    );
    for (how, ..) in ways {
        for kind in ["read", "write"] {
            let case = format!("{how}, {kind}");
            let range = |what| samples.range(&format!("{case}, {what}"));
            let ranges = OF_A_LOSS.map(|what| {
                let range = range(what).map_or_else(|| "–".to_owned(), |range| range.to_string());
                format!("{range:>24}")
            });
            println!("{case:18}{}", ranges.concat());
        }
    }
}

/// Adds one loss to the samples of this case.
fn note_loss(traced: &Traced, case: &str, rate_mbit: u32, samples: &mut Samples) {
    let one = f64::from(rate_mbit) / 8.0;
    // The last time that bandwidth was below one link's rate, less headers and a margin.
    let down = traced.slow_until(LOST_S, BACK_S, 0.85 * one) - LOST_S;
    let again = traced.fast_from(BACK_S, 1.7 * one).map(|at| at - BACK_S);
    let again = again.unwrap_or(f64::INFINITY);
    let figures = [
        traced.mean(0.5, LOST_S - 0.5),
        traced.mean(LOST_S + down + 0.5, BACK_S),
        traced.mean(BACK_S + again + 0.5, END_S - 0.5),
        down,
        again,
        traced.longest_s,
    ];
    for (what, figure) in OF_A_LOSS.into_iter().zip(figures) {
        samples.note(format!("{case}, {what}"), figure);
    }
    for rate in &traced.slots {
        samples.note(format!("{case}, MB/s in 0.1 s"), *rate);
    }
}

/// The bandwidth over time during an event.
struct Traced {
    /// MB/s in each [`SLOT_S`].
    slots: Vec<f64>,
    longest_s: f64,
    log: String,
}

const SLOT_S: f64 = 0.1;
/// Slots averaged together, because a single slot depends on when a 1 MiB I/O happens to end.
const TOGETHER: usize = 5;

fn trace(
    attached: &Attachment,
    kind: &'static str,
    lose: impl FnOnce(),
    mend: impl FnOnce(),
) -> Traced {
    let directory = Directory::new();
    let mut fio = sequential(kind).command(&At::Direct(attached.path()), END_S);
    fio.arg(format!(
        "--write_bw_log={}",
        directory.join("rate").display()
    ));
    fio.arg(format!("--log_avg_msec={}", SLOT_S * 1e3));
    let done = std::thread::scope(|scope| {
        let done = scope.spawn(move || figures(&mut fio, Duration::from_secs(120)));
        sleep(Duration::from_secs_f64(LOST_S));
        lose();
        sleep(Duration::from_secs_f64(BACK_S - LOST_S));
        mend();
        done.join().expect("no I/O fails")
    });
    let lines =
        std::fs::read_to_string(directory.join("rate_bw.1.log")).expect("fio has written it");
    let mut slots = vec![0.0; (END_S / SLOT_S) as usize];
    // Milliseconds, KiB/s, and more. A slot in which no I/O ended has no line.
    for line in lines.lines() {
        let mut fields = line
            .split(',')
            .map(|field| field.trim().parse().unwrap_or(0.0));
        let (Some(at_ms), Some(rate)) = (fields.next(), fields.next()) else {
            continue;
        };
        let slot: f64 = (at_ms / 1e3 / SLOT_S - 0.5_f64).floor();
        if let Some(place) = slots.get_mut(slot.max(0.0) as usize) {
            *place = rate * 1024.0 / 1e6;
        }
    }
    Traced {
        slots,
        longest_s: done.longest_s,
        log: attached.log(),
    }
}

impl Traced {
    fn mean(&self, from_s: f64, to_s: f64) -> f64 {
        let last = self.slots.len();
        let from = ((from_s / SLOT_S) as usize).min(last);
        let slots = &self.slots[from..((to_s / SLOT_S) as usize).clamp(from, last)];
        slots.iter().sum::<f64>() / slots.len() as f64
    }

    /// Averaged rates of adjacent slots, with the time at which they end.
    fn windows(&self, from_s: f64, to_s: f64) -> impl DoubleEndedIterator<Item = (f64, f64)> {
        let windows = self.slots.windows(TOGETHER).enumerate();
        windows
            .map(|(at, slots)| {
                let end_s = (at + TOGETHER) as f64 * SLOT_S;
                (end_s, slots.iter().sum::<f64>() / TOGETHER as f64)
            })
            .filter(move |(end_s, _)| (from_s..to_s).contains(end_s))
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// When the last window with a lower rate ended.
    fn slow_until(&self, from_s: f64, to_s: f64, rate: f64) -> f64 {
        let slow = self.windows(from_s, to_s).rfind(|window| window.1 < rate);
        slow.map_or(from_s, |(end_s, _)| end_s)
    }

    /// When the rate was first exceeded again.
    fn fast_from(&self, from_s: f64, rate: f64) -> Option<f64> {
        let fast = self.windows(from_s, END_S).find(|window| window.1 >= rate);
        fast.map(|(end_s, _)| end_s)
    }
}

/// Enough time to write a whole volume over one link.
const FILL_S: f64 = 5.0;

/// Runs `start` with this thread, and the processes it starts, pinned to `cpu`.
fn on_cpu<T>(cpu: usize, start: impl FnOnce() -> T) -> T {
    let before = sched_getaffinity(None).expect("the CPUs of this thread");
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).expect("a CPU of this machine");
    let started = start();
    sched_setaffinity(None, &before).expect("as before");
    started
}

/// What an I/O costs the initiator at a given rate, over one share and over several.
///
/// Target and initiator get one CPU each. If they shared CPUs, an I/O whose two lanes happen to share one would cost a
/// third less, and how often that happens differs between the set-ups.
///
/// The kernel sends much of a write when an acknowledgement arrives, in nobody's processor time. How much, depends on
/// the set-up: with four links more of it leaves at once, in the initiator's call. So the whole machine's processor time
/// is measured as well.
fn costs(call: &Call, links: &Links, samples: &mut Samples) {
    let [target_cpu, initiator_cpu] = [1, 0];
    let there = Directory::new();
    let _target = on_cpu(target_cpu, || serve(links, &there));
    let set_ups = [
        ("one share", Kind::Paths(1)),
        ("two shares", Kind::Shares(2)),
        ("four shares", Kind::Shares(4)),
    ];
    let load = |kind, block_bytes, rate| Load {
        kind,
        block_bytes,
        depth: 8,
        rate: Some(rate),
        size_bytes: SIZE_BYTES,
    };
    let loads = [
        ("16K random read, 4,000/s", load("randread", 16 << 10, 4000)),
        (
            "16K random write, 4,000/s",
            load("randwrite", 16 << 10, 4000),
        ),
        ("1M read, 80/s", load("read", MIB, 80)),
        ("1M write, 80/s", load("write", MIB, 80)),
    ];
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    let attached = on_cpu(initiator_cpu, || {
        set_ups.map(|(name, kind)| (name, attach(links, kind)))
    });
    // Untouched memory is slow.
    for (_, attached) in &attached {
        sequential("write").run(&At::Direct(attached.path()), FILL_S);
    }
    for _ in 0..call.rounds {
        for (what, load) in &loads {
            for (name, attached) in &attached {
                let (before, idle, begun) = (cpu_time(attached.pid()), idle_ever(), Instant::now());
                let done = load.run(&At::Direct(attached.path()), call.seconds);
                let cpu = cpu_time(attached.pid()) - before;
                let busy = begun.elapsed() * cpus - (idle_ever() - idle);
                let mut note = |whose: &str, spent: Duration| {
                    let each_us = spent.as_secs_f64() * 1e6 / done.ios;
                    samples.note(format!("{name}, {what}, {whose}µs"), each_us);
                };
                note("", cpu);
                note("machine, ", busy);
                samples.note(format!("{name}, {what}, IOPS"), done.ios / done.seconds);
            }
        }
    }
    println!(
        "\nCPU time of `sanstone attach` for each I/O at a given rate, and of the whole machine (with fio)"
    );
    println!(
        "{:28} {:12} {:>26} {:>24} {:>26} {:>24} {:>8}",
        "", "", "µs", "× one share", "machine, µs", "× one share", "IOPS"
    );
    for (what, _) in &loads {
        for (name, _) in &set_ups {
            let figures = |whose: &str| {
                let key = format!("{name}, {what}, {whose}µs");
                let ratio = samples.ratio(&key, &format!("one share, {what}, {whose}µs"))?;
                Some(format!("{:>26} {ratio:>24}", samples.median(&key)?))
            };
            let (Some(own), Some(machine), Some(iops)) = (
                figures(""),
                figures("machine, "),
                samples.median(&format!("{name}, {what}, IOPS")),
            ) else {
                continue;
            };
            println!("{what:28} {name:12} {own} {machine} {:8.0}", iops.median);
        }
    }
}
