//! Sanstone beside the target of Linux's kernel (LIO), counted instead of timed: the instructions of a whole virtual
//! machine for each I/O, its kernel, the target and the client together.
//!
//! QEMU emulates one processor whose clock moves by a nanosecond with each instruction (`-icount`), and jumps over times
//! in which nothing runs. So what the client in the guest believes to be its time for each I/O is the number of
//! instructions, on any host, however busy that is. The instructions that copy or clear memory count once for
//! each byte. The client is that of `libiscsi`, over the guest's loopback; each target is loaded in turn with the other
//! idle. `tests/linux/guest/count` does it, as the kernel's command line says.

use crate::directory::Directory;
use crate::guest::{Guest, directory, initramfs, qemu};
use crate::libiscsi::{Load, compile_client};
use crate::run::run;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const fn load(
    name: &'static str,
    operation: &'static str,
    size_bytes: u32,
    depth: u32,
) -> (&'static str, Load) {
    let load = Load {
        operation,
        size_bytes,
        sessions: 1,
        depth,
        rate: 0,
    };
    (name, load)
}

/// What is measured, by the names that tables show.
pub const LOADS: [(&str, Load); 6] = [
    load("4K read, 32 at a time", "read", 4096, 32),
    load("4K write, 32 at a time", "write", 4096, 32),
    load("4K read, one at a time", "read", 4096, 1),
    load("4K write, one at a time", "write", 4096, 1),
    load("128K read, 8 at a time", "read", 128 << 10, 8),
    load("128K write, 8 at a time", "write", 128 << 10, 8),
];

/// Instructions of the whole machine for each I/O of a load.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// With Sanstone as the target.
    pub own: f64,
    /// With the kernel's.
    pub lio: f64,
}

impl Counted {
    /// How many times the kernel's instructions ours are.
    pub fn ratio(&self) -> f64 {
        self.own / self.lio
    }
}

/// Counts each of [`LOADS`] on a disk in memory (`ram`) or a file in the page cache of ext4 (`file`). `binary` is a
/// program that serves `/tmp/sanstone.toml` when it is called with the arguments `serve`. A load takes so many seconds of
/// the guest's clock, 10⁹ instructions each, after a warm-up of a tenth. Returns `None` where there is no such machine.
///
/// # Panics
/// If it does not come up, or a load fails; the message has what it printed.
pub fn count(
    backing: &str,
    binary: &Path,
    serve: &str,
    seconds: f64,
) -> Option<[Counted; LOADS.len()]> {
    if !Guest::is_possible() {
        crate::skip("the guest's packages are for x86-64");
        return None;
    }
    let temporary = Directory::new();
    let bin = temporary.join("tree/bin");
    std::fs::create_dir_all(&bin).expect("a directory of ours");
    compile_client(&bin);
    let made = directory();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("linux/guest");
    let initramfs = initramfs(&made, &temporary, &scripts, binary);
    let loads = LOADS.map(|(_, load)| key(&load)).join(",");
    let cmdline = format!(
        "rdinit=/tests/count console=ttyS0 loglevel=4 panic=-1 nokaslr norandmaps BACKING={backing} SECONDS={seconds} \
         LOADS={loads} \"SERVE={serve}\""
    );
    let mut command = qemu(&made, &initramfs, &cmdline);
    command.args(["-accel", "tcg,thread=single", "-cpu", "max", "-smp", "1"]);
    command.args(["-icount", "shift=0,sleep=off", "-seed", "1"]);
    command.args(["-rtc", "clock=vm,base=2026-11-01"]);
    command.args(["-serial", "null", "-serial", "stdio"]);
    let printed = run(&mut command, LIMIT).success().stdout;
    let counted = |(_, load): (&str, Load)| Counted {
        own: instructions(&load, "own", &printed),
        lio: instructions(&load, "lio", &printed),
    };
    Some(LOADS.map(counted))
}

/// Of the whole machine, which takes a minute or two where nothing else is at work.
const LIMIT: Duration = Duration::from_secs(3600);

/// A load as the guest's script has it.
fn key(load: &Load) -> String {
    format!("{}:{}:{}", load.operation, load.size_bytes, load.depth)
}

/// Those for an I/O of a load with a target, from the script's output.
fn instructions(load: &Load, target: &str, printed: &str) -> f64 {
    let begin = format!("{} {target} ", key(load));
    let line = printed.lines().find_map(|line| line.strip_prefix(&begin));
    let told = line.and_then(|json| serde_json::from_str::<Value>(json.trim()).ok());
    let figure = |name: &str| told.as_ref().and_then(|told| told[name].as_f64());
    match (figure("elapsed_s"), figure("ios")) {
        (Some(seconds), Some(ios)) if ios > 0.0 => seconds * 1e9 / ios,
        _ => panic!("no figures of {begin}in what the guest printed:\n{printed}"),
    }
}
