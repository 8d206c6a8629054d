//! Removes what a dead `sanstone attach --mount` has left above its file, so that the same command can be run
//! again: the mounted file system, and the loop device on the file.
//!
//! Nothing else may be removed, so each loop device must prove that it is on that file: the kernel names the
//! file's path, and says either that the file lies in the dead mount or that its server is gone. While a device is
//! looked at and removed it is locked, as two processes may do this at once: the second one then finds it gone, or
//! in use by the first.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::bail;
use engine::{
    loops::{device_below, loops_on, number},
    mounts::{Mount, mount_at, mounts},
};
use front_fuse::Unmounted;
use rustix::fs::{FlockOperation, flock};

use super::{
    holders::holders_of,
    util_linux::{program, ran, unmount_now},
};

/// How long killed programs may take to close their files, or the kernel to release a loop device.
const IN_USE_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Unmounts the file system from `directory` and detaches the loop devices, as far as they are on `file`, over
/// which the dead process has left its mount `dead`. The mount itself stays.
///
/// # Errors
/// The file system is in use, or any error the system reports.
pub(super) fn clear(directory: &Path, file: &Path, dead: &Mount) -> anyhow::Result<()> {
    clear_directory(directory, file, dead)?;
    for device in loops_on(file)? {
        if let Some(other) = mounted_from(&device)? {
            let (device, directory) = (device.display(), other.point.display());
            tracing::warn!(
                %device, %directory,
                "the file system of a `sanstone attach` that died is mounted on another directory, too; unmount it"
            );
        } else if let Some(_held) = LockedLoop::take(&device, dead)? {
            ran(program("losetup", "mount")?.arg("--detach").arg(&device))?;
        }
    }
    let begun = Instant::now();
    while is_in_the_way(file, dead)? && begun.elapsed() < IN_USE_LIMIT {
        sleep(PAUSE);
    }
    Ok(())
}

fn clear_directory(directory: &Path, file: &Path, dead: &Mount) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let Some(mount) = mount_at(directory)? else {
            return Ok(());
        };
        let Some(device) = loops_on(file)?.into_iter().find(|it| *it == mount.source) else {
            return Ok(());
        };
        let Some(held) = LockedLoop::take(&device, dead)? else {
            return Ok(());
        };
        // The source is only a name. Btrfs has a number of its own.
        if mount.device != held.number && mount.kind != "btrfs" {
            return Ok(());
        }
        let shown = directory.display();
        match unmount_now(&mount)? {
            Unmounted::Yes => tracing::warn!(
                directory = %shown,
                "unmounted the file system of a `sanstone attach` that died"
            ),
            Unmounted::No(_) if begun.elapsed() > IN_USE_LIMIT => bail!(
                "its file system on {shown} is in use by {}; end that, then run this again",
                holders_of(&mount)
            ),
            Unmounted::No(_) => {}
        }
        drop(held);
        sleep(PAUSE);
    }
}

/// A locked loop device on a file whose server is gone.
struct LockedLoop {
    /// Holds the lock.
    _device: File,
    number: String,
}

impl LockedLoop {
    /// Locks the device. `None` if it is not, or no longer, on a file in the mount `dead`.
    fn take(device: &Path, dead: &Mount) -> io::Result<Option<LockedLoop>> {
        let is_released = |error: &io::Error| error.raw_os_error() == Some(RELEASED);
        let device = match File::open(device) {
            Err(error) if is_released(&error) => return Ok(None),
            opened => opened?,
        };
        flock(&device, FlockOperation::LockExclusive)?;
        let is_dead = match device_below(&device) {
            Ok(below) => below == dead.device,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => true,
            Err(error) if is_released(&error) => false,
            Err(error) => return Err(error),
        };
        let number = number(device.metadata()?.rdev());
        let held = LockedLoop {
            _device: device,
            number,
        };
        Ok(is_dead.then_some(held))
    }
}

/// The error of a loop device that no longer has a file (ENXIO).
const RELEASED: i32 = rustix::io::Errno::NXIO.raw_os_error();

fn mounted_from(device: &Path) -> io::Result<Option<Mount>> {
    let mut mounts = mounts()?.into_iter();
    Ok(mounts.find(|mount| mount.source == device))
}

/// Whether a loop device of the dead process is still to be released.
fn is_in_the_way(file: &Path, dead: &Mount) -> io::Result<bool> {
    for device in loops_on(file)? {
        if mounted_from(&device)?.is_none() && LockedLoop::take(&device, dead)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
