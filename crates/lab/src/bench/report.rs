//! The results of the benchmark: every sample as JSON, medians and ranges as a table.

use std::{collections::BTreeMap, fmt::Write, fs};

use engine::programs::{command, find};
use serde::Serialize;

use super::{
    CASES, Sample, Settings,
    history::times,
    lanes::{self, Lanes},
    peers::{Cores, DISK_BYTES, Medium, OWN_NAME, Peer, TGT_NAME},
    stock::{OurClientSample, StockSample, StockTable},
};
use crate::{load::Stop, machine, programs::run};

/// All samples of a run, and the machine it ran on.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    machine: BTreeMap<String, String>,
    rounds: usize,
    seconds: f64,
    peers: Vec<PeerReport>,
    libiscsi: StockTable,
    cases: Vec<CaseReport>,
    lanes: Option<Lanes>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PeerReport {
    pub(super) name: String,
    /// `None` for the floor and for targets that somebody else started.
    pub(super) medium: Option<Medium>,
    /// Our own setting `wait`, where it is not the default.
    pub(super) wait: Option<&'static str>,
}

impl PeerReport {
    pub(super) fn is_own(&self) -> bool {
        self.name.starts_with(OWN_NAME)
    }

    /// The index among `peers` of tgt on the same medium.
    pub(super) fn tgt_beside(&self, peers: &[PeerReport]) -> Option<usize> {
        let is_alike =
            |other: &PeerReport| other.name.starts_with(TGT_NAME) && other.medium == self.medium;
        peers.iter().position(is_alike)
    }
}

#[derive(Clone, Debug, Serialize)]
struct CaseReport {
    name: &'static str,
    /// By peer, in the order of `peers`.
    samples: Vec<Vec<Sample>>,
}

/// This row, compared with a deeper one, shows what many outstanding I/Os cost.
const SHALLOW: &str = "4K random read, depth 64";
const DEEP: &str = "4K random read, depth 1024";

/// The load that both our own client and libiscsi run.
const DEPTH_32: &str = "4K random read, depth 32";
const LIBISCSI_32: &str = "4K read, 32 at a time";

/// The floor's index among the peers.
pub(super) const FLOOR: usize = 0;

/// One load on our own target on one medium, in medians.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) medium: &'static str,
    pub(super) iops: f64,
    pub(super) target_us: f64,
    /// How many times less CPU time than tgt on the same medium; NaN without one.
    pub(super) times_tgt: f64,
    /// CPU time as a multiple of the floor's.
    pub(super) times_floor: f64,
}

/// Our own target with many I/Os outstanding, compared with fewer.
pub(super) struct Deep {
    /// Throughput as a multiple.
    pub(super) throughput: f64,
    /// Peak memory without the disk, in bytes: with fewer, then with many.
    pub(super) memory_bytes: [u64; 2],
}

impl Report {
    pub(super) fn new(peers: &[Peer], settings: &Settings, cores: &Cores) -> Report {
        let floor = PeerReport {
            name: "floor".to_owned(),
            medium: None,
            wait: None,
        };
        let targets = peers.iter().map(|peer| PeerReport {
            name: peer.name.clone(),
            medium: peer.medium,
            wait: peer.wait,
        });
        let peers: Vec<_> = std::iter::once(floor).chain(targets).collect();
        let cases = CASES
            .iter()
            .map(|case| CaseReport {
                name: case.name,
                samples: vec![Vec::new(); peers.len()],
            })
            .collect();
        Report {
            machine: machine(cores),
            rounds: settings.rounds,
            seconds: settings.duration.as_secs_f64(),
            libiscsi: StockTable::new(peers.len()),
            peers,
            cases,
            lanes: None,
        }
    }

    pub(super) fn add(&mut self, case: usize, peer: usize, sample: Sample) {
        self.cases[case].samples[peer].push(sample);
    }

    pub(super) fn add_libiscsi(&mut self, case: usize, peer: usize, sample: StockSample) {
        self.libiscsi.add(case, peer, sample);
    }

    pub(super) fn add_file_floor(&mut self, case: usize, peer: usize, sample: Option<StockSample>) {
        self.libiscsi.add_file_floor(case, peer, sample);
    }

    pub(super) fn add_our_client(&mut self, case: usize, sample: OurClientSample) {
        self.libiscsi.add_our_client(case, sample);
    }

    pub(super) fn lanes(&mut self, lanes: Lanes) {
        self.lanes = Some(lanes);
    }

    pub(super) fn machine(&self, key: &str) -> &str {
        self.machine.get(key).map_or("unknown", String::as_str)
    }

    /// The results of our own target on each medium, for the loads that were run.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        self.measured().flat_map(|case| {
            self.own().map(|(peer, medium)| Row {
                name: case.name,
                medium: medium.name(),
                iops: median(&case.samples[peer], |s| s.iops),
                target_us: case.target_us(peer),
                times_tgt: self.times_tgt(case, peer),
                times_floor: case.target_us(peer) / case.target_us(FLOOR),
            })
        })
    }

    /// Our own targets: their indexes among the peers, and their media.
    fn own(&self) -> impl Iterator<Item = (usize, Medium)> {
        let peers = self.peers.iter().enumerate();
        peers.filter_map(|(place, peer)| {
            let medium = peer.medium?;
            (peer.is_own() && peer.wait.is_none()).then_some((place, medium))
        })
    }

    /// The index of our own target with its disk in memory.
    fn own_in_memory(&self) -> Option<usize> {
        let mut own = self.own();
        own.find_map(|(place, medium)| (medium == Medium::Memory).then_some(place))
    }

    /// The effect of many outstanding I/Os, if both loads were run.
    pub(super) fn deep(&self) -> Option<Deep> {
        let own = self.own_in_memory()?;
        let samples = |name: &str| {
            let case = self.measured().find(|case| case.name == name)?;
            Some(&case.samples[own])
        };
        let (shallow, deep) = (samples(SHALLOW)?, samples(DEEP)?);
        let memory_bytes = |bytes: Option<u64>| bytes.unwrap_or(0).saturating_sub(DISK_BYTES);
        Some(Deep {
            throughput: median(deep, |s| s.iops) / median(shallow, |s| s.iops),
            // Memory used by the deep load may stay allocated in later rounds, so compare the minimum of the
            // shallow runs with the maximum of the deep ones.
            memory_bytes: [
                memory_bytes(shallow.iter().map(|s| s.target_peak_bytes).min()),
                memory_bytes(deep.iter().map(|s| s.target_peak_bytes).max()),
            ],
        })
    }

    /// Sentences about what the table of loads cannot show.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        if let Some(deep) = self.deep() {
            remarks.push(format!(
                "memory, depth 1024 beside 64: {:.2}× the throughput; peak memory without the disk \
                 {:.1} MiB beside {:.1} MiB",
                deep.throughput,
                mib(deep.memory_bytes[1]),
                mib(deep.memory_bytes[0]),
            ));
        }
        if let Some((own_us, libiscsi_us)) = self.clients_us() {
            remarks.push(format!(
                "memory, client at depth 32: {own_us:.2} µs/IO, libiscsi's {libiscsi_us:.2}: {:.2}×",
                own_us / libiscsi_us,
            ));
        }
        if let Some(lanes) = &self.lanes {
            remarks.push(format!(
                "memory, one LUN over two lanes: {:.2} µs/IO, {:.2}× one lane with a core of its own, \
                 {:.2}× one that shares its core; the busier lane has {:.0} % of the work",
                lanes.target_us(2),
                lanes.target_us(2) / lanes.target_us(0),
                lanes.target_us(2) / lanes.target_us(1),
                lanes.greatest_share(2) * 100.0,
            ));
        }
        remarks
    }

    /// CPU time per I/O of our own client and of libiscsi's, on our disk in memory, if both were run.
    fn clients_us(&self) -> Option<(f64, f64)> {
        let own = self.own_in_memory()?;
        let case = self.measured().find(|case| case.name == DEPTH_32)?;
        let own_us = median(&case.samples[own], |s| s.client_us);
        Some((own_us, self.libiscsi.client_us(LIBISCSI_32, own)?))
    }

    /// The results of our own target on each medium, for the loads sent by libiscsi.
    pub(super) fn libiscsi_rows(&self) -> Vec<Row> {
        self.libiscsi.rows(&self.peers)
    }

    fn measured(&self) -> impl Iterator<Item = &CaseReport> {
        let cases = self.cases.iter();
        cases.filter(|case| case.samples.iter().any(|samples| !samples.is_empty()))
    }

    /// How many times less CPU time a peer takes than tgt does on the same medium.
    fn times_tgt(&self, case: &CaseReport, peer: usize) -> f64 {
        let tgt = self.peers[peer].tgt_beside(&self.peers);
        tgt.map_or(f64::NAN, |tgt| case.target_us(tgt) / case.target_us(peer))
    }

    /// The whole report, for programs.
    pub fn json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Medians, the range of the target's CPU time, and the ratio to tgt on the same medium,
    /// for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        tell(&self.machine, &mut out);
        let _ = writeln!(out, "{} rounds of {} s, in turn", self.rounds, self.seconds);
        self.libiscsi.write(&self.peers, &mut out);
        if self.measured().next().is_some() {
            let _ = writeln!(
                out,
                "\nClient: our own, at full speed. Medians, [least … most] of the target's CPU time"
            );
        }
        for case in self.measured() {
            let _ = writeln!(out, "\n{}", case.name);
            let _ = writeln!(
                out,
                "  {:<25} {:>10} {:>9} {:>9} {:>11} {:<17} {:>8} {:>9} {:>7} {:>8}",
                "",
                "IOPS",
                "p50 µs",
                "p99 µs",
                "target µs/IO",
                "",
                "core µs",
                "client µs",
                "× tgt",
                "× floor"
            );
            for (peer, PeerReport { name, .. }) in self.peers.iter().enumerate() {
                let samples = &case.samples[peer];
                if samples.is_empty() {
                    continue;
                }
                let (least, most) = range(samples, |s| s.target_us);
                let _ = writeln!(
                    out,
                    "  {:<25} {:>10.0} {:>9.1} {:>9.1} {:>11.2} {:<17} {:>8.2} {:>9.2} {:>7} {:>8}",
                    name,
                    median(samples, |s| s.iops),
                    median(samples, |s| s.p50_us),
                    median(samples, |s| s.p99_us),
                    case.target_us(peer),
                    format!("[{least:.2} … {most:.2}]"),
                    median(samples, |s| s.core_us),
                    median(samples, |s| s.client_us),
                    times(self.times_tgt(case, peer)),
                    times(case.target_us(peer) / case.target_us(FLOOR)),
                );
            }
        }
        if let Some(lanes) = &self.lanes {
            let _ = writeln!(out, "\n{}", lanes::NAME);
            for (index, setup) in lanes.setups.iter().enumerate() {
                let _ = writeln!(
                    out,
                    "  {:<14} {:>10.0} IOPS, target {:.2} µs/IO, busiest lane {:.0} %",
                    setup.name,
                    lanes.iops(index),
                    lanes.target_us(index),
                    lanes.greatest_share(index) * 100.0,
                );
            }
        }
        let remarks = self.remarks();
        if !remarks.is_empty() {
            let _ = writeln!(out, "\nSanstone");
        }
        for remark in remarks {
            let _ = writeln!(out, "  {remark}");
        }
        out
    }
}

impl CaseReport {
    /// Median of the CPU time of a peer's process per I/O, in microseconds.
    fn target_us(&self, peer: usize) -> f64 {
        median(&self.samples[peer], |s| s.target_us)
    }
}

fn values(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = samples.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    let values = values(samples, of);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn range(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> (f64, f64) {
    let values = values(samples, of);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    (at(0), at(values.len().saturating_sub(1)))
}

/// The machine the run was made on.
fn machine(cores: &Cores) -> BTreeMap<String, String> {
    let mut machine = host();
    let mut tell = |key: &str, value: String| machine.insert(key.to_owned(), value);
    tell(
        "cores",
        format!("target on {}, client on {}", cores.target, cores.client),
    );
    let tgt = find("tgtd").map(|tgtd| run(command(&tgtd).arg("-V"), &Stop::default()));
    if let Some(Ok(said)) = tgt {
        tell("tgt", said.trim().into());
    }
    machine
}

/// Writes the machine's description, one line for each fact.
pub(super) fn tell(machine: &BTreeMap<String, String>, out: &mut String) {
    for (key, value) in machine {
        let _ = writeln!(out, "{key}: {value}");
    }
}

/// Facts that are the same for every measurement on this machine.
pub(crate) fn host() -> BTreeMap<String, String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let count = cpu.lines().filter(|line| line.starts_with("processor"));
    let model = model.map_or("unknown", |(_, name)| name);
    BTreeMap::from([
        ("cpu".to_owned(), format!("{} × {model}", count.count())),
        (
            "kernel".to_owned(),
            read("/proc/sys/kernel/osrelease").trim().into(),
        ),
        ("host".to_owned(), machine::name()),
        ("sanstone".to_owned(), machine::program()),
    ])
}
