//! The mount of a file system whose root is a regular file, so that its mount point is that file. Root
//! mounts it with the system call; everybody else has `fusermount3` do so.

use std::{
    ffi::{CString, OsString},
    fs, io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
};

use engine::device::SharedDevice;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::fusermount;

/// The type of the file system, as `mount` shows it.
pub(crate) const TYPE: &str = "fuse.sanstone";
/// What is shown as the device.
const SOURCE: &str = "sanstone";

/// Mounts on the file at `path`; its permissions are `mode`. Gives the descriptor by which requests come.
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
            io::ErrorKind::NotFound => "; this kernel has no FUSE, or `modprobe fuse` loads it",
            io::ErrorKind::PermissionDenied => "; a container has to be given the device",
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
            rustix::io::Errno::NODEV => "; this kernel has no FUSE, or `modprobe fuse` loads it",
            _ => "",
        };
        format!("{}: {error}{mend}", path.display())
    })?;
    Ok(device)
}

/// Unmounts what is on `path`: if nobody uses it, or `lazily`, at once as far as its name goes, and for
/// whoever has it open when that one closes it.
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

/// The type of what is mounted on `path`, if anything is.
pub(crate) fn type_at(path: &Path) -> io::Result<Option<String>> {
    let mounts = fs::read("/proc/self/mountinfo")?;
    // What was mounted last is what is seen.
    let mounts = mounts.rsplit(|byte| *byte == b'\n').filter_map(parse);
    let mut here = mounts.filter(|(point, _)| point == path);
    Ok(here.next().map(|(_, kind)| kind))
}

/// Mount point and type of a line of mountinfo: `ID PARENT DEVICE ROOT POINT OPTIONS … - TYPE SOURCE …`.
fn parse(line: &[u8]) -> Option<(PathBuf, String)> {
    let mut words = line.split(|byte| *byte == b' ');
    let point = unescaped(words.nth(4)?);
    let kind = words.skip_while(|word| *word != b"-").nth(1)?;
    Some((point, String::from_utf8_lossy(kind).into_owned()))
}

/// A path of `/proc/self/mountinfo`, in which spaces and more are octal numbers.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text;
    while let Some((first, rest)) = left.split_first() {
        let octal = rest.get(..3).filter(|_| *first == b'\\');
        let value = octal.and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        bytes.push(value.unwrap_or(*first));
        left = match value {
            Some(_) => &rest[3..],
            None => rest,
        };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_mount_point_may_have_any_name() {
        let path = unescaped(b"/a\\040b/\\134c\\011\\");
        assert_eq!(path.as_os_str().as_bytes(), b"/a b/\\c\t\\");
        let line = b"36 35 0:40 / /a\\040b rw,nosuid shared:1 - fuse.sanstone sanstone rw,fd=3";
        let parsed = parse(line).expect("a line of it");
        assert_eq!(parsed, ("/a b".into(), TYPE.to_owned()));
        assert_eq!(parse(b"36 35"), None);
    }
}
