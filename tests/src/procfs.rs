//! What the kernel says about a process: CPU time and memory, from /proc (proc(5)).

use std::time::Duration;

/// CPU time that the threads of a process have used so far, user and system together, with the
/// scheduler's resolution (nanoseconds: `/proc/PID/task/TID/schedstat`, first field) rather than
/// the clock tick of `/proc/PID/stat`.
///
/// Threads that have ended are not in it, so compare two readings of a process whose threads stay.
///
/// # Panics
/// If the process has gone.
pub fn cpu_time(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap_or_else(|error| panic!("process {pid} has gone: {error}"));
    let nanoseconds: u64 = tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok())
        .filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    Duration::from_nanos(nanoseconds)
}

/// How often the threads of a process, the kernel's for it among them, have gone to sleep so far (`voluntary_ctxt_switches`
/// of `/proc/PID/task/TID/status`). Each was woken in between. As for [`cpu_time`], threads that have ended are not in it.
///
/// # Panics
/// If the process has gone.
pub fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap_or_else(|error| panic!("process {pid} has gone: {error}"));
    let count_of = |status: &str| {
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count?.trim().parse::<u64>().ok()
    };
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter_map(|status| count_of(&status))
        .sum()
}

/// CPU time that a process has ever used, also by threads that have ended, in steps of the clock tick
/// (`/proc/PID/stat`, fields 14 and 15).
///
/// # Panics
/// If the process has gone.
pub fn cpu_ever(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .unwrap_or_else(|error| panic!("process {pid} has gone: {error}"));
    // The name before the others is in parentheses and may hold any character.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks = fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u32>().ok());
    ticks.sum::<u32>() * TICK
}

/// How long this machine's processors have been idle so far, all together, in steps of the clock tick (`/proc/stat`,
/// `idle` and `iowait`). What is missing to their whole time was spent by somebody: processes, and the kernel's work
/// for none of them.
///
/// # Panics
/// If the kernel does not say.
pub fn idle_ever() -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").expect("every Linux has it");
    let all = stat.lines().next().unwrap_or_default();
    let ticks = all.split_whitespace().skip(4).take(2);
    let ticks: u32 = ticks
        .map(|ticks| ticks.parse::<u32>().expect("a number of ticks"))
        .sum();
    ticks * TICK
}

/// USER_HZ, which is 100 wherever Rust runs on Linux.
const TICK: Duration = Duration::from_millis(10);

/// Whether every thread of a process is stopped by a signal (`T` in `/proc/PID/task/TID/stat`).
///
/// # Panics
/// If the process has gone.
pub fn stands_still(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap_or_else(|error| panic!("process {pid} has gone: {error}"));
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok())
        // The name before the state is in parentheses and may hold any character.
        .all(|stat| {
            stat.rsplit(") ")
                .next()
                .is_some_and(|rest| rest.starts_with('T'))
        })
}

/// Memory that a process holds now, in bytes (`VmRSS` of `/proc/PID/status`).
///
/// # Panics
/// If the process has gone.
pub fn resident_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmRSS:")
}

/// The most memory that a process has held since it began, in bytes: `VmHWM` without the pages of its program, which
/// are as many as the build has made them.
///
/// # Panics
/// If the process has gone.
pub fn resident_peak_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmHWM:").saturating_sub(status_bytes(pid, "RssFile:"))
}

fn status_bytes(pid: u32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .unwrap_or_else(|error| panic!("process {pid} has gone: {error}"));
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix(key)?
                .trim()
                .strip_suffix(" kB")?
                .parse::<u64>()
                .ok()
        })
        .map(|kibibytes| kibibytes * 1024)
        .unwrap_or_else(|| panic!("/proc/{pid}/status has no {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_busy_process_is_seen_to_be_busy() {
        let pid = std::process::id();
        let mut least = cpu_time(pid);
        let begin = Instant::now();
        loop {
            let now = cpu_time(pid);
            // Less than before: another test's thread has ended, and its time with it.
            least = least.min(now);
            if now - least > Duration::from_millis(50) {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
        assert!(cpu_ever(pid) >= Duration::from_millis(40));
        let held = std::hint::black_box(vec![1_u8; 16 << 20]);
        assert!(resident_bytes(pid) >= held.len() as u64);
        assert!(resident_peak_bytes(pid) >= held.len() as u64);
    }
}
