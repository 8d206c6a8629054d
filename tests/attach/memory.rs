//! Memory that is short: `sanstone attach` serves the file system that must be written back before there is more of it,
//! so nothing it does may wait for that file system.

use std::fs;

use crate::attached::{Attached, can_attach};

/// sched.h of the kernel: what PR_SET_IO_FLUSHER sets of a thread's flags.
const PF_MEMALLOC_NOIO: u64 = 0x0008_0000;
const PF_LOCAL_THROTTLE: u64 = 0x0010_0000;
/// capability.h of the kernel: the bit of CAP_SYS_RESOURCE.
const CAP_SYS_RESOURCE: u64 = 1 << 24;

/// Whether this process has CAP_SYS_RESOURCE, and so what it starts.
fn may_be_flusher() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("it can be read");
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.map(|set| u64::from_str_radix(set.trim(), 16));
    let effective = effective.expect("it is told").expect("a number");
    effective & CAP_SYS_RESOURCE != 0
}

/// The name of each thread of a process, and its flags.
fn threads(pid: u32) -> Vec<(String, u64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    // A thread of a pool may end meanwhile.
    let stats = tasks.flatten().filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        let (name, rest) = stat.rsplit_once(')')?;
        let (_, name) = name.split_once('(')?;
        // The first that follows the name is field 3.
        let flags = rest.split_whitespace().nth(9 - 3)?;
        Some((name.to_owned(), flags.parse().ok()?))
    });
    stats.collect()
}

#[test]
fn no_lane_waits_for_a_file_system_to_get_memory() {
    if !can_attach() {
        return;
    }
    if !may_be_flusher() {
        return harness::skip("PR_SET_IO_FLUSHER needs CAP_SYS_RESOURCE");
    }
    let volume = "lanes = 3\n[volume.db]\nram = { size = \"1MiB\" }\n";
    let attached = Attached::start(volume);
    let threads = threads(attached.daemon.pid());
    // The first lane is the main thread, which has the program's name.
    let on_lanes = threads
        .iter()
        .filter(|(name, _)| name.starts_with("lane-") || name.starts_with("sanstone"));
    assert_eq!(on_lanes.clone().count(), 3, "{threads:x?}");
    for (name, flags) in on_lanes {
        let both = PF_MEMALLOC_NOIO | PF_LOCAL_THROTTLE;
        assert_eq!(flags & both, both, "{name}: {flags:x}");
    }
}
