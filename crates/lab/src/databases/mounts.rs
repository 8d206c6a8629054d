//! A mount namespace of our own (mount_namespaces(7)): its mounts are invisible to others and disappear with
//! the last process in it, however that ends. A `cat` keeps the namespace alive and exits when our end of its
//! standard input closes.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    rc::Rc,
    thread::sleep,
    time::{Duration, Instant},
};

use super::{
    programs::{program, run},
    stack::Bed,
};
use crate::{Error, Result};

/// The namespace.
pub(crate) struct Namespace {
    keeper: Child,
}

/// How long a file system may stay busy after its users were ended.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(20);

impl Namespace {
    /// Creates a namespace if any of these has to be mounted.
    pub(crate) fn of_beds(beds: &[(String, Bed)]) -> Result<Option<Rc<Namespace>>> {
        let is_mounted = |(_, bed): &(String, Bed)| !matches!(bed, Bed::Directory(_));
        match beds.iter().any(is_mounted) {
            true => Namespace::new().map(|namespace| Some(Rc::new(namespace))),
            false => Ok(None),
        }
    }

    /// Creates a namespace. This requires root.
    fn new() -> Result<Namespace> {
        let wanted = "a file system on a volume, a file or a device";
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Call(format!(
                "{wanted} has to be mounted, which needs root: run this as root, or name a directory \
                 with --on"
            )));
        }
        for (name, package) in [("losetup", "mount"), ("mkfs.ext4", "e2fsprogs")] {
            program(name, package, wanted)?;
        }
        let unshare = program("unshare", "util-linux", wanted)?;
        let mut keeper = Command::new(unshare)
            .args(["--mount", "--propagation", "private", "--", "cat"])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Error::Target(format!("unshare: {error}")))?;
        // The echo proves that the process is running in its namespace.
        let mut answer = [0];
        let (stdin, stdout) = (keeper.stdin.as_mut(), keeper.stdout.as_mut());
        let there = stdin.is_some_and(|stdin| stdin.write_all(b"\n").is_ok())
            && stdout.is_some_and(|stdout| std::io::Read::read_exact(stdout, &mut answer).is_ok());
        let namespace = Namespace { keeper };
        match there {
            true => Ok(namespace),
            false => Err(Error::Target(
                "cannot create a mount namespace: check whether this container allows unshare(1)"
                    .into(),
            )),
        }
    }

    /// A command that runs, inside the namespace, the program whose name and arguments are appended to it.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        let of = format!("--mount=/proc/{}/ns/mnt", self.keeper.id());
        command.arg(of).arg("--");
        command
    }

    /// Creates a file system on a file or device and mounts it at `at`; returns the device it is on.
    pub(super) fn mount_new(&self, on: &Path, at: &Path) -> Result<PathBuf> {
        let is_file = |path: &Path| run(self.command().arg("test").arg("-f").arg(path)).is_ok();
        let device = match is_file(on) {
            false => on.to_owned(),
            true => {
                let mut losetup = self.command();
                losetup.args(["losetup", "--find", "--show", "--direct-io=on"]);
                PathBuf::from(run(losetup.arg(on))?.trim())
            }
        };
        let mounted = run(self.command().args(["mkfs.ext4", "-q", "-F"]).arg(&device))
            .and_then(|_| run(self.command().arg("mount").arg(&device).arg(at)));
        if device != on {
            // While the loop device is mounted, the kernel defers this detach until the unmount.
            run(self.command().args(["losetup", "--detach"]).arg(&device))?;
        }
        mounted.map(|_| device)
    }

    /// A path inside the namespace, as this program, which is outside, can open it.
    pub(super) fn seen(&self, path: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.keeper.id());
        Path::new(&root).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Unmounts `at`.
    pub(super) fn unmount(&self, at: &Path) {
        let deadline = Instant::now() + UNMOUNT_LIMIT;
        while let Err(error) = run(self.command().arg("umount").arg(at)) {
            if !error.to_string().contains("busy") || Instant::now() > deadline {
                break;
            }
            sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
