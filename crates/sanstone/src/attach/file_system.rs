//! Mounts the file system of an attached volume on a directory, through a loop device on the volume's file.
//!
//! Each of these operations waits for this process, because it serves the file, so they run on threads beside
//! the lanes, using the programs of util-linux. The loop device is detached as soon as it is mounted: the
//! kernel then releases it on unmount, whoever unmounts it, even after this process has died.

use std::{
    cell::Cell,
    fs::{self, File},
    io::{self, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use engine::{
    blocking,
    loops::sequence_of,
    mounts::{Mount, is_read_only, mount_at, mounts},
};
use front_fuse::Unmounted;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
    mount::UnmountFlags,
};

use super::{
    leftovers,
    util_linux::{program, ran, unmount_now},
};

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
    /// The locked directory, as soon as it was checked.
    lock: Option<Arc<File>>,
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
        Ok(MountPoint {
            directory,
            options,
            lock: None,
        })
    }

    /// Removes what a dead process has left above its mount on `file`.
    ///
    /// # Errors
    /// What is in the way, and how to remove it.
    pub(super) async fn clear(&self, file: &Path, dead: &Mount) -> Result<(), String> {
        let (directory, file, dead) = (self.directory.clone(), file.to_owned(), dead.clone());
        let clearing = move || leftovers::clear(&directory, &file, &dead);
        let cleared = blocking::run(blocking::WorkKind::Files, clearing).await;
        let cleared = cleared.map_err(|error| error.to_string())?;
        cleared.map_err(|error| format!("{error:#}"))
    }

    /// Checks that it is an empty directory on which nothing is mounted, and keeps others of our kind from mounting there.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn checked(mut self) -> anyhow::Result<MountPoint> {
        let directory = &self.directory;
        let shown = directory.display();
        let lock = File::open(directory).with_context(|| shown.to_string())?;
        // Some file systems have no locks.
        if flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            bail!(
                "another `sanstone attach` mounts its file system on {shown}; end it, or name another directory"
            );
        }
        // Where something was mounted meanwhile, its directory is what was locked.
        self.refuse_used()?;
        self.lock = Some(Arc::new(lock));
        Ok(self)
    }

    /// Refuses a directory that holds anything, or is mounted on.
    fn refuse_used(&self) -> anyhow::Result<()> {
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
        let lock = self.lock;
        let on = file.clone();
        let mounting = move || {
            let len_bytes = fs::metadata(&on)?.len();
            Ok::<_, anyhow::Error>((here.mount_now(&on, block_size_bytes)?, len_bytes))
        };
        let (mounted, len_bytes) = blocking::run(blocking::WorkKind::Files, mounting).await??;
        let mount = &mounted.mount;
        let (kind, device) = (&mount.kind, mount.source.display());
        tracing::info!(directory = %mount.point.display(), kind, %device, "mounted");
        let was_read_only = is_read_only(mount)?;
        Ok(FileSystem {
            mounted,
            file,
            was_read_only,
            device_len_bytes: Cell::new(len_bytes),
            _lock: lock,
        })
    }

    fn mount_now(&self, file: &Path, block_size_bytes: u32) -> anyhow::Result<MountedLoop> {
        let kind = kind_on(file)?;
        // Again: what was waited for may have taken long.
        self.refuse_used()?;
        let mut mount = program("mount", "mount")?;
        let mut losetup = program("losetup", "mount")?;
        losetup.args(["--find", "--show", "--direct-io=on"]);
        // The file system writes in whole sectors, and a part of a block would have to be read first.
        losetup.args(["--sector-size", &block_size_bytes.to_string()]);
        let device = ran(losetup.arg(file))?.trim().to_owned();
        let sequence = sequence_of(Path::new(&device));
        mount.args(["-t", &kind]);
        if let Some(options) = &self.options {
            mount.args(["-o", options]);
        }
        let mounted = ran(mount.arg(&device).arg(&self.directory));
        // Detach in any case: while the device is mounted, the kernel defers it.
        let detached = ran(program("losetup", "mount")?.args(["--detach", &device]));
        mounted.map_err(|error| not_mounted(error, block_size_bytes))?;
        let mounted = MountedLoop {
            mount: self.mounted_from(Path::new(&device))?,
            sequence,
        };
        if detached.is_err() {
            // Nothing is left behind.
            let _ = mounted.unmount();
        }
        detached.map(|_| mounted)
    }

    fn mounted_from(&self, device: &Path) -> anyhow::Result<Mount> {
        match mount_at(&self.directory)? {
            Some(mount) if mount.source == device => Ok(mount),
            _ => bail!("{} was unmounted at once", self.directory.display()),
        }
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

/// A file system's mount, and what its loop device was then.
#[derive(Clone)]
struct MountedLoop {
    mount: Mount,
    /// The loop device's [`sequence_of`].
    sequence: Option<u64>,
}

impl MountedLoop {
    /// Whether the loop device is still that one. As soon as it is unmounted, by whomever, its number is anybody's, and so
    /// is the mount's.
    fn is_there(&self) -> bool {
        sequence_of(&self.mount.source) == self.sequence
    }

    fn unmount(&self) -> io::Result<Unmounted> {
        match self.is_there() {
            true => unmount_now(&self.mount),
            false => Ok(Unmounted::Yes),
        }
    }

    fn detach(&self) -> io::Result<()> {
        match self.mount.find(&mounts()?) {
            Some((here, None)) if self.is_there() => {
                rustix::mount::unmount(&here.point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
                Ok(())
            }
            // What is mounted over it would go instead.
            _ => Ok(()),
        }
    }
}

/// A mounted file system.
pub(super) struct FileSystem {
    mounted: MountedLoop,
    /// What its loop device is on.
    file: PathBuf,
    /// How long the file was when the loop device was told.
    device_len_bytes: Cell<u64>,
    /// When it was mounted.
    was_read_only: bool,
    /// Of the directory.
    _lock: Option<Arc<File>>,
}

impl FileSystem {
    /// Its mount, as it was when it was mounted.
    pub(super) fn mount(&self) -> &Mount {
        &self.mounted.mount
    }

    /// Where it is, if it was mounted for writing and takes no writes any more.
    pub(super) fn broken(&self) -> Option<&Path> {
        let is_broken = !self.was_read_only && is_read_only(self.mount()).unwrap_or(false);
        is_broken.then_some(&self.mount().point)
    }

    /// Whether its loop device is as long as a volume of `len_bytes`.
    pub(super) fn is_as_long_as(&self, len_bytes: u64) -> bool {
        self.device_len_bytes.get() == len_bytes
    }

    /// Has its loop device follow a volume that is `len_bytes` long, as soon as the file is: that takes until the requests end
    /// that are in progress. The file system has to be told by somebody who knows it.
    pub(super) async fn follow_length(&self, len_bytes: u64) {
        let mounted = self.mounted.clone();
        let (device, kind) = (mounted.mount.source.clone(), mounted.mount.kind.clone());
        let shown = device.display().to_string();
        let file = self.file.clone();
        let following = move || -> anyhow::Result<bool> {
            // What the kernel goes by: `stat` shows what the volume has answered, also where the kernel did not take that, as a
            // write ended meanwhile.
            if File::open(&file)?.seek(SeekFrom::End(0))? != len_bytes {
                return Ok(false);
            }
            if !mounted.is_there() {
                bail!("it was unmounted");
            }
            let mut losetup = program("losetup", "mount")?;
            ran(losetup.arg("--set-capacity").arg(&device))?;
            Ok(true)
        };
        let followed = blocking::run(blocking::WorkKind::Files, following).await;
        let followed = followed.map_err(anyhow::Error::from).and_then(|ran| ran);
        if !matches!(followed, Ok(false)) {
            // It is tried once, and not again and again.
            self.device_len_bytes.set(len_bytes);
        }
        let mend = match kind.as_str() {
            "xfs" => format!("xfs_growfs {}", self.mount().point.display()),
            "btrfs" => format!(
                "btrfs filesystem resize max {}",
                self.mount().point.display()
            ),
            _ => format!("resize2fs {shown}"),
        };
        match followed {
            Ok(false) => {}
            Ok(true) => tracing::info!(
                device = shown,
                "the loop device is as long as the volume; to have the file system use that: {mend}"
            ),
            Err(error) => tracing::error!(
                device = shown,
                "the loop device does not follow the length of the volume: {error:#}"
            ),
        }
    }

    /// Unmounts it, if nobody uses it. Unmounting writes back dirty pages, so the file must still be served
    /// meanwhile.
    pub(super) async fn unmount(&self) -> Unmounted {
        let mounted = self.mounted.clone();
        let unmounting = move || {
            mounted
                .unmount()
                .unwrap_or_else(|error| Unmounted::No(error.to_string()))
        };
        let unmounted = blocking::run(blocking::WorkKind::Files, unmounting).await;
        unmounted.unwrap_or_else(|error| Unmounted::No(error.to_string()))
    }

    /// Takes it off its directory after its file was lost. Whoever uses it gets errors.
    pub(super) async fn detach(self) {
        let directory = self.mount().point.clone();
        let detaching = move || self.mounted.detach();
        let detached = blocking::run(blocking::WorkKind::Files, detaching).await;
        if let Err(error) | Ok(Err(error)) = detached {
            tracing::error!(directory = %directory.display(), %error, "it cannot be unmounted");
        }
    }
}
