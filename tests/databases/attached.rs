//! A volume attached to this machine as a file, with a loop device on the file and a file system on that, as
//! docs/guide/attach.md shows.

use harness::directory::Directory;
use harness::process::{Daemon, program};
use harness::run::run;
use harness::sanstone::{binary, call};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

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

/// A mounted volume. Dropping it removes everything, whatever state it is in.
pub(crate) struct Attached {
    directory: Directory,
    process: Option<Daemon>,
    loop_device: Option<PathBuf>,
    mounted: bool,
}

impl Attached {
    /// Creates the stripe of `volumes`, attaches `db`, and makes a file system on it.
    pub(crate) fn create(volumes: &str, file_system: FileSystem) -> Attached {
        let directory = Directory::new();
        let configuration = format!("state = \"state\"\n{volumes}");
        let file = directory.write("attach.toml", configuration);
        fs::create_dir(directory.join("data")).expect("a fresh directory");
        call(&["volume", "create", "-c", text(&file), "stripe"]).success();
        let mut attached = Attached {
            directory,
            process: None,
            loop_device: None,
            mounted: false,
        };
        attached.attach();
        let device = attached.loop_device.clone().expect("it was just made");
        let (mkfs, arguments): (_, &[&str]) = match file_system {
            FileSystem::Ext4 => ("mkfs.ext4", &["-q", "-F"]),
            FileSystem::Xfs => ("mkfs.xfs", &["-q", "-f"]),
        };
        let mut command = Command::new(program(mkfs, "e2fsprogs and xfsprogs"));
        run(command.args(arguments).arg(&device), LIMIT).success();
        attached.mount();
        attached
    }

    /// Where the file system is.
    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Unmounts the file system and runs its own checker on it.
    pub(crate) fn check(&mut self, file_system: FileSystem) {
        let device = self.loop_device.take().expect("it is attached");
        self.unmount();
        let (checker, arguments): (_, &[&str]) = match file_system {
            FileSystem::Ext4 => ("e2fsck", &["-f", "-n"]),
            FileSystem::Xfs => ("xfs_repair", &["-n"]),
        };
        let mut check = Command::new(program(checker, "e2fsprogs and xfsprogs"));
        run(check.args(arguments).arg(&device), LIMIT).success();
        self.loop_device = Some(device);
    }

    /// Kills the attachment without warning.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("it is attached");
        process.signal("KILL");
        process.wait(LIMIT).expect("it is dead");
    }

    /// Recovers from its death: removes everything above it, then attaches it again.
    pub(crate) fn again(&mut self) {
        self.unmount();
        self.attach();
        self.mount();
    }

    /// Shuts everything down in order, and checks that `attach` exited successfully.
    pub(crate) fn end(mut self) {
        self.unmount();
        let mut process = self.process.take().expect("it is attached");
        process.signal("TERM");
        let status = process.wait(LIMIT).expect("it ends when it is told to");
        assert!(status.success(), "{status}:\n{}", process.log());
    }

    /// The log of `attach`.
    pub(crate) fn log(&self) -> String {
        self.process.as_ref().map(Daemon::log).unwrap_or_default()
    }

    fn attach(&mut self) {
        let file = self.directory.join("disk");
        let mut command = Command::new(binary());
        command.args(["attach", "-c"]);
        command.arg(self.directory.join("attach.toml"));
        command.args(["db", "--fuse"]).arg(&file);
        let log = self.directory.join("attach.log");
        let mut process = Daemon::start(&command, log);
        let mount = format!(" {} fuse", text(&file));
        process.wait_until(|| {
            let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
            mounts.contains(&mount) && fs::metadata(&file).is_ok_and(|file| file.len() > 0)
        });
        self.process = Some(process);
        let mut losetup = Command::new(program("losetup", "mount"));
        losetup.args(["--find", "--show", "--direct-io=on"]);
        let made = run(losetup.arg(&file), LIMIT).success();
        self.loop_device = Some(made.stdout.trim().into());
    }

    fn mount(&mut self) {
        let device = self.loop_device.as_ref().expect("it is attached");
        let mut mount = Command::new("mount");
        run(mount.arg(device).arg(self.data()), LIMIT).success();
        self.mounted = true;
    }

    fn unmount(&mut self) {
        if std::mem::take(&mut self.mounted) {
            // A killed process may hold its files for another moment.
            let deadline = Instant::now() + LIMIT;
            loop {
                let ran = run(Command::new("umount").arg(self.data()), LIMIT);
                if ran.code() == Some(0) {
                    break;
                }
                assert!(Instant::now() < deadline, "{ran}");
                sleep(Duration::from_millis(50));
            }
        }
        if let Some(device) = self.loop_device.take() {
            run(Command::new("losetup").arg("-d").arg(device), LIMIT).success();
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.mounted {
            run(Command::new("umount").args(["-l"]).arg(self.data()), LIMIT);
        }
        if let Some(device) = &self.loop_device {
            run(Command::new("losetup").arg("-d").arg(device), LIMIT);
        }
        self.process = None;
        let file = self.directory.join("disk");
        run(Command::new("umount").arg("-l").arg(file), LIMIT);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a test's path is text")
}
