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
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        // Other devices and unused ones do not have it, and a device may be released meanwhile.
        let Ok(file) = fs::read(entry.path().join("loop/backing_file")) else {
            continue;
        };
        if file.strip_suffix(b"\n") == Some(path.as_os_str().as_bytes()) {
            found.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    Ok(found)
}

/// The loop device on the file at `path`, whatever name the device knows it by, and where it is mounted. Looks at the
/// files of all loop devices, so it may wait for a file system. Blocks.
///
/// # Errors
/// Any error the system reports for `path` or the tables of devices and mounts.
pub fn loop_of(path: &Path) -> io::Result<Option<(PathBuf, Option<PathBuf>)>> {
    let file = fs::metadata(path)?;
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        let Ok(found) = fs::read(entry.path().join("loop/backing_file")) else {
            continue;
        };
        let found = OsStr::from_bytes(found.strip_suffix(b"\n").unwrap_or(&found));
        let is_it = |it: fs::Metadata| (it.dev(), it.ino()) == (file.dev(), file.ino());
        if !fs::metadata(found).is_ok_and(is_it) {
            continue;
        }
        let number = fs::read_to_string(entry.path().join("dev")).unwrap_or_default();
        let mounted = mounts()?;
        let mut mounted = mounted.into_iter().filter(|it| it.device == number.trim());
        let device = Path::new("/dev").join(entry.file_name());
        return Ok(Some((device, mounted.next().map(|mount| mount.point))));
    }
    Ok(None)
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
