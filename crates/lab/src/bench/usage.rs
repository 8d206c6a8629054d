//! The CPU time that a run costs: the target's process, its whole core, and this process.

use std::fs;

use super::Sample;
use crate::load::Done;

/// /proc/stat counts in ticks of USER_HZ, which is 100 on every Linux.
const TICK_NS: u64 = 10_000_000;

/// Counters at the beginning of a run.
pub(super) struct Usage {
    pid: u32,
    core: usize,
    target_ns: u64,
    core_ns: u64,
    client_ns: u64,
}

impl Usage {
    pub(super) fn begin(pid: u32, core: usize) -> Usage {
        let client_ns = process_ns(std::process::id());
        Usage {
            pid,
            core,
            target_ns: process_ns(pid),
            core_ns: core_busy_ns(core),
            client_ns,
        }
    }

    /// CPU time of the target's process for each of `ios`, in microseconds.
    pub(super) fn target_us(&self, ios: u64) -> f64 {
        let spent = process_ns(self.pid).saturating_sub(self.target_ns);
        spent as f64 / 1e3 / ios.max(1) as f64
    }

    pub(super) fn end(self, done: &Done) -> Sample {
        let per_io_us = |ns: u64| ns as f64 / 1e3 / done.ios.max(1) as f64;
        let quantile_us = |q: f64| done.latency_ns.value_at_quantile(q) as f64 / 1e3;
        Sample {
            iops: done.iops(),
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
            target_us: self.target_us(done.ios),
            core_us: per_io_us(core_busy_ns(self.core).saturating_sub(self.core_ns)),
            client_us: per_io_us(process_ns(std::process::id()).saturating_sub(self.client_ns)),
        }
    }
}

/// CPU time of a process with all its threads, also those that have ended, in nanoseconds
/// (/proc/PID/stat, utime and stime, in ticks).
fn process_ns(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command's name may hold anything but ends with the last parenthesis.
    let Some((_, fields)) = text.rsplit_once(')') else {
        return 0;
    };
    let fields = fields.split_ascii_whitespace();
    let ticks: u64 = fields.skip(11).take(2).flat_map(str::parse::<u64>).sum();
    ticks * TICK_NS
}

/// Time that a core was not idle, in nanoseconds: /proc/stat's fields but idle and iowait.
fn core_busy_ns(core: usize) -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let name = format!("cpu{core} ");
    let Some(line) = text.lines().find(|line| line.starts_with(&name)) else {
        return 0;
    };
    let fields: Vec<u64> = line
        .split_ascii_whitespace()
        .skip(1)
        .flat_map(str::parse)
        .collect();
    let busy = fields
        .iter()
        .take(8)
        .enumerate()
        .filter(|(index, _)| ![3, 4].contains(index));
    busy.map(|(_, ticks)| ticks * TICK_NS).sum()
}
