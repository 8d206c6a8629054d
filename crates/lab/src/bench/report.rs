//! What the benchmark found: every sample, as JSON, and medians with their range, as a table.

use std::{collections::BTreeMap, fmt::Write, fs};

use serde::Serialize;

use super::{CASES, Sample, Settings, peers::Cores};

/// All samples of a run and where it was made.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    machine: BTreeMap<String, String>,
    rounds: usize,
    seconds: f64,
    peers: Vec<String>,
    cases: Vec<CaseReport>,
    iscsi_perf: BTreeMap<String, CrossCheck>,
}

#[derive(Clone, Debug, Serialize)]
struct CaseReport {
    name: &'static str,
    /// By peer, in the order of `peers`.
    samples: Vec<Vec<Sample>>,
}

/// What libiscsi's own load generator found: 4K random reads at depth 32.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CrossCheck {
    /// I/Os per second.
    pub iops: f64,
    /// CPU time of the target's process per I/O, in microseconds.
    pub target_us: f64,
}

impl Report {
    pub(super) fn new(peers: Vec<String>, settings: &Settings, cores: &Cores) -> Report {
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
            peers,
            cases,
            iscsi_perf: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, case: usize, peer: usize, sample: Sample) {
        self.cases[case].samples[peer].push(sample);
    }

    pub(super) fn cross_check(&mut self, peer: &str, check: CrossCheck) {
        self.iscsi_perf.insert(peer.to_owned(), check);
    }

    /// All of it, for programs.
    pub fn json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Medians, the range of the target's CPU time, and the ratio to the first tgt, for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        for (key, value) in &self.machine {
            let _ = writeln!(out, "{key}: {value}");
        }
        let _ = writeln!(
            out,
            "{} rounds of {} s, in turn; medians, [least … most] of the target's CPU time",
            self.rounds, self.seconds
        );
        for case in self
            .cases
            .iter()
            .filter(|case| case.samples.iter().any(|s| !s.is_empty()))
        {
            let _ = writeln!(out, "\n{}", case.name);
            let _ = writeln!(
                out,
                "  {:<12} {:>10} {:>9} {:>9} {:>11} {:<17} {:>8} {:>9} {:>7} {:>8}",
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
            let tgt = self.peers.iter().position(|name| name.starts_with("tgt"));
            let target_us = |peer: usize| median(&case.samples[peer], |s| s.target_us);
            for (peer, name) in self.peers.iter().enumerate() {
                let samples = &case.samples[peer];
                let (least, most) = range(samples, |s| s.target_us);
                let better = tgt.map_or(f64::NAN, |tgt| target_us(tgt) / target_us(peer));
                let _ = writeln!(
                    out,
                    "  {:<12} {:>10.0} {:>9.1} {:>9.1} {:>11.2} {:<17} {:>8.2} {:>9.2} {:>7.2} {:>8.2}",
                    name,
                    median(samples, |s| s.iops),
                    median(samples, |s| s.p50_us),
                    median(samples, |s| s.p99_us),
                    target_us(peer),
                    format!("[{least:.2} … {most:.2}]"),
                    median(samples, |s| s.core_us),
                    median(samples, |s| s.client_us),
                    better,
                    target_us(peer) / target_us(0),
                );
            }
        }
        if !self.iscsi_perf.is_empty() {
            let _ = writeln!(out, "\ncross-check by iscsi-perf: 4K random read, depth 32");
            for (peer, check) in &self.iscsi_perf {
                let _ = writeln!(
                    out,
                    "  {peer:<12} {:>10.0} IOPS, target {:.2} µs/IO",
                    check.iops, check.target_us
                );
            }
        }
        out
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

/// Where the run was made.
fn machine(cores: &Cores) -> BTreeMap<String, String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let mut machine = BTreeMap::new();
    let mut tell = |key: &str, value: String| machine.insert(key.to_owned(), value);
    tell(
        "cpu",
        model.map_or_else(|| "unknown".into(), |(_, name)| name.into()),
    );
    tell("kernel", read("/proc/sys/kernel/osrelease").trim().into());
    tell(
        "cores",
        format!("target on {}, client on {}", cores.target, cores.client),
    );
    tell("sanstone", env!("CARGO_PKG_VERSION").into());
    if let Ok(output) = std::process::Command::new("tgtd").arg("-V").output() {
        tell("tgt", String::from_utf8_lossy(&output.stdout).trim().into());
    }
    machine
}
