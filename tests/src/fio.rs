//! Runs the load generator fio and reads its figures.

use crate::process::program;
use crate::run::run;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What fio reads and writes.
#[derive(Clone, Debug)]
pub enum At {
    /// A file, past the page cache.
    Direct(PathBuf),
    /// A file, through the page cache.
    Cached(PathBuf),
    /// An NBD export behind a Unix socket.
    Nbd(PathBuf),
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// As fio calls it: `read`, `randwrite`, ….
    pub kind: &'static str,
    /// Bytes of each I/O.
    pub block_bytes: u32,
    /// I/Os in flight.
    pub depth: u32,
    /// I/Os per second; `None`: as many as possible.
    pub rate: Option<u32>,
    /// The size of the range it covers, in bytes.
    pub size_bytes: u64,
}

/// The results of a run.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Completed I/Os.
    pub ios: f64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Latency of the slowest I/O, in seconds.
    pub longest_s: f64,
    /// fio's own CPU time, in seconds.
    pub client_cpu_s: f64,
}

impl Load {
    /// The fio command for this load and duration.
    pub fn command(&self, at: &At, seconds: f64) -> Command {
        let mut command = Command::new(program("fio", "fio"));
        command.args(["--name=load", "--output-format=json", "--time_based"]);
        command.args(["--randrepeat=0", "--norandommap", "--allow_file_create=0"]);
        command.arg(format!("--runtime={}ms", (seconds * 1e3) as u64));
        command.arg(format!("--rw={}", self.kind));
        command.arg(format!("--bs={}", self.block_bytes));
        command.arg(format!("--iodepth={}", self.depth));
        command.arg(format!("--size={}", self.size_bytes));
        if let Some(rate) = self.rate {
            command.arg(format!("--rate_iops={rate}"));
        }
        let file = |path: &Path| format!("--filename={}", path.display());
        match at {
            At::Direct(path) => command.args(["--ioengine=libaio", "--direct=1", &file(path)]),
            // Keep the page cache.
            At::Cached(path) => {
                command.args(["--ioengine=libaio", "--direct=0", "--invalidate=0"]);
                command.arg(file(path))
            }
            At::Nbd(socket) => {
                let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
                command.args(["--ioengine=nbd", &uri])
            }
        };
        command
    }

    /// Runs the load for this many seconds.
    ///
    /// # Panics
    /// If an I/O fails.
    pub fn run(&self, at: &At, seconds: f64) -> Figures {
        let mut command = self.command(at, seconds);
        figures(&mut command, Duration::from_secs_f64(seconds + 120.0))
    }
}

/// Runs a fio that prints JSON, and parses it.
///
/// # Panics
/// If it fails, or prints anything else.
pub fn figures(fio: &mut Command, limit: Duration) -> Figures {
    let ran = run(fio, limit).success();
    // I/O engines may print something before the JSON.
    let json = ran.stdout.find('{').map(|at| &ran.stdout[at..]);
    let json: Option<serde_json::Value> = json.and_then(|json| serde_json::from_str(json).ok());
    let job = json.as_ref().map(|json| &json["jobs"][0]);
    let job = job.unwrap_or_else(|| panic!("no figures: {ran}"));
    assert_eq!(job["error"], 0, "{ran}");
    let sum = |field: &str| {
        let of = |way: &str| job[way][field].as_f64().unwrap_or(0.0);
        of("read") + of("write")
    };
    let longest = |way: &str| job[way]["clat_ns"]["max"].as_f64().unwrap_or(0.0);
    let seconds = job["job_runtime"].as_f64().unwrap_or(0.0) / 1e3;
    let percent = |field: &str| job[field].as_f64().unwrap_or(0.0);
    Figures {
        ios: sum("total_ios"),
        seconds,
        bytes_per_s: sum("io_bytes") / seconds,
        longest_s: longest("read").max(longest("write")) / 1e9,
        client_cpu_s: (percent("usr_cpu") + percent("sys_cpu")) / 100.0 * seconds,
    }
}
