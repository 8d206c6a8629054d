//! What the storage under a database has counted: the kernel for the file system's device, and processes of ours, which
//! `sanstone show` asks. What happened in between is the difference of two such snapshots.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    load::Stop,
    programs::{own_command, run},
};

/// A snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct IoSnapshot {
    /// The file system's device, if it has one of its own.
    pub(crate) device: Option<DeviceTimes>,
    /// Whether the device is on a volume that a `sanstone attach` shows.
    pub(crate) is_attached: bool,
    /// The JSON of `sanstone show` of that process.
    pub(crate) attach: Option<Value>,
    /// The same of the target's process.
    pub(crate) target: Option<Value>,
}

/// Requests of a block device that have completed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DeviceTimes {
    pub(crate) requests: u64,
    /// The sum of their durations.
    pub(crate) ms: u64,
    /// What of that each of [`DEVICE_KINDS`] took.
    pub(crate) kinds_ms: [u64; 4],
}

/// The kinds of requests that the kernel tells apart.
pub(crate) const DEVICE_KINDS: [&str; 4] = ["read", "write", "flush", "discard"];

impl DeviceTimes {
    /// From the fields of the device's `stat` (Documentation/block/stat.rst). The durations of flushes are part of those of
    /// the writes that asked for them.
    pub(super) fn of(fields: &[u64]) -> DeviceTimes {
        let field = |index: usize| fields.get(index).copied().unwrap_or(0);
        let [read_ms, write_ms, discard_ms] = [3, 7, 14].map(field);
        let flush_ms = field(16).min(write_ms);
        DeviceTimes {
            // Reads, writes, discards.
            requests: [0, 4, 11].map(field).iter().sum(),
            ms: read_ms + write_ms + discard_ms,
            kinds_ms: [read_ms, write_ms - flush_ms, flush_ms, discard_ms],
        }
    }
}

/// The JSON of `sanstone show` of a process of ours; `None` if it cannot be asked.
pub(crate) fn shown(binary: &Path, pid: u32) -> Option<Value> {
    let state = state_directory(pid)?;
    let mut show = own_command(binary);
    show.args(["show", "--json", "-", "--state"]).arg(state);
    serde_json::from_str(&run(&mut show, &Stop::default()).ok()?).ok()
}

/// The state directory of a process of ours: it keeps the lock in it open.
fn state_directory(pid: u32) -> Option<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let paths = open.flatten().flat_map(|open| fs::read_link(open.path()));
    let mut locks = paths.filter(|path| path.file_name().is_some_and(|name| name == "lock"));
    let lock = locks.find(|lock| lock.with_file_name("admin.sock").exists())?;
    lock.parent().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_an_admin_socket_is_not_asked() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let lock = directory.path().join("lock");
        let _open = fs::File::create(&lock).expect("a fresh directory");
        let found = || state_directory(std::process::id());
        assert_eq!(found(), None);
        fs::write(directory.path().join("admin.sock"), "").expect("a fresh directory");
        let expected = directory.path().canonicalize().expect("it is there");
        assert_eq!(found(), Some(expected));
    }

    #[test]
    fn the_time_of_a_flush_is_that_of_its_write() {
        let fields = [5, 0, 40, 7, 9, 0, 72, 30, 0, 20, 60, 1, 0, 8, 2, 4, 21];
        let times = DeviceTimes {
            requests: 15,
            ms: 39,
            kinds_ms: [7, 9, 21, 2],
        };
        assert_eq!(DeviceTimes::of(&fields), times);
        assert_eq!(DeviceTimes::of(&[]), DeviceTimes::default());
    }
}
