//! The benchmark of targets: the same loads from our initiator, on one core, against targets on
//! another, in turn in one run, with the CPU that each spends per I/O; beside them the floor, a
//! bare TCP exchange of the same bytes.

mod cross_check;
pub mod file;
mod floor;
mod history;
mod interval;
mod lanes;
mod peers;
mod report;
mod usage;

use std::{net::SocketAddr, path::PathBuf, rc::Rc, time::Duration};

use engine::{Lane, LaneConfig, task};
use volume::{IscsiConfig, IscsiDisk, SharedVolume};

pub use floor::serve as serve_floor;
pub use report::Report;

use crate::{
    Error, Result,
    load::{self, Load, Operation, Order},
};
use floor::Floor;
use peers::{Peer, pin};
use usage::Usage;

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `sanstone` binary, for the processes that it starts.
    pub binary: PathBuf,
    /// How often every load meets every peer.
    pub rounds: usize,
    /// How long each time.
    pub duration: Duration,
    /// Only the loads whose name has this in it.
    pub only: String,
    /// Other targets: name, URL and process.
    pub others: Vec<Other>,
}

/// A target that runs already.
#[derive(Clone, Debug)]
pub struct Other {
    /// What the report calls it.
    pub name: String,
    /// Portal.
    pub address: SocketAddr,
    /// iSCSI name.
    pub target: String,
    /// Logical unit.
    pub lun: u16,
    /// The process whose CPU time counts.
    pub pid: u32,
}

/// A load with the number of sessions that it runs over.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Case {
    /// What the report calls it.
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
    /// Busy time of the target's core per I/O, in microseconds: the process and what interrupts
    /// did for it. Counted in ticks of 10 ms.
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

/// Refuses a part of a name that no load has.
///
/// # Errors
/// The message lists the names.
pub fn check_only(only: &str) -> std::result::Result<(), String> {
    let names = CASES.iter().map(|case| case.name);
    let names: Vec<_> = names.chain([cross_check::NAME, lanes::NAME]).collect();
    if names.iter().any(|name| name.contains(only)) {
        return Ok(());
    }
    Err(format!(
        "no load has \"{only}\" in its name; write a part of one of these:\n  {}",
        names.join("\n  ")
    ))
}

/// Refuses further targets that would be taken for one another or for those of every run.
///
/// # Errors
/// The message names the one.
pub fn check_others(others: &[Other]) -> std::result::Result<(), String> {
    for (index, Other { name, .. }) in others.iter().enumerate() {
        let is_ours = ["floor", "Sanstone"].contains(&name.as_str()) || name.starts_with("tgt");
        if is_ours || others[..index].iter().any(|other| other.name == *name) {
            return Err(format!(
                "another target is called \"{name}\" already; give this one a name of its own"
            ));
        }
    }
    Ok(())
}

/// Runs the benchmark; `told` is called with a line on what is happening.
///
/// # Errors
/// When a peer cannot be started or an I/O fails.
pub fn run(settings: &Settings, mut told: impl FnMut(&str)) -> Result<Report> {
    let cores = peers::cores()?;
    // What the targets are started with.
    let directory =
        tempfile::tempdir().map_err(|e| Error::bench_io("making a temporary directory", e))?;
    let directory = directory.path();
    let mut peers = Vec::new();
    pin(cores.target)?;
    let floor = Floor::start(&settings.binary)?;
    peers.push(Peer::sanstone(&settings.binary, 1, directory)?);
    match Peer::tgt("tgt", &[], directory) {
        Ok(tgt) => {
            peers.push(tgt);
            peers.push(Peer::tgt("tgt -t 1", &["-t", "1"], directory)?);
        }
        Err(error) => told(&format!("without tgt: {error}")),
    }
    peers.extend(settings.others.iter().map(Peer::other));
    pin(cores.client)?;
    let lane =
        Lane::new(&LaneConfig::default()).map_err(|e| Error::bench_io("starting a lane", e))?;
    for peer in &peers {
        told(&format!("filling the disk of {}", peer.name));
        fill(&lane, peer)?;
    }
    let names = std::iter::once("floor".to_owned()).chain(peers.iter().map(|p| p.name.clone()));
    let mut report = Report::new(names.collect(), settings, &cores);
    for round in 0..settings.rounds {
        for (index, case) in CASES
            .iter()
            .enumerate()
            .filter(|(_, case)| case.name.contains(&settings.only))
        {
            told(&format!(
                "round {} of {}: {}",
                round + 1,
                settings.rounds,
                case.name
            ));
            let usage = Usage::begin(floor.pid(), cores.target);
            let done = floor.run(*case, settings.duration)?;
            report.add(index, 0, usage.end(&done));
            for (peer_index, peer) in peers.iter().enumerate() {
                let sample = measure(&lane, peer, *case, settings.duration, cores.target)?;
                report.add(index, peer_index + 1, sample);
            }
        }
    }
    if cross_check::NAME.contains(&settings.only) {
        for peer in &peers {
            told(&format!("{}: {}", cross_check::NAME, peer.name));
            let own = measure(
                &lane,
                peer,
                cross_check::CASE,
                cross_check::DURATION,
                cores.target,
            )?;
            if let Some(check) = cross_check::run(peer, own, &cores)? {
                report.cross_check(&peer.name, check);
            }
        }
    }
    drop(peers);
    if lanes::NAME.contains(&settings.only) {
        report.lanes(lanes::run(settings, &cores, directory, &mut told)?);
    }
    Ok(report)
}

/// Writes a peer's whole disk, so that no measurement pays for memory that is touched first.
fn fill(lane: &Lane, peer: &Peer) -> Result<()> {
    lane.block_on(async {
        let disk = open(peer).await?;
        let filled = load::fill(&*disk).await;
        disk.close().await;
        filled.map_err(|error| Error::bench(format!("filling {}: {error}", peer.name)))
    })
}

/// One case on one peer.
fn measure(
    lane: &Lane,
    peer: &Peer,
    case: Case,
    duration: Duration,
    core: usize,
) -> Result<Sample> {
    lane.block_on(async {
        let disks = task::join_all((0..case.sessions).map(|_| open(peer))).await;
        let disks: Vec<Rc<IscsiDisk>> = disks.into_iter().collect::<Result<_>>()?;
        let volumes: Vec<SharedVolume> = disks.iter().map(|d| d.clone() as SharedVolume).collect();
        let failed = |error: volume::Error| Error::bench(format!("{}: {error}", peer.name));
        // The first moments fill caches and windows.
        load::run(&volumes, case.load, duration / 10)
            .await
            .map_err(failed)?;
        let usage = Usage::begin(peer.pid, core);
        let done = load::run(&volumes, case.load, duration)
            .await
            .map_err(failed)?;
        let sample = usage.end(&done);
        for disk in disks {
            disk.close().await;
        }
        Ok(sample)
    })
}

async fn open(peer: &Peer) -> Result<Rc<IscsiDisk>> {
    IscsiDisk::open(IscsiConfig {
        address: peer.address,
        target_name: peer.target.clone(),
        lun: peer.lun,
        initiator_name: "iqn.2026-11.io.sanstone:bench".into(),
        isid: volume::next_isid(),
        chap: None,
        header_digest: false,
        data_digest: false,
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(30),
        reconnect_timeout: Duration::from_secs(1),
    })
    .await
    .map_err(|error| Error::bench(format!("{}: {error}", peer.name)))
}
