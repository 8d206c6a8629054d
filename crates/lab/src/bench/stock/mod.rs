//! The benchmark's first table: realistic loads from a client that Sanstone's authors did not write. A small
//! C program drives libiscsi, the initiator used by QEMU, with one command at a time, at given rates and at
//! full speed. It is compiled for the run, and it measures the target's CPU time itself, using the clock of
//! the target's process.
//!
//! The floors, the minimum that any target must pay, run as loads of their own: the same bytes through TCP
//! and the same I/O on the same file, each by a program that does nothing else and sleeps while it waits.

mod table;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

pub(super) use table::StockTable;

use super::{
    floor::Floor,
    peers::{Cores, Medium, Peer, pin},
};
use crate::{
    Error, Result,
    load::{self, Arrivals, Done, Spacing, Workload},
    programs::{dying_with_us, program as found, tool},
};

/// What the client sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Operation {
    Read,
    Write,
    /// WRITE ATOMIC (16).
    WriteAtomic,
    /// Each session uses blocks of its own.
    CompareAndWrite,
}

impl Operation {
    /// Its name on the client's command line.
    fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::WriteAtomic => "write-atomic",
            Operation::CompareAndWrite => "compare-and-write",
        }
    }
}

/// A load of the first table, at random offsets.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct StockCase {
    /// Its name in the report.
    pub(super) name: &'static str,
    operation: Operation,
    size_bytes: usize,
    sessions: usize,
    /// I/Os in flight on each session; the maximum if a rate is given.
    depth: usize,
    /// Poisson arrivals per second; `None` for full speed.
    rate: Option<u32>,
    /// A load about commands that exclude others from their blocks, or the baseline for one. Runs only on our
    /// own disk in memory.
    is_about_exclusion: bool,
}

impl StockCase {
    /// Whether the load runs on `peer`.
    pub(super) fn is_for(&self, peer: &Peer) -> bool {
        match (self.is_about_exclusion, peer.wait) {
            (true, wait) => peer.medium == Some(Medium::Memory) && wait.is_none(),
            (false, Some(_)) => self.is_about_waiting(),
            (false, None) => true,
        }
    }

    /// Whether the load shows how the settings of `wait` differ.
    fn is_about_waiting(&self) -> bool {
        let is_read = matches!(self.operation, Operation::Read) && self.size_bytes < LONG_BYTES;
        let is_full_speed = self.rate.is_none() && self.sessions == 1;
        is_read && (is_full_speed || matches!(self.rate, Some(5_000 | 20_000)))
    }

    /// Whether its floors are measured: for loads at a given rate, loads with one command at a time, and
    /// large transfers, where copying the bytes dominates. For small commands at full speed the floor does
    /// more I/Os than a target, so their costs per I/O are not comparable.
    pub(super) fn has_floors(&self) -> bool {
        let is_one_at_a_time = self.sessions * self.depth == 1;
        let is_long = self.size_bytes >= LONG_BYTES;
        !self.is_about_exclusion && (self.rate.is_some() || is_one_at_a_time || is_long)
    }

    /// Whether our own initiator also runs it, for comparison with libiscsi.
    pub(super) fn is_for_our_client(&self) -> bool {
        !self.is_about_exclusion && self.sessions == 1
    }

    /// The equivalent load for our own generator.
    pub(super) fn workload(&self) -> Workload {
        let operation = match self.operation {
            Operation::Read => load::Operation::Read,
            Operation::Write | Operation::WriteAtomic | Operation::CompareAndWrite => {
                load::Operation::Write
            }
        };
        let mut workload = Workload {
            // The comparison with libiscsi's client is about processor time.
            is_prompt: false,
            ..Workload::closed(operation, self.size_bytes, self.depth)
        };
        if let Some(rate) = self.rate {
            workload.arrivals = Arrivals::Open {
                rate_per_s: rate.into(),
                spacing: Spacing::Poisson,
            };
        }
        workload
    }
}

/// From this length on, copying the bytes costs more than everything else about a command.
const LONG_BYTES: usize = 128 << 10;

/// Depth for loads at a given rate: large enough that arrivals wait only if the target falls behind.
const DEPTH_AT_A_RATE: usize = 128;

const fn closed(
    name: &'static str,
    operation: Operation,
    size_bytes: usize,
    sessions: usize,
    depth: usize,
) -> StockCase {
    StockCase {
        name,
        operation,
        size_bytes,
        sessions,
        depth,
        rate: None,
        is_about_exclusion: false,
    }
}

const fn given(name: &'static str, operation: Operation, rate: u32) -> StockCase {
    StockCase {
        rate: Some(rate),
        ..closed(name, operation, 4096, 1, DEPTH_AT_A_RATE)
    }
}

const fn exclusion(
    name: &'static str,
    operation: Operation,
    size_bytes: usize,
    sessions: usize,
    depth: usize,
) -> StockCase {
    StockCase {
        is_about_exclusion: true,
        ..closed(name, operation, size_bytes, sessions, depth)
    }
}

/// The loads, in the order of the table.
pub(super) const CASES: [StockCase; 20] = [
    closed("4K read, one at a time", Operation::Read, 4096, 1, 1),
    closed("4K write, one at a time", Operation::Write, 4096, 1, 1),
    given("4K read, 2,000/s", Operation::Read, 2_000),
    given("4K write, 2,000/s", Operation::Write, 2_000),
    given("4K read, 5,000/s", Operation::Read, 5_000),
    given("4K write, 5,000/s", Operation::Write, 5_000),
    given("4K read, 20,000/s", Operation::Read, 20_000),
    given("4K write, 20,000/s", Operation::Write, 20_000),
    given("4K read, 60,000/s", Operation::Read, 60_000),
    given("4K write, 60,000/s", Operation::Write, 60_000),
    closed("4K read, 32 at a time", Operation::Read, 4096, 1, 32),
    closed("4K write, 32 at a time", Operation::Write, 4096, 1, 32),
    closed("4K read, 4 × 32 at a time", Operation::Read, 4096, 4, 32),
    closed("4K write, 4 × 32 at a time", Operation::Write, 4096, 4, 32),
    closed("128K read, 8 at a time", Operation::Read, 128 << 10, 1, 8),
    closed("128K write, 8 at a time", Operation::Write, 128 << 10, 1, 8),
    exclusion("16K write, 32 at a time", Operation::Write, 16 << 10, 1, 32),
    exclusion(
        "16K atomic write, 32 at a time",
        Operation::WriteAtomic,
        16 << 10,
        1,
        32,
    ),
    exclusion(
        "4K COMPARE AND WRITE, 1 session",
        Operation::CompareAndWrite,
        4096,
        1,
        1,
    ),
    exclusion(
        "4K COMPARE AND WRITE, 8 sessions",
        Operation::CompareAndWrite,
        4096,
        8,
        1,
    ),
];

/// One run of one load on one target.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct StockSample {
    /// I/Os per second.
    pub(super) iops: f64,
    /// Median latency, in microseconds; at a given rate, from the intended start.
    pub(super) p50_us: f64,
    /// 99th percentile of the latency, in microseconds.
    pub(super) p99_us: f64,
    /// CPU time of the target's process per I/O, in microseconds.
    pub(super) target_us: f64,
    /// CPU time of the client per I/O, in microseconds.
    pub(super) client_us: f64,
    /// How late the client sent commands, in microseconds: median and 99th percentile.
    pub(super) late_p50_us: f64,
    pub(super) late_p99_us: f64,
}

/// One run of one load by our own client.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct OurClientSample {
    /// I/Os per second.
    iops: f64,
    /// Median latency, in microseconds; at a given rate, from the intended start.
    p50_us: f64,
    /// 99th percentile of the latency, in microseconds.
    p99_us: f64,
    /// CPU time of this process per I/O, in microseconds, including the load generator.
    client_us: f64,
}

impl OurClientSample {
    /// `spent` is the client's CPU time.
    pub(super) fn new(done: &Done, spent: Duration) -> OurClientSample {
        let quantile_us = |q: f64| done.latency_ns.value_at_quantile(q) as f64 / 1e3;
        OurClientSample {
            iops: done.iops(),
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
            client_us: spent.as_secs_f64() * 1e6 / done.ios.max(1) as f64,
        }
    }
}

/// The client's output.
#[derive(Deserialize)]
struct Printed {
    ios: u64,
    elapsed_s: f64,
    target_ns: u64,
    client_ns: u64,
    p50_us: f64,
    p99_us: f64,
    late_p50_us: f64,
    late_p99_us: f64,
}

/// The compiled programs.
pub(super) struct StockClient {
    client: PathBuf,
    floor: PathBuf,
}

impl StockClient {
    /// Compiles the programs in `directory`.
    ///
    /// # Errors
    /// There is no compiler, or libiscsi's headers are missing; the message says what to install.
    pub(super) fn build(directory: &Path) -> Result<StockClient> {
        fs::write(directory.join("load.h"), include_str!("load.h"))
            .map_err(|e| Error::bench_io("writing the client's source", e))?;
        Ok(StockClient {
            client: compile(directory, "client", include_str!("client.c"))?,
            floor: compile(directory, "floor", include_str!("floor.c"))?,
        })
    }

    /// Runs `case` on `peer` for `duration`.
    pub(super) fn run(
        &self,
        peer: &Peer,
        case: StockCase,
        duration: Duration,
    ) -> Result<StockSample> {
        let url = format!("iscsi://{}/{}/{}", peer.address, peer.target, peer.lun);
        let mut arguments = vec![url, case.operation.name().to_owned()];
        arguments.extend([case.size_bytes, case.sessions, case.depth].map(|n| n.to_string()));
        arguments.extend(case.rate_and_seconds(duration));
        arguments.push(peer.pid.to_string());
        sample_of(&self.client, &arguments, &peer.name, case, duration)
    }

    /// Measures what the bytes of `case` cost through TCP alone.
    pub(super) fn run_tcp(
        &self,
        floor: &Floor,
        case: StockCase,
        duration: Duration,
    ) -> Result<StockSample> {
        let mut arguments = vec!["tcp".to_owned(), floor.port().to_string()];
        arguments.extend(case.kind());
        arguments.extend(case.rate_and_seconds(duration));
        arguments.push(floor.pid().to_string());
        sample_of(&self.floor, &arguments, "bare TCP", case, duration)
    }

    /// Measures what the I/O of `case` costs on the file of `peer` alone, on the target's core; `None` if the
    /// peer has no file of ours.
    pub(super) fn run_file(
        &self,
        peer: &Peer,
        cores: Cores,
        case: StockCase,
        duration: Duration,
    ) -> Result<Option<StockSample>> {
        let Some(path) = peer.file() else {
            return Ok(None);
        };
        let how = match peer.medium {
            Some(Medium::DirectFile) => "direct",
            _ => "cached",
        };
        let mut arguments = vec!["file".to_owned(), path, how.to_owned()];
        arguments.extend(case.kind());
        arguments.extend(case.rate_and_seconds(duration));
        pin(cores.target)?;
        let sample = sample_of(&self.floor, &arguments, "the file alone", case, duration);
        pin(cores.client)?;
        sample.map(Some)
    }
}

impl StockCase {
    /// The load's kind, as command-line arguments of the programs.
    fn kind(&self) -> [String; 3] {
        [
            self.operation.name().to_owned(),
            self.size_bytes.to_string(),
            self.depth.to_string(),
        ]
    }

    /// The rate and the duration, as command-line arguments of the programs.
    fn rate_and_seconds(&self, duration: Duration) -> [String; 2] {
        [
            self.rate.unwrap_or(0).to_string(),
            duration.as_secs_f64().to_string(),
        ]
    }
}

fn compile(directory: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let (source, program) = (directory.join(format!("{name}.c")), directory.join(name));
    fs::write(&source, text).map_err(|e| Error::bench_io("writing the client's source", e))?;
    let mark = std::str::from_utf8(load::MARK).expect("ASCII");
    let mark = mark.trim_end_matches('\0');
    let output = dying_with_us(&found("cc", "gcc", "this benchmark")?)?
        .arg(format!("-DMARK=\"{mark}\""))
        .args(["-O2", "-o"])
        .args([&program, &source])
        .args(["-liscsi", "-lm", "-lpthread"])
        .output()
        .map_err(|e| Error::bench_io("running cc (install gcc)", e))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::bench(format!(
            "{name}.c of the client on libiscsi does not compile (install libiscsi-dev): {}",
            said.trim()
        )));
    }
    Ok(program)
}

/// Runs one of the programs; `name` says what it measures.
fn sample_of(
    program: &Path,
    arguments: &[String],
    name: &str,
    case: StockCase,
    duration: Duration,
) -> Result<StockSample> {
    let limit = duration * 10 + Duration::from_secs(30);
    let output = dying_with_us(&tool("timeout")?)?
        .arg(limit.as_secs().to_string())
        .arg(program)
        .args(arguments)
        .output()
        .map_err(|e| Error::bench_io("running the client on libiscsi", e))?;
    let failed = |why: &str| Error::bench(format!("{name}, {}: {why}", case.name));
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(&format!("{} {}", output.status, said.trim())));
    }
    sample(&output.stdout).map_err(|error| failed(&error.to_string()))
}

fn sample(printed: &[u8]) -> std::result::Result<StockSample, serde_json::Error> {
    let printed: Printed = serde_json::from_slice(printed)?;
    let per_io_us = |ns: u64| ns as f64 / 1e3 / printed.ios.max(1) as f64;
    Ok(StockSample {
        iops: printed.ios as f64 / printed.elapsed_s,
        p50_us: printed.p50_us,
        p99_us: printed.p99_us,
        target_us: per_io_us(printed.target_ns),
        client_us: per_io_us(printed.client_ns),
        late_p50_us: printed.late_p50_us,
        late_p99_us: printed.late_p99_us,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_prints_is_counted_per_io() {
        let printed =
            br#"{"ios": 200, "elapsed_s": 0.5, "target_ns": 4000000, "client_ns": 2000000,
            "p50_us": 80.5, "p99_us": 200.0, "late_p50_us": 1.0, "late_p99_us": 9.0}"#;
        let sample = sample(printed).expect("all fields");
        assert_eq!((sample.iops, sample.p50_us), (400.0, 80.5));
        assert_eq!((sample.target_us, sample.client_us), (20.0, 10.0));
    }
}
