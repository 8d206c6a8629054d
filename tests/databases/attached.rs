//! A volume attached to this machine as a file, with its file system mounted by `--mount`, as docs/guide/attach.md
//! shows.

use harness::directory::Directory;
use harness::process::{Daemon, program};
use harness::run::{Ran, run};
use harness::sanstone::{binary, call};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// The file system on the volume.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileSystem {
    Ext4,
    Xfs,
}

/// Whether a volume can be attached here; if not, the test is skipped.
pub(crate) fn can_attach() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        harness::skip("it needs root, and /dev/fuse");
    }
    can
}

/// Reads that the cache has answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reads {
    /// From its memory.
    pub(crate) hits: u64,
    /// From the stripe.
    pub(crate) misses: u64,
}

/// A mounted volume. Dropping it removes everything, whatever state it is in.
pub(crate) struct Attached {
    directory: Directory,
    process: Option<Daemon>,
    file_system: FileSystem,
}

impl Attached {
    /// Creates the volume `created` of `volumes`, attaches `db`, and makes a file system on it.
    pub(crate) fn create(volumes: &str, created: &str, file_system: FileSystem) -> Attached {
        Attached::create_with(volumes, Some(created), file_system)
    }

    /// The same with a `created` volume only if there is one.
    pub(crate) fn create_with(
        volumes: &str,
        created: Option<&str>,
        file_system: FileSystem,
    ) -> Attached {
        let mut attached = Attached {
            directory: Directory::new(),
            process: None,
            file_system,
        };
        attached.write(volumes);
        fs::create_dir(attached.data()).expect("a fresh directory");
        if let Some(name) = created {
            attached.volume_called("create", name).success();
        }
        attached.attach();
        let (mkfs, arguments): (_, &[&str]) = match file_system {
            FileSystem::Ext4 => ("mkfs.ext4", &["-q", "-F"]),
            FileSystem::Xfs => ("mkfs.xfs", &["-q", "-f"]),
        };
        let mut command = Command::new(program(mkfs, "e2fsprogs and xfsprogs"));
        run(command.args(arguments).arg(attached.file()), LIMIT).success();
        attached.stop();
        attached.attach_and_mount();
        attached
    }

    /// Where the file system is.
    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Unmounts the file system, runs its own checker on the volume, and ends.
    pub(crate) fn check_and_end(mut self) {
        self.stop();
        self.attach();
        let (checker, arguments): (_, &[&str]) = match self.file_system {
            FileSystem::Ext4 => ("e2fsck", &["-f", "-n"]),
            FileSystem::Xfs => ("xfs_repair", &["-n", "-f"]),
        };
        let mut check = Command::new(program(checker, "e2fsprogs and xfsprogs"));
        run(check.args(arguments).arg(self.file()), LIMIT).success();
        self.stop();
    }

    /// Kills the attachment without warning.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("it is attached");
        process.signal("KILL");
        process.wait(LIMIT).expect("it is dead");
    }

    /// Recovers from its death by the same command, which also removes what it has left.
    pub(crate) fn again(&mut self) {
        self.attach_and_mount();
    }

    /// Reads through the cache since the volume was attached.
    pub(crate) fn reads(&self) -> Reads {
        let cache = &self.tree()["cache"];
        let count = |name: &str| cache[name].as_u64().expect("a counter of the cache");
        Reads {
            hits: count("hits") + count("late_hits"),
            misses: count("misses"),
        }
    }

    /// What is marked in the bitmap of the mirror, in bytes.
    pub(crate) fn marked_bytes(&self) -> u64 {
        let marked = &self.tree()["mirror"]["marked_bytes"];
        marked.as_u64().expect("a number of bytes")
    }

    fn tree(&self) -> Value {
        let state = self.directory.join("state");
        let shown = call(&["show", "--state", text(&state), "--json", "-"]).success();
        let mut shown: Value = serde_json::from_str(&shown.stdout).expect("JSON");
        shown["volumes"]["db"]["tree"].take()
    }

    /// Runs `sanstone volume COMMAND` for `db`.
    pub(crate) fn volume(&self, command: &str) -> Ran {
        self.volume_called(command, "db")
    }

    fn volume_called(&self, command: &str, name: &str) -> Ran {
        let file = self.directory.join("attach.toml");
        call(&["volume", command, "-c", text(&file), name])
    }

    fn write(&self, volumes: &str) -> PathBuf {
        let configuration = format!("state = \"state\"\n{volumes}");
        self.directory.write("attach.toml", configuration)
    }

    /// Puts these volumes into effect; returns what `apply` has said.
    pub(crate) fn apply(&self, volumes: &str) -> String {
        let file = self.write(volumes);
        call(&["apply", "-c", text(&file)]).success().stdout
    }

    /// Waits until the loop device has followed the volume, and has the file system use it.
    pub(crate) fn use_what_has_grown(&self) {
        self.wait_for_log("the loop device is as long as the volume", 1);
        self.extend_file_system();
    }

    fn extend_file_system(&self) {
        // resize2fs needs a capability, CAP_SYS_RESOURCE, that root lacks in many containers.
        assert!(matches!(self.file_system, FileSystem::Xfs), "it is mounted");
        let mut command = Command::new(program("xfs_growfs", "xfsprogs"));
        run(command.arg(self.data()), LIMIT).success();
    }

    /// How much the file system holds, in bytes.
    pub(crate) fn file_system_bytes(&self) -> u64 {
        let found = rustix::fs::statvfs(self.data()).expect("it is mounted");
        found.f_blocks * found.f_frsize
    }

    /// How often the log of `attach` contains `what`.
    pub(crate) fn has_logged(&self, what: &str) -> usize {
        self.log().matches(what).count()
    }

    /// Waits until the log of `attach` contains `what` that many times.
    pub(crate) fn wait_for_log(&self, what: &str, times: usize) {
        let process = self.process.as_ref().expect("it is attached");
        process.log_with_times(what, times);
    }

    /// The log of `attach`.
    pub(crate) fn log(&self) -> String {
        self.process.as_ref().map(Daemon::log).unwrap_or_default()
    }

    fn file(&self) -> PathBuf {
        self.directory.join("disk")
    }

    fn attach(&mut self) {
        self.start(&[], "INFO attached ");
    }

    fn attach_and_mount(&mut self) {
        let data = self.data();
        self.start(&["--mount", text(&data)], "INFO mounted ");
    }

    /// Starts the command and waits until its log says `ready`.
    fn start(&mut self, arguments: &[&str], ready: &str) {
        let mut command = Command::new(binary());
        command.args(["attach", "-c"]);
        command.arg(self.directory.join("attach.toml"));
        command.args(["db", "--fuse"]).arg(self.file());
        command.args(arguments);
        let log = self.directory.join("attach.log");
        let mut process = Daemon::start(&command, log.clone());
        process.wait_until(|| fs::read_to_string(&log).is_ok_and(|log| log.contains(ready)));
        self.process = Some(process);
    }

    /// Shuts it down in order, and checks that it exited successfully.
    fn stop(&mut self) {
        let mut process = self.process.take().expect("it is attached");
        process.signal("TERM");
        let status = process.wait(LIMIT).expect("it ends when it is told to");
        assert!(status.success(), "{status}:\n{}", process.log());
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // If a test has failed, something may still use it; the loop device goes with the file system.
        self.process = None;
        for path in [self.data(), self.file()] {
            run(Command::new("umount").arg("-l").arg(path), LIMIT);
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a test's path is text")
}
