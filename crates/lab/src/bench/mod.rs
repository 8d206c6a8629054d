//! The target benchmark: runs the same loads from one core against targets on another, alternating within one
//! run, and measures the CPU time each side spends per I/O.
//!
//! The first table has realistic loads sent by libiscsi, next to their floors: the same bytes through TCP
//! alone and the same I/O on the file alone. The second has our own initiator at full speed, next to a bare
//! TCP exchange of the same bytes. Targets are compared only on the same direct file, or on files of their own
//! through the page cache. A disk in the target's own memory shows what the target costs without a medium, and what our
//! initiator costs compared with libiscsi.

pub mod file;
mod floor;
mod history;
mod lanes;
mod own;
mod peers;
mod report;
mod stock;
mod usage;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use engine::{Lane, LaneConfig};

pub use floor::serve as serve_floor;
pub use report::Report;
pub(crate) use {
    report::host,
    usage::{ended_ns, family_ns, machine_ns, process_ns},
};

use crate::{
    Error, Result,
    load::{Load, Operation, Order},
};
use floor::Floor;
use peers::{Medium, Peer, Places, pin};
use stock::StockClient;
use usage::Usage;

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `sanstone` binary, for the processes that it starts.
    pub binary: PathBuf,
    /// The number of times each load runs on each peer.
    pub rounds: usize,
    /// The duration of each run.
    pub duration: Duration,
    /// Only loads whose name contains this string.
    pub only: String,
    /// The directory for the served files.
    pub directory: PathBuf,
    /// Other targets: name, URL and process.
    pub others: Vec<Other>,
    /// Whether the data on the disks of other targets may be lost.
    pub overwrite: bool,
}

/// A target that is already running.
#[derive(Clone, Debug)]
pub struct Other {
    /// Its name in the report.
    pub name: String,
    /// Its portal.
    pub address: SocketAddr,
    /// iSCSI name.
    pub target: String,
    /// Its logical unit number.
    pub lun: u16,
    /// The process whose CPU time counts.
    pub pid: u32,
}

/// A load with the number of sessions that it runs over.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Case {
    /// Its name in the report.
    pub name: &'static str,
    /// Sessions; each has the load's depth in flight.
    pub sessions: usize,
    /// The load on each.
    #[serde(flatten)]
    pub load: Load,
}

/// One run of one case on one peer.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Sample {
    /// I/Os per second.
    pub iops: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency, in microseconds.
    pub p99_us: f64,
    /// CPU time of the target's process per I/O, in microseconds.
    pub target_us: f64,
    /// Busy time of the target's core per I/O, in microseconds: the process and the interrupt handling done
    /// for it. Counted in ticks of 10 ms.
    pub core_us: f64,
    /// CPU time of this process per I/O, in microseconds.
    pub client_us: f64,
    /// The most memory that the target held during the run, its disk included, in bytes.
    pub target_peak_bytes: u64,
}

const fn case(
    name: &'static str,
    operation: Operation,
    order: Order,
    size_bytes: usize,
    sessions: usize,
    depth: usize,
) -> Case {
    Case {
        name,
        sessions,
        load: Load {
            operation,
            order,
            size_bytes,
            depth,
        },
    }
}

/// The loads of the benchmark.
pub const CASES: [Case; 10] = [
    case(
        "4K random read, depth 1",
        Operation::Read,
        Order::Random,
        4096,
        1,
        1,
    ),
    case(
        "4K random read, depth 32",
        Operation::Read,
        Order::Random,
        4096,
        1,
        32,
    ),
    case(
        "4K random read, depth 64",
        Operation::Read,
        Order::Random,
        4096,
        1,
        64,
    ),
    case(
        "4K random read, depth 1024",
        Operation::Read,
        Order::Random,
        4096,
        1,
        1024,
    ),
    case(
        "4K random read, 4 sessions × 32",
        Operation::Read,
        Order::Random,
        4096,
        4,
        32,
    ),
    case(
        "4K random write, depth 1",
        Operation::Write,
        Order::Random,
        4096,
        1,
        1,
    ),
    case(
        "4K random write, depth 32",
        Operation::Write,
        Order::Random,
        4096,
        1,
        32,
    ),
    case(
        "4K random write, 4 sessions × 32",
        Operation::Write,
        Order::Random,
        4096,
        4,
        32,
    ),
    case(
        "128K sequential read, depth 8",
        Operation::Read,
        Order::Sequential,
        128 << 10,
        1,
        8,
    ),
    case(
        "128K sequential write, depth 8",
        Operation::Write,
        Order::Sequential,
        128 << 10,
        1,
        8,
    ),
];

/// The names of all measurements.
pub fn names() -> Vec<&'static str> {
    let names = CASES.iter().map(|case| case.name);
    let users = stock::CASES.iter().map(|case| case.name);
    users.chain(names).chain([lanes::NAME]).collect()
}

/// Refuses a filter that matches no load's name.
///
/// # Errors
/// The message lists the names.
pub fn check_only(only: &str) -> std::result::Result<(), String> {
    let names = names();
    if names.iter().any(|name| name.contains(only)) {
        return Ok(());
    }
    Err(format!(
        "no load has \"{only}\" in its name; write a part of one of these:\n  {}",
        names.join("\n  ")
    ))
}

/// Refuses extra targets whose names collide with each other or with the built-in peers.
///
/// # Errors
/// The message names the offender.
pub fn check_others(others: &[Other]) -> std::result::Result<(), String> {
    for (index, Other { name, .. }) in others.iter().enumerate() {
        let is_ours = name == "floor"
            || [peers::OWN_NAME, peers::TGT_NAME]
                .iter()
                .any(|own| name.starts_with(own));
        if is_ours || others[..index].iter().any(|other| other.name == *name) {
            return Err(format!(
                "another target is already called \"{name}\"; give this one another name"
            ));
        }
    }
    Ok(())
}

/// Runs the benchmark; `told` is called with a line of progress.
///
/// # Errors
/// When a peer cannot be started or an I/O fails.
pub fn run(settings: &Settings, mut told: impl FnMut(&str)) -> Result<Report> {
    let cores = peers::cores()?;
    let lane =
        Lane::new(&LaneConfig::default()).map_err(|e| Error::bench_io("starting a lane", e))?;
    if !settings.overwrite {
        for other in &settings.others {
            own::check_free(&lane, &Peer::other(other))?;
        }
    }
    // Holds the targets' configurations and control sockets.
    let directory =
        tempfile::tempdir().map_err(|e| Error::bench_io("making a temporary directory", e))?;
    let places = Places {
        control: directory.path().to_owned(),
        disks: settings.directory.clone(),
    };
    let mut peers = Vec::new();
    pin(cores.target)?;
    let floor = Floor::start(&settings.binary)?;
    for medium in [Medium::DirectFile, Medium::CachedFile, Medium::Memory] {
        let own = |wait| Peer::sanstone(&settings.binary, 1, medium, wait, &places);
        let usual = own(None)?;
        if medium == Medium::Memory {
            peers.push(usual);
            continue; // tgt cannot serve memory.
        }
        let tgt = Peer::tgt(&usual, &places);
        peers.push(usual);
        for wait in ["latency", "cpu"] {
            peers.push(own(Some(wait))?);
        }
        match tgt {
            Ok(tgt) => peers.push(tgt),
            Err(error) => told(&format!("without tgt on a {}: {error}", medium.name())),
        }
    }
    peers.extend(settings.others.iter().map(Peer::other));
    pin(cores.client)?;
    let client = StockClient::build(&places.control)?;
    for peer in &peers {
        told(&format!("filling the disk of {}", peer.name));
        own::fill(&lane, peer)?;
    }
    let mut report = Report::new(&peers, settings, &cores);
    let is_wanted = |name: &str| name.contains(&settings.only);
    for round in 0..settings.rounds {
        let mut tell = |name| {
            told(&format!(
                "round {} of {}: {name}",
                round + 1,
                settings.rounds
            ))
        };
        for (index, case) in stock::CASES.iter().enumerate() {
            if !is_wanted(case.name) {
                continue;
            }
            tell(case.name);
            if case.has_floors() {
                let sample = client.run_tcp(&floor, *case, settings.duration)?;
                report.add_libiscsi(index, report::FLOOR, sample);
            }
            // A run may leave work behind, such as dirty pages. Rotating the order spreads that over all the
            // others.
            for turn in 0..peers.len() {
                let peer_index = (round + turn) % peers.len();
                let peer = &peers[peer_index];
                if !case.is_for(peer) {
                    continue;
                }
                let sample = client.run(peer, *case, settings.duration)?;
                report.add_libiscsi(index, peer_index + 1, sample);
                if case.has_floors() && peer.is_own() {
                    let sample = client.run_file(peer, cores, *case, settings.duration)?;
                    report.add_file_floor(index, peer_index + 1, sample);
                }
                if case.is_for_our_client() && peer.is_own() && peer.medium == Some(Medium::Memory)
                {
                    let sample = own::measure_as_libiscsi(&lane, peer, *case, settings.duration)?;
                    report.add_our_client(index, sample);
                }
            }
        }
        for (index, case) in CASES.iter().enumerate() {
            if !is_wanted(case.name) {
                continue;
            }
            tell(case.name);
            let usage = Usage::begin(floor.pid(), cores.target);
            let done = floor.run(*case, settings.duration)?;
            report.add(index, 0, usage.end(&done));
            for (peer_index, peer) in peers.iter().enumerate() {
                // With direct I/O the disk sets the pace, and the first table covers that and the ways to wait.
                if peer.medium == Some(Medium::DirectFile) || peer.wait.is_some() {
                    continue;
                }
                let sample = own::measure(&lane, peer, *case, settings.duration, cores.target)?;
                report.add(index, peer_index + 1, sample);
            }
        }
    }
    drop(peers);
    if lanes::NAME.contains(&settings.only) {
        report.lanes(lanes::run(settings, &cores, &places, &mut told)?);
    }
    Ok(report)
}
