//! Mounts a file system whose root is a regular file, so that the mount point is that file. Root uses
//! the system call; other users go through `fusermount3`.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd},
    path::Path,
};

use engine::{
    device::SharedDevice,
    mounts::{Mount, mount_at, mounts},
};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::fusermount;

/// The file system type that `mount` shows.
pub(crate) const TYPE: &str = "fuse.sanstone";

/// A device name for `mount` to show that no other mount has, by which this one is known as long as it is there.
pub(crate) fn unique_source() -> io::Result<String> {
    let mut number = [0; 8];
    engine::random::fill(&mut number)?;
    Ok(format!("sanstone-{:016x}", u64::from_ne_bytes(number)))
}

/// Mounts on the file at `path`, with permissions `mode`, from a [`unique_source`]. Returns the descriptor from which to
/// read requests, and the mount.
pub(crate) fn mount(
    path: &Path,
    source: &str,
    mode: u32,
    read_only: bool,
) -> Result<(SharedDevice, Mount), String> {
    let device = mounted(path, source, mode, read_only)?;
    match mount_at(path) {
        Ok(Some(mount)) if mount.source == Path::new(source) => Ok((device, mount)),
        Ok(_) => Err(format!("{} was unmounted at once", path.display())),
        Err(error) => Err(error.to_string()),
    }
}

fn mounted(path: &Path, source: &str, mode: u32, read_only: bool) -> Result<SharedDevice, String> {
    if !is_root() {
        let access = if read_only { "ro" } else { "rw" };
        let options = format!(
            "{access},nosuid,nodev,noatime,default_permissions,fsname={source},subtype=sanstone"
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
    rustix::mount::mount(source, path, TYPE, flags, options.as_c_str()).map_err(|error| {
        let mend = match error {
            rustix::io::Errno::PERM => "; mounting needs CAP_SYS_ADMIN",
            rustix::io::Errno::NODEV => "; load FUSE with `modprobe fuse`, if this kernel has it",
            _ => "",
        };
        format!("{}: {error}{mend}", path.display())
    })?;
    Ok(device)
}

/// Whether a file is still at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unmounted {
    /// It is not.
    Yes,
    /// It is, because of this.
    No(String),
}

/// Unmounts `mount`, wherever it is now, if nobody uses it there. With `lazily`, detaches it at once, and unmounts it
/// when the last user closes it.
pub(crate) fn unmount_where_it_is(mount: &Mount, lazily: bool) -> Unmounted {
    let mounts = match mounts() {
        Ok(mounts) => mounts,
        Err(error) => return Unmounted::No(error.to_string()),
    };
    match mount.find(&mounts) {
        None => Unmounted::Yes,
        // Unmounting by its path would take away the other one.
        Some((_, Some(over))) => Unmounted::No(format!(
            "{} of type {} is mounted over it",
            over.source.display(),
            over.kind
        )),
        Some((here, None)) => match unmount(&here.point, lazily) {
            Ok(()) => Unmounted::Yes,
            Err(why) => Unmounted::No(why),
        },
    }
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
