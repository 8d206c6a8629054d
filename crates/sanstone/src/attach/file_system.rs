//! Mounts the file system of an attached volume on a directory, through a loop device on the volume's file.
//!
//! Each of these operations waits for this process, because it serves the file, so they run on threads beside
//! the lanes, using the programs of util-linux. The loop device is detached as soon as it is mounted: the
//! kernel then releases it on unmount, whoever unmounts it, even after this process has died.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use engine::mounts::{Mount, mount_at, mounts};
use engine::{blocking, programs, time};

use super::{leftovers, users::users_of};

/// Interval of the checks on a busy directory, or on a loop device being released.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the kernel may take to release a loop device.
const DETACH_LIMIT: Duration = Duration::from_secs(10);

/// The smallest sector of a file system.
const SECTOR_BYTES: u32 = 512;

/// Where the file system goes, and how.
#[derive(Args)]
pub(super) struct MountOptions {
    /// Mount the file system on the volume on this empty directory, through a loop device. Needs root.
    #[arg(long, value_name = "DIR", requires = "fuse")]
    mount: Option<PathBuf>,
    /// Mount options, as for `mount -o`.
    #[arg(long, value_name = "OPTIONS", requires = "mount")]
    fs_options: Option<String>,
}

impl MountOptions {
    /// Finds the directory, if one was requested.
    ///
    /// # Errors
    /// Why the directory cannot be used.
    pub(super) fn find(&self) -> anyhow::Result<Option<MountPoint>> {
        let Some(directory) = &self.mount else {
            return Ok(None);
        };
        let directory = MountPoint::find(directory, self.fs_options.clone());
        directory.map(Some)
    }
}

/// The directory for the file system.
#[derive(Clone)]
pub(super) struct MountPoint {
    directory: PathBuf,
    options: Option<String>,
}

impl MountPoint {
    fn find(directory: &Path, options: Option<String>) -> anyhow::Result<MountPoint> {
        let shown = directory.display();
        if !rustix::process::geteuid().is_root() {
            bail!("--mount {shown} needs root; leave it out, or run this as root");
        }
        let directory = directory.canonicalize().map_err(|error| {
            let mend = match error.kind() {
                io::ErrorKind::NotFound => "; make the directory first",
                _ => "",
            };
            anyhow!("--mount {shown}: {error}{mend}")
        })?;
        Ok(MountPoint { directory, options })
    }

    /// Removes what a dead process has left above its mount on `file`.
    ///
    /// # Errors
    /// What is in the way, and how to remove it.
    pub(super) async fn clear(&self, file: &Path, dead: &Mount) -> Result<(), String> {
        let (directory, file, dead) = (self.directory.clone(), file.to_owned(), dead.clone());
        let clearing = move || leftovers::clear(&directory, &file, &dead);
        let cleared = blocking::run(blocking::Kind::Files, clearing).await;
        let cleared = cleared.map_err(|error| error.to_string())?;
        cleared.map_err(|error| format!("{error:#}"))
    }

    /// Checks that it is an empty directory on which nothing is mounted.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let directory = &self.directory;
        let shown = directory.display();
        if let Some(other) = mount_at(directory)? {
            bail!(
                "{shown} has {} mounted on it ({}); run: umount {shown}",
                other.source.display(),
                other.kind
            );
        }
        if !directory.is_dir() {
            bail!("{shown} is not a directory; name an empty one");
        }
        let mut entries = fs::read_dir(directory).with_context(|| shown.to_string())?;
        if let Some(entry) = entries.next() {
            bail!(
                "{shown} is not empty: it holds {:?}, which the mount would hide; name an empty \
                 directory",
                entry?.file_name()
            );
        }
        Ok(())
    }

    /// Mounts the file system on `file`, whose volume has blocks of `block_size_bytes`.
    ///
    /// # Errors
    /// There is none, or it cannot be mounted; nothing is left behind then.
    pub(super) async fn mount(
        self,
        file: &Path,
        block_size_bytes: u32,
    ) -> anyhow::Result<FileSystem> {
        let (file, here) = (file.to_owned(), self.clone());
        let mounting = move || here.mount_now(&file, block_size_bytes);
        let (kind, device) = blocking::run(blocking::Kind::Files, mounting).await??;
        let directory = self.directory;
        tracing::info!(directory = %directory.display(), kind, device, "mounted");
        Ok(FileSystem { directory, device })
    }

    fn mount_now(&self, file: &Path, block_size_bytes: u32) -> anyhow::Result<(String, String)> {
        let kind = kind_on(file)?;
        let mut mount = program("mount", "mount")?;
        let mut losetup = program("losetup", "mount")?;
        losetup.args(["--find", "--show", "--direct-io=on"]);
        // The file system writes in whole sectors, and a part of a block would have to be read first.
        losetup.args(["--sector-size", &block_size_bytes.to_string()]);
        let device = ran(losetup.arg(file))?.trim().to_owned();
        mount.args(["-t", &kind]);
        if let Some(options) = &self.options {
            mount.args(["-o", options]);
        }
        let mounted = ran(mount.arg(&device).arg(&self.directory));
        // Detach in any case: while the device is mounted, the kernel defers it.
        let detached = ran(program("losetup", "mount")?.args(["--detach", &device]));
        mounted.map_err(|error| not_mounted(error, block_size_bytes))?;
        detached?;
        Ok((kind, device))
    }
}

fn not_mounted(error: anyhow::Error, block_size_bytes: u32) -> anyhow::Error {
    match block_size_bytes {
        ..=SECTOR_BYTES => error,
        _ => anyhow!(
            "{error}; if the file system was made with sectors or blocks of less than the volume's \
             {block_size_bytes} bytes, attach without --mount, and mount it through a loop device of your own"
        ),
    }
}

/// The type of the file system on `file`.
fn kind_on(file: &Path) -> anyhow::Result<String> {
    let shown = file.display();
    let mut blkid = program("blkid", "util-linux")?;
    blkid.args(["--probe", "--output", "export"]).arg(file);
    let output = blkid.stdin(Stdio::null()).output();
    let output = output.context("blkid")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let value = |key: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        lines.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    const NOTHING_FOUND: i32 = 2;
    match (
        output.status.code(),
        value("TYPE"),
        value("USAGE"),
        value("PTTYPE"),
    ) {
        (_, Some(kind), Some("filesystem"), _) => Ok(kind.to_owned()),
        (_, Some(kind), ..) => bail!(
            "the volume holds {kind}, which is not a file system; attach it without --mount, and open \
             it through a loop device on {shown}"
        ),
        (_, None, _, Some(table)) => bail!(
            "the volume has a partition table ({table}) and no file system of its own; attach it \
             without --mount, and mount a partition with: losetup --find --show --partscan \
             --direct-io=on {shown}"
        ),
        (Some(0 | NOTHING_FOUND), ..) => bail!(
            "there is no file system on the volume; attach it without --mount and make one, for \
             example with: mkfs.ext4 {shown}"
        ),
        _ => bail!(
            "blkid cannot tell what is on the volume: {} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ),
    }
}

/// A command that runs this program of the system's, wherever it is.
///
/// # Errors
/// It is not installed; the Debian `package` has it.
pub(super) fn program(name: &str, package: &str) -> anyhow::Result<Command> {
    let found = programs::find(name);
    let found = found
        .with_context(|| format!("{name}, of Debian's package {package}, is not installed"))?;
    Ok(programs::command(&found))
}

/// Runs a program to its end and returns its output.
pub(super) fn ran(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| name)?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A mounted file system.
pub(super) struct FileSystem {
    directory: PathBuf,
    device: String,
}

/// The result of an attempt to unmount.
pub(super) enum Unmounted {
    Yes,
    /// The processes that use it.
    InUse(String),
}

impl FileSystem {
    /// Unmounts it as soon as nobody uses it. Unmounting writes back dirty pages, so the file must still be
    /// served meanwhile.
    pub(super) async fn unmount(self) {
        let mut told = String::new();
        loop {
            let (directory, device) = (self.directory.clone(), self.device.clone());
            let unmounting = move || unmount_now(&directory, Path::new(&device));
            let directory = self.directory.display();
            match blocking::run(blocking::Kind::Files, unmounting).await {
                Ok(Ok(Unmounted::Yes)) => break,
                Ok(Ok(Unmounted::InUse(users))) => {
                    if told != users {
                        tracing::warn!(
                            %directory,
                            "it is in use by {users}; it is unmounted as soon as it is free. A second \
                             SIGTERM or SIGINT ends at once, and unsynced data is lost"
                        );
                        told = users;
                    }
                }
                Ok(Err(error)) => {
                    tracing::error!(%directory, %error, "it cannot be unmounted");
                    return;
                }
                Err(error) => {
                    tracing::error!(%directory, %error, "it cannot be unmounted");
                    return;
                }
            }
            time::sleep(PAUSE).await;
        }
        let began = time::now();
        while self.is_attached() && time::now() - began < DETACH_LIMIT {
            time::sleep(PAUSE).await;
        }
    }

    /// Whether the loop device is still attached to the file.
    fn is_attached(&self) -> bool {
        let name = Path::new(&self.device).file_name().unwrap_or_default();
        Path::new("/sys/block").join(name).join("loop").exists()
    }
}

/// Unmounts the file system of `device` from the directory, if nobody uses it.
///
/// # Errors
/// Any error the system reports.
pub(super) fn unmount_now(directory: &Path, device: &Path) -> anyhow::Result<Unmounted> {
    match mount_at(directory)? {
        Some(it) if it.source == device => {}
        // Somebody has already unmounted it, or mounted another one over it.
        _ => return Ok(Unmounted::Yes),
    }
    let Err(error) = rustix::mount::unmount(directory, rustix::mount::UnmountFlags::NOFOLLOW)
    else {
        return Ok(Unmounted::Yes);
    };
    if error != rustix::io::Errno::BUSY {
        return Err(error.into());
    }
    let below = |mount: &Mount| mount.point != directory && mount.point.starts_with(directory);
    let below = mounts()?.into_iter().find(below);
    Ok(Unmounted::InUse(match below {
        Some(other) => format!("what is mounted on {}", other.point.display()),
        None => users_of(directory),
    }))
}
