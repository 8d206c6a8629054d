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

use super::bed::Bed;
use crate::{
    LabError, LabResult,
    load::Stop,
    programs::{dying_with_us, program, run, tool},
};

/// The namespace, and the programs that work in it.
pub(crate) struct Namespace {
    keeper: Child,
    nsenter: PathBuf,
    losetup: PathBuf,
    mkfs: PathBuf,
    mount: PathBuf,
    umount: PathBuf,
}

/// How long a file system may stay busy after its users were ended.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(20);

impl Namespace {
    /// Creates a namespace if any of these has to be mounted.
    pub(crate) fn of_beds(beds: &[(String, Bed)]) -> LabResult<Option<Rc<Namespace>>> {
        match beds.iter().any(|(_, bed)| bed.is_mounted()) {
            true => Namespace::new().map(|namespace| Some(Rc::new(namespace))),
            false => Ok(None),
        }
    }

    /// Creates a namespace. This requires root.
    fn new() -> LabResult<Namespace> {
        let wanted = "a file system on a volume, a file or a device";
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::Call(format!(
                "{wanted} has to be mounted, which needs root: run this as root, or name a directory \
                 with --on"
            )));
        }
        let unshare = program("unshare", "util-linux", wanted)?;
        let keeper = dying_with_us(&unshare)?
            // What others unmount goes here, too: it is not held because we happened to look at it.
            .args(["--mount", "--propagation", "slave", "--"])
            .arg(tool("cat")?)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| LabError::Target(format!("unshare: {error}")))?;
        let mut namespace = Namespace {
            keeper,
            nsenter: program("nsenter", "util-linux", wanted)?,
            losetup: program("losetup", "mount", wanted)?,
            mkfs: program("mkfs.ext4", "e2fsprogs", wanted)?,
            mount: program("mount", "mount", wanted)?,
            umount: program("umount", "mount", wanted)?,
        };
        match namespace.echoes() {
            true => Ok(namespace),
            false => Err(LabError::Target(
                "cannot create a mount namespace: check whether this container allows unshare(1)"
                    .into(),
            )),
        }
    }

    /// The echo proves that the process is running in its namespace.
    fn echoes(&mut self) -> bool {
        let mut answer = [0];
        let (stdin, stdout) = (self.keeper.stdin.as_mut(), self.keeper.stdout.as_mut());
        stdin.is_some_and(|stdin| stdin.write_all(b"\n").is_ok())
            && stdout.is_some_and(|stdout| std::io::Read::read_exact(stdout, &mut answer).is_ok())
    }

    /// A command that runs `program` inside the namespace.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = engine::programs::command(&self.nsenter);
        let of = format!("--mount=/proc/{}/ns/mnt", self.keeper.id());
        command.arg(of).arg("--").arg(program);
        command
    }

    /// Creates a file system on a file or device and mounts it at `at`; returns the device it is on.
    pub(super) fn mount_new(&self, on: &Path, at: &Path, stop: &Stop) -> LabResult<PathBuf> {
        let device = match self.seen(on).is_file() {
            false => on.to_owned(),
            true => {
                let mut losetup = self.command(&self.losetup);
                losetup.args(["--find", "--show", "--direct-io=on"]);
                PathBuf::from(run(losetup.arg(on), stop)?.trim())
            }
        };
        let made = run(
            self.command(&self.mkfs).args(["-q", "-F"]).arg(&device),
            stop,
        );
        let mounted = made.and_then(|_| run(self.command(&self.mount).arg(&device).arg(at), stop));
        if device != on {
            // While the loop device is mounted, the kernel defers this detach until the unmount.
            let mut detach = self.command(&self.losetup);
            run(detach.arg("--detach").arg(&device), &Stop::default())?;
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
        while let Err(error) = run(self.command(&self.umount).arg(at), &Stop::default()) {
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
