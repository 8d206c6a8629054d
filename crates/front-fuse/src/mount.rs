//! Mounts a file system whose root is a regular file, so that the mount point is that file. Root uses
//! the system call; other users go through `fusermount3`.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd},
    path::Path,
};

use engine::device::SharedDevice;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::fusermount;

/// The file system type that `mount` shows.
pub(crate) const TYPE: &str = "fuse.sanstone";
/// The device name that `mount` shows.
const SOURCE: &str = "sanstone";

/// Mounts on the file at `path`, with permissions `mode`. Returns the descriptor from which to read requests.
pub(crate) fn mount(path: &Path, mode: u32, read_only: bool) -> Result<SharedDevice, String> {
    if !is_root() {
        let access = if read_only { "ro" } else { "rw" };
        let options = format!(
            "{access},nosuid,nodev,noatime,default_permissions,fsname={SOURCE},subtype=sanstone"
        );
        let fd = fusermount::mount(path, &options)?;
        return SharedDevice::adopt(fd).map_err(|error| error.to_string());
    }
    let device = SharedDevice::open().map_err(|error| {
        let mend = match error.kind() {
            io::ErrorKind::NotFound => "; load FUSE with `modprobe fuse`, if this kernel has it",
            io::ErrorKind::PermissionDenied => "; give the container access to the device",
            _ => "",
        };
        format!("/dev/fuse: {error}{mend}")
    })?;
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let fd = device.as_fd().as_raw_fd();
    let options = format!(
        "fd={fd},rootmode={:o},user_id={uid},group_id={gid},default_permissions,allow_other",
        0o100_000 | mode
    );
    let options = CString::new(options).map_err(|error| error.to_string())?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, read_only);
    rustix::mount::mount(SOURCE, path, TYPE, flags, options.as_c_str()).map_err(|error| {
        let mend = match error {
            rustix::io::Errno::PERM => "; mounting needs CAP_SYS_ADMIN",
            rustix::io::Errno::NODEV => "; load FUSE with `modprobe fuse`, if this kernel has it",
            _ => "",
        };
        format!("{}: {error}{mend}", path.display())
    })?;
    Ok(device)
}

/// Unmounts `path` if nobody uses it. With `lazily`, detaches it from its path at once, and unmounts it
/// when the last user closes it.
pub(crate) fn unmount(path: &Path, lazily: bool) -> Result<(), String> {
    if !is_root() {
        return fusermount::unmount(path, lazily);
    }
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazily);
    rustix::mount::unmount(path, flags).map_err(|error| error.to_string())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
