//! A load generator on libiscsi, a client that Sanstone's authors did not write: `libiscsi/client.c`, compiled when it is
//! needed. It measures the CPU time of the target's process itself, by that process' clock.

use crate::run::run;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What the client sends, at random places.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// `read`, `write`, `write-atomic` or `compare-and-write`.
    pub operation: &'static str,
    /// Of each command.
    pub size_bytes: u32,
    /// Sessions.
    pub sessions: u32,
    /// Commands in flight on each; with a rate, the most.
    pub depth: u32,
    /// Commands that arrive in a second on average, at random moments; 0: as many as complete.
    pub rate: u32,
}

/// What a run of a load took.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// I/Os per second.
    pub iops: f64,
    /// Median latency, in microseconds; at a rate, from the intended start.
    pub p50_us: f64,
    /// 99th percentile of the latency, in microseconds.
    pub p99_us: f64,
    /// CPU time of the target's process for each I/O, in microseconds.
    pub target_us: f64,
    /// CPU time of the client for each I/O, in microseconds.
    pub client_us: f64,
}

/// Compiles the client to `directory/client`.
///
/// # Panics
/// If there is no compiler or no libiscsi; `tools/install` brings both.
pub fn compile_client(directory: &Path) -> PathBuf {
    // iSER would need more libraries, which are not in a virtual machine.
    let stub = directory.join("no_iser.c");
    let text = "int iscsi_init_iser_transport(void *context) { return context ? -1 : 0; }\n";
    std::fs::write(&stub, text).expect("a directory of the caller");
    let source = sources().join("client.c");
    compile(&[&source, &stub], &directory.join("client"))
}

/// Compiles C sources, which may include `load.h` and use libiscsi, to `program`.
///
/// # Panics
/// As [`compile_client`].
pub fn compile(files: &[&Path], program: &Path) -> PathBuf {
    let mut command = Command::new("cc");
    command
        .args(["-O2", "-I"])
        .arg(sources())
        .arg("-o")
        .arg(program)
        .args(files);
    command.args(["-l:libiscsi.a", "-lm", "-lpthread"]);
    run(&mut command, Duration::from_secs(60)).success();
    program.to_owned()
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/libiscsi")
}

impl Load {
    /// Runs the client of [`compile_client`] on the disk at `iscsi://…` for so many seconds; `pid` is the target's.
    ///
    /// # Panics
    /// If a command fails.
    pub fn run(&self, client: &Path, url: &str, seconds: f64, pid: u32) -> Done {
        let mut command = Command::new(client);
        command.arg(url).arg(self.operation);
        command
            .args([self.size_bytes, self.sessions, self.depth, self.rate].map(|n| n.to_string()));
        command.args([seconds.to_string(), pid.to_string()]);
        Done::of(&mut command, seconds)
    }
}

impl Done {
    /// What a program like the client prints; it takes so many seconds.
    ///
    /// # Panics
    /// If it fails.
    pub fn of(command: &mut Command, seconds: f64) -> Done {
        let limit = Duration::from_secs_f64(10.0 * seconds + 30.0);
        let printed = run(command, limit).success().stdout;
        let printed: Value = serde_json::from_str(&printed).expect("a line of JSON");
        let figure = |name: &str| printed[name].as_f64().unwrap_or(f64::NAN);
        let ios = figure("ios").max(1.0);
        Done {
            iops: figure("ios") / figure("elapsed_s"),
            p50_us: figure("p50_us"),
            p99_us: figure("p99_us"),
            target_us: figure("target_ns") / 1e3 / ios,
            client_us: figure("client_ns") / 1e3 / ios,
        }
    }
}
