//! The CPU time of processes, from their CPU clocks; that of reaped children in ticks, from /proc (proc(5)).

use std::fs;

use engine::cpu_time;

/// /proc counts in ticks of USER_HZ, which is 100 on every Linux.
pub(crate) const TICK_NS: u64 = 10_000_000;

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
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    ticks(&stat.unwrap_or_default()) * TICK_NS
}

/// User plus system time of reaped children in a line of /proc/PID/stat.
fn ticks(stat: &str) -> u64 {
    // The command's name may contain anything; it ends at the last parenthesis.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let fields = fields.split_ascii_whitespace();
    fields.skip(13).take(2).flat_map(str::parse::<u64>).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 0 0 0 0 0 20 3 500 60 20 0 2 0 9";
        assert_eq!(ticks(stat), 560);
        assert_eq!(ticks(""), 0);
    }
}
