//! The cost of a run: CPU time of the target's process and of this one, from their CPU clocks; that of threads, reaped
//! children and whole cores in ticks, and peak memory, from /proc (proc(5)).

use std::{collections::BTreeMap, fs};

use engine::cpu_time;

use super::Sample;
use crate::load::Done;

/// /proc/stat counts in ticks of USER_HZ, which is 100 on every Linux.
const TICK_NS: u64 = 10_000_000;

/// Counters at the start of a run.
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
        forget_peak(pid);
        Usage {
            pid,
            core,
            target_ns: process_ns(pid),
            core_ns: core_busy_ns(core),
            client_ns,
        }
    }

    /// CPU time of the target's process per I/O over `ios` I/Os, in microseconds.
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
            target_peak_bytes: peak_bytes(self.pid),
        }
    }
}

/// CPU time of a process and all its threads, including those that have exited, in nanoseconds; zero once it is gone.
pub(crate) fn process_ns(pid: u32) -> u64 {
    cpu_time::of_process(pid).map_or(0, |spent| spent.as_nanos() as u64)
}

/// The same, plus the CPU time of the children it has started and reaped.
pub(crate) fn family_ns(pid: u32) -> u64 {
    process_ns(pid) + ended_ns(pid)
}

/// CPU time of its reaped children alone, in nanoseconds; the kernel tells it in ticks only.
pub(crate) fn ended_ns(pid: u32) -> u64 {
    cpu_ns(&read(&format!("/proc/{pid}/stat")), ENDED)
}

/// Non-idle time of all cores of this machine together, in nanoseconds.
pub(crate) fn machine_ns() -> u64 {
    busy_ns("cpu ")
}

/// CPU time of each lane of a `sanstone` process, in nanoseconds. The first lane runs on the main thread; the
/// others are identified by their thread names.
pub(super) fn lanes_ns(pid: u32) -> BTreeMap<u32, u64> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return BTreeMap::new();
    };
    let threads = threads.filter_map(|thread| {
        let thread = thread.ok()?;
        let id: u32 = thread.file_name().to_str()?.parse().ok()?;
        let text = read(&format!("/proc/{pid}/task/{id}/stat"));
        let is_lane = id == pid || text.contains("(lane-");
        is_lane.then(|| (id, cpu_ns(&text, UTIME)))
    });
    threads.collect()
}

/// Peak resident memory of a process, in bytes (VmHWM).
fn peak_bytes(pid: u32) -> u64 {
    let text = read(&format!("/proc/{pid}/status"));
    let value = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = value.and_then(|value| value.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Resets the peak, so that it counts from now on. Where that is not permitted, it remains the peak since the
/// start.
fn forget_peak(pid: u32) {
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Index in /proc/PID/stat of the process's own user time, counted from the field after its name; the system
/// time follows it.
const UTIME: usize = 11;
/// Index of the user time of its reaped children.
const ENDED: usize = UTIME + 2;

/// User plus system time in a line of /proc/PID/stat, in nanoseconds.
fn cpu_ns(stat: &str, field: usize) -> u64 {
    // The command's name may contain anything; it ends at the last parenthesis.
    let Some((_, fields)) = stat.rsplit_once(')') else {
        return 0;
    };
    let fields = fields.split_ascii_whitespace();
    let ticks: u64 = fields.skip(field).take(2).flat_map(str::parse::<u64>).sum();
    ticks * TICK_NS
}

/// Time that a core was busy, in nanoseconds: all fields of /proc/stat except idle and iowait.
fn core_busy_ns(core: usize) -> u64 {
    busy_ns(&format!("cpu{core} "))
}

fn busy_ns(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let Some(line) = text.lines().find(|line| line.starts_with(name)) else {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 0 0 0 0 0 20 3 500 60 20 0 2 0 9";
        assert_eq!(cpu_ns(stat, UTIME), 230_000_000);
        assert_eq!(cpu_ns(stat, ENDED), 5_600_000_000);
        assert_eq!(cpu_ns("", UTIME), 0);
    }

    #[test]
    fn this_process_has_a_peak_and_a_first_lane() {
        let own = std::process::id();
        assert!(peak_bytes(own) > 0);
        assert!(lanes_ns(own).contains_key(&own));
        // Both count the same time, one of them in ticks.
        let ticks_ns = cpu_ns(&read(&format!("/proc/{own}/stat")), UTIME);
        assert!(process_ns(own) + 2 * TICK_NS >= ticks_ns);
    }
}
