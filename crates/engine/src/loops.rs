//! Loop devices: which ones are on a file, and on which device that file lies.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
};

use crate::mounts::mounts;

/// The loop devices whose file is at `path`, as the kernel names it now. Never waits for the file.
///
/// # Errors
/// Any error the system reports.
pub fn loops_on(path: &Path) -> io::Result<Vec<PathBuf>> {
    let on_it = in_use()?.into_iter().filter(|it| it.file == path);
    Ok(on_it.map(|it| it.path()).collect())
}

/// The loop devices on files at or below `path`, as the kernel names them now. Never waits for a file.
///
/// # Errors
/// Any error the system reports.
pub fn loops_within(path: &Path) -> io::Result<Vec<PathBuf>> {
    let on_it = in_use()?.into_iter().filter(|it| it.file.starts_with(path));
    Ok(on_it.map(|it| it.path()).collect())
}

/// A loop device in use.
struct Loop {
    /// Its directory in sysfs, named as the device is.
    sysfs: PathBuf,
    /// The path of its file, as the kernel names it now.
    file: PathBuf,
}

impl Loop {
    fn path(&self) -> PathBuf {
        Path::new("/dev").join(self.sysfs.file_name().unwrap_or_default())
    }

    fn is_read_only(&self) -> bool {
        self.fact("ro") == "1"
    }

    fn fact(&self, name: &str) -> String {
        let text = fs::read_to_string(self.sysfs.join(name)).unwrap_or_default();
        text.trim().to_owned()
    }
}

fn in_use() -> io::Result<Vec<Loop>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let sysfs = entry?.path();
        // Other devices and unused ones do not have it, and a device may be released meanwhile.
        let Ok(file) = fs::read(sysfs.join("loop/backing_file")) else {
            continue;
        };
        let file = OsStr::from_bytes(file.strip_suffix(b"\n").unwrap_or(&file)).into();
        found.push(Loop { sysfs, file });
    }
    Ok(found)
}

/// A loop device on a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoopDevice {
    /// The device.
    pub path: PathBuf,
    /// Where it is mounted.
    pub mounted: Option<PathBuf>,
    /// Nothing is written through it.
    pub is_read_only: bool,
}

/// The loop device on the file at `path`, whatever directory and link the device knows it by; of several, one that writes. Looks
/// at the files of other loop devices only where it cannot be told by their names, so it seldom waits for another file system.
/// Blocks.
///
/// # Errors
/// Any error the system reports for `path` or the tables of devices and mounts.
pub fn loop_of(path: &Path) -> io::Result<Option<LoopDevice>> {
    let path = path.canonicalize()?;
    let file = fs::metadata(&path)?;
    let may_be_it = |it: &Loop| file.nlink() > 1 || it.file.file_name() == path.file_name();
    let is_it = |it: fs::Metadata| (it.dev(), it.ino()) == (file.dev(), file.ino());
    let in_use = in_use()?.into_iter().filter(may_be_it);
    let found = in_use.filter(|it| fs::metadata(&it.file).is_ok_and(is_it));
    let Some(found) = found.min_by_key(Loop::is_read_only) else {
        return Ok(None);
    };
    let number = found.fact("dev");
    let mut mounted = mounts()?.into_iter();
    let mount = mounted.find(|it| it.device == number);
    Ok(Some(LoopDevice {
        path: found.path(),
        mounted: mount.map(|mount| mount.point),
        is_read_only: found.is_read_only(),
    }))
}

/// The number of what the disk `device` is now, which no other has until the next boot: another file on the same loop
/// device has another one. `None` if there is no such disk.
pub fn sequence_of(device: &Path) -> Option<u64> {
    let sysfs = Path::new("/sys/block").join(device.file_name()?);
    let text = fs::read_to_string(sysfs.join("diskseq")).ok()?;
    text.trim().parse().ok()
}

/// The device that holds the file of `device`, an open loop device, as `MAJOR:MINOR`, the form of
/// [`Mount::device`](crate::mounts::Mount::device).
///
/// # Errors
/// Any error the system reports: ENOTCONN if the server of the file, on FUSE, is gone.
pub fn device_below(device: &File) -> io::Result<String> {
    const GET_STATUS: libc::c_ulong = 0x4c05; // LOOP_GET_STATUS64
    let mut status = [0_u64; 29]; // struct loop_info64
    // SAFETY: passes a live array of the size that this call writes.
    if unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS as _, status.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(number(status[0])) // lo_device
}

/// A device number as `MAJOR:MINOR`.
pub fn number(device: u64) -> String {
    format!("{}:{}", libc::major(device), libc::minor(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_as_in_mountinfo() {
        assert_eq!(number(0x0700), "7:0");
        assert_eq!(number(0x10_0037), "0:311");
    }
}
