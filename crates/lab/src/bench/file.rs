//! Compares the `file` leaf with fio: the same loads on the same file, bypassing the page cache, run
//! alternately. Ours run in this process on one lane; fio runs with io_uring in its own process on the same
//! core.
//!
//! The throughput of a shared disk drifts, so the result is the median of the ratios within each pair of
//! runs.

use std::{
    collections::BTreeMap,
    fmt::Write,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    time::Duration,
};

use engine::{Lane, LaneConfig};
use serde::{Deserialize, Serialize};
use volume::{
    SharedVolume,
    config::Caching,
    leaf::file::{FileOptions, OpenFile},
};

use super::{
    peers::{cores, pin},
    report::{host, tell},
    usage::process_ns,
};
use crate::{
    Error, Result,
    load::{self, Load, Operation, Order, Stop},
    programs::{dying_with_us, program, run as run_program},
    statistics::{Median, SAMPLES_MIN},
};

const FILE_BYTES: u64 = 512 << 20;

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A file that is made for the run and removed after it.
    pub path: PathBuf,
    /// The number of pairs of runs for each load.
    pub pairs: usize,
    /// The duration of each run.
    pub duration: Duration,
}

/// The loads, each with fio's name for its pattern.
const CASES: [(&str, &str, Load); 4] = [
    (
        "4K random read, depth 32",
        "randread",
        load(Operation::Read, Order::Random, 4096, 32),
    ),
    (
        "4K random write, depth 32",
        "randwrite",
        load(Operation::Write, Order::Random, 4096, 32),
    ),
    (
        "128K sequential read, depth 8",
        "read",
        load(Operation::Read, Order::Sequential, 128 << 10, 8),
    ),
    (
        "128K sequential write, depth 8",
        "write",
        load(Operation::Write, Order::Sequential, 128 << 10, 8),
    ),
];

/// The names of the loads.
pub fn names() -> Vec<&'static str> {
    CASES.iter().map(|(name, ..)| *name).collect()
}

const fn load(operation: Operation, order: Order, size_bytes: usize, depth: usize) -> Load {
    Load {
        operation,
        order,
        size_bytes,
        depth,
    }
}

/// All samples and where they were taken.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    machine: BTreeMap<String, String>,
    pairs: usize,
    seconds: f64,
    cases: Vec<CaseReport>,
}

#[derive(Clone, Debug, Serialize)]
struct CaseReport {
    name: &'static str,
    /// Our throughput divided by fio's, for each pair.
    throughput_ratio: Median,
    pairs: Vec<Pair>,
}

/// One of our runs and the fio run that followed it.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pair {
    ours: Sample,
    fio: Sample,
}

/// One run.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    /// I/Os per second.
    iops: f64,
    /// CPU time of the process per I/O, in microseconds; for fio, as fio reports it for its job.
    cpu_us: f64,
}

/// Runs the comparison; `told` is called with a line of progress.
///
/// # Errors
/// When the file exists, fio is missing, or an I/O fails.
pub fn run(settings: &Settings, mut told: impl FnMut(&str)) -> Result<Report> {
    if settings.pairs < SAMPLES_MIN {
        let pairs = settings.pairs;
        return Err(Error::bench(format!(
            "{pairs} pairs are too few for an interval: take {SAMPLES_MIN} or more, preferably 20"
        )));
    }
    let mut machine = host();
    machine.insert("fio".into(), fio_version()?);
    pin(cores()?.target)?;
    let scratch = Scratch::new(&settings.path)?;
    let lane =
        Lane::new(&LaneConfig::default()).map_err(|e| Error::bench_io("starting a lane", e))?;
    lane.block_on(async {
        told(&format!("filling {}", settings.path.display()));
        let failed = |error: volume::Error| Error::bench(error.to_string());
        let options = FileOptions {
            path: settings.path.clone(),
            len_bytes: Some(FILE_BYTES),
            caching: Caching::Direct,
            block_size_bytes: 4096,
            read_only: false,
        };
        let file = OpenFile::open(&options).await.map_err(failed)?;
        let volume: SharedVolume = Rc::new(file.on_lane());
        load::fill(&*volume).await.map_err(failed)?;
        volume.flush().await.map_err(failed)?;
        let mut cases = Vec::new();
        for (name, pattern, load) in CASES {
            told(&format!("{} pairs: {name}", settings.pairs));
            let mut pairs = Vec::new();
            for _ in 0..settings.pairs {
                let ours = ours(&volume, load, settings.duration)
                    .await
                    .map_err(failed)?;
                let fio = fio(&scratch.0, pattern, load, settings.duration)?;
                pairs.push(Pair { ours, fio });
            }
            cases.push(CaseReport {
                name,
                throughput_ratio: ratio(&pairs, |sample| sample.iops),
                pairs,
            });
        }
        Ok(Report {
            machine,
            pairs: settings.pairs,
            seconds: settings.duration.as_secs_f64(),
            cases,
        })
    })
}

/// The test file, removed when the run ends.
struct Scratch(PathBuf);

impl Scratch {
    /// Creates the file. An existing file is refused, because it may hold somebody's data.
    fn new(path: &Path) -> Result<Scratch> {
        match fs::File::create_new(path) {
            Ok(_) => Ok(Scratch(path.to_owned())),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Error::bench(format!(
                "{} exists and would be overwritten: name a file that does not exist",
                path.display()
            ))),
            Err(source) => Err(Error::File {
                path: path.to_owned(),
                source,
            }),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

async fn ours(volume: &SharedVolume, load: Load, duration: Duration) -> volume::Result<Sample> {
    let own = std::process::id();
    let cpu_ns = process_ns(own);
    let done = load::run(std::slice::from_ref(volume), load, duration, 0).await?;
    let cpu_ns = process_ns(own).saturating_sub(cpu_ns);
    Ok(Sample {
        iops: done.iops(),
        cpu_us: cpu_ns as f64 / 1e3 / done.ios.max(1) as f64,
    })
}

fn fio_version() -> Result<String> {
    let said = run_program(fio_command()?.arg("--version"), &Stop::default())?;
    Ok(said.trim().into())
}

fn fio_command() -> Result<Command> {
    dying_with_us(&program("fio", "fio", "this benchmark")?)
}

fn fio(path: &Path, pattern: &str, load: Load, duration: Duration) -> Result<Sample> {
    let output = fio_command()?
        .args(["--name=beside", "--ioengine=io_uring", "--direct=1"])
        .args(["--time_based", "--randrepeat=0", "--norandommap=1"])
        .args(["--output-format=json", "--thread"])
        .arg("--filename")
        // fio separates file names with colons, so a colon in a name must be escaped.
        .arg(path.display().to_string().replace(':', "\\:"))
        .arg(format!("--size={FILE_BYTES}"))
        .arg(format!("--rw={pattern}"))
        .arg(format!("--bs={}", load.size_bytes))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--runtime={}ms", duration.as_millis()))
        .output()
        .map_err(|e| Error::bench_io("fio", e))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::bench(format!("fio: {}", said.trim())));
    }
    said(&output.stdout, load.operation)
        .ok_or_else(|| Error::bench("fio: its output has no job with I/Os"))
}

#[derive(Deserialize)]
struct FioOutput {
    jobs: Vec<FioJob>,
}

#[derive(Deserialize)]
struct FioJob {
    read: FioDirection,
    write: FioDirection,
    /// As a percentage of the run time.
    usr_cpu: f64,
    sys_cpu: f64,
    /// In milliseconds.
    job_runtime: f64,
}

#[derive(Deserialize)]
struct FioDirection {
    iops: f64,
    total_ios: u64,
}

/// Extracts the sample from fio's JSON.
fn said(json: &[u8], operation: Operation) -> Option<Sample> {
    let output: FioOutput = serde_json::from_slice(json).ok()?;
    let job = output.jobs.first()?;
    let direction = match operation {
        Operation::Read => &job.read,
        Operation::Write => &job.write,
    };
    let cpu_us = (job.usr_cpu + job.sys_cpu) / 100.0 * job.job_runtime * 1e3;
    (direction.total_ios > 0).then(|| Sample {
        iops: direction.iops,
        cpu_us: cpu_us / direction.total_ios as f64,
    })
}

/// Ours divided by fio's, for each pair.
fn ratio(pairs: &[Pair], of: impl Fn(&Sample) -> f64) -> Median {
    let ratios: Vec<f64> = pairs
        .iter()
        .map(|pair| of(&pair.ours) / of(&pair.fio))
        .collect();
    Median::of(&ratios)
}

impl Report {
    /// The whole report, for programs.
    pub fn json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Medians and the ratios with their intervals, for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        tell(&self.machine, &mut out);
        let _ = writeln!(
            out,
            "{} pairs of {} s, in turn; medians, 95 % intervals of the ratio ours / fio's by the \
             sign test\n",
            self.pairs, self.seconds
        );
        let _ = writeln!(
            out,
            "{:<31} {:>9} {:>9} {:>6} {:<15} {:>8} {:>8}",
            "", "IOPS", "fio's", "ratio", "", "CPU µs", "fio's"
        );
        for case in &self.cases {
            let middle = |of: fn(&Pair) -> f64| {
                let values: Vec<f64> = case.pairs.iter().map(of).collect();
                Median::of(&values).median
            };
            let (least, most) = case
                .throughput_ratio
                .interval
                .unwrap_or((f64::NAN, f64::NAN));
            let _ = writeln!(
                out,
                "{:<31} {:>9.0} {:>9.0} {:>6.3} {:<15} {:>8.2} {:>8.2}",
                case.name,
                middle(|pair| pair.ours.iops),
                middle(|pair| pair.fio.iops),
                case.throughput_ratio.median,
                format!("[{least:.3} … {most:.3}]"),
                middle(|pair| pair.ours.cpu_us),
                middle(|pair| pair.fio.cpu_us),
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_is_understood() {
        let json = br#"{"fio version": "fio-3.33", "jobs": [{"job_runtime": 500,
            "read": {"iops": 2000.0, "total_ios": 1000}, "write": {"iops": 0, "total_ios": 0},
            "usr_cpu": 10.0, "sys_cpu": 40.0}]}"#;
        let sample = said(json, Operation::Read).expect("a sample");
        assert_eq!((sample.iops, sample.cpu_us), (2000.0, 250.0));
        assert!(said(json, Operation::Write).is_none());
        assert!(said(b"fio: oops", Operation::Read).is_none());
    }

    #[test]
    fn the_ratio_is_taken_within_each_pair() {
        let sample = |iops| Sample { iops, cpu_us: 1.0 };
        let pair = |ours, fio| Pair {
            ours: sample(ours),
            fio: sample(fio),
        };
        // The disk halves its speed for both, so the ratio must not change.
        let pairs = [pair(90.0, 100.0), pair(45.0, 50.0), pair(9.0, 10.0)];
        assert_eq!(ratio(&pairs, |sample| sample.iops).median, 0.9);
    }

    #[test]
    fn a_file_that_exists_is_refused_and_left() {
        let path = std::env::temp_dir().join(format!("bench-file-{}", std::process::id()));
        let ours = Scratch::new(&path).expect("it is new");
        let error = Scratch::new(&path).err().expect("it exists");
        assert!(error.to_string().contains("does not exist"), "{error}");
        assert!(path.exists());
        drop(ours);
        assert!(!path.exists());
    }
}
