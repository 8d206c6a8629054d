//! What the system says about an open file or device: alignment, sectors, and whether it takes writes. All of it is asked,
//! because a promise of the layers above depends on it.

use std::{
    ffi::{CStr, CString, c_int},
    fs, io,
    ops::RangeInclusive,
    os::{
        fd::{AsRawFd, RawFd},
        unix::{ffi::OsStrExt, fs::FileTypeExt},
    },
    path::Path,
};

use crate::{mounts::mounts, reactor::FileState};

/// Read-only state, sector size and physical sector size of a block device (`_IO(0x12, …)`).
const BLKROGET: libc::c_ulong = 0x125e;
const BLKSSZGET: libc::c_ulong = 0x1268;
const BLKPBSZGET: libc::c_ulong = 0x127b;

const STATX_MNT_ID: u32 = 0x1000;
const STATX_DIOALIGN: u32 = 0x2000;
const STATX_WRITE_ATOMIC: u32 = 0x1_0000;
/// The alignment where the system does not say: what nearly every disk takes.
const ALIGN_BYTES: u32 = 4096;

/// The sectors of a block device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    /// The unit of its addresses.
    pub(super) sector_bytes: u32,
    /// What it writes without reading; 1: it does not say.
    pub(super) physical_bytes: u32,
}

impl Device {
    /// The device that is open; `None`: it is no block device.
    pub(super) fn of(file: &fs::File) -> io::Result<Option<Device>> {
        if !file.metadata()?.file_type().is_block_device() {
            return Ok(None);
        }
        let sector_bytes = positive(ask(file, BLKSSZGET)?).unwrap_or(512);
        // The oldest kernels and drivers know no physical sectors.
        let physical_bytes = ask(file, BLKPBSZGET).ok().and_then(positive);
        Ok(Some(Device {
            sector_bytes,
            physical_bytes: physical_bytes.unwrap_or(1),
        }))
    }
}

fn positive(value: libc::c_int) -> Option<u32> {
    u32::try_from(value).ok().filter(|value| *value > 0)
}

/// Asks a block device for a number.
fn ask(file: &fs::File, what: libc::c_ulong) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    // SAFETY: these requests write one int, which lives through the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), what as _, &raw mut value) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What direct I/O on an open file needs and gives.
pub(super) struct Direct {
    /// The alignment of offsets and lengths, in bytes.
    pub(super) align_bytes: u32,
    /// The lengths that are written atomically.
    pub(super) atomic_write_bytes: Option<RangeInclusive<u32>>,
    /// Whether the system confirms that direct I/O bypasses the page cache.
    is_confirmed: bool,
}

/// Asks for alignment (STATX_DIOALIGN, Linux 6.1) and atomic lengths (STATX_WRITE_ATOMIC, Linux 6.11).
///
/// A file system that does not say may use the page cache all the same, as one that says 0 does: ext4 with a journal of
/// data, btrfs with compression, tmpfs, FUSE.
pub(super) fn direct_io(file: &fs::File, device: Option<Device>) -> io::Result<Direct> {
    let stat = statx(file, STATX_DIOALIGN | STATX_WRITE_ATOMIC)?;
    let said = (stat.stx_mask & STATX_DIOALIGN != 0).then_some(stat.stx_dio_offset_align);
    let said = said.filter(|align| *align > 0);
    let align_bytes = match (said, device) {
        (Some(align), _) => align.max(stat.stx_dio_mem_align),
        // A device has no file system between itself and us.
        (None, Some(device)) => device.sector_bytes,
        (None, None) => ALIGN_BYTES,
    };
    let lengths = stat.stx_atomic_write_unit_min..=stat.stx_atomic_write_unit_max;
    let can = stat.stx_mask & STATX_WRITE_ATOMIC != 0 && *lengths.start() > 0;
    Ok(Direct {
        align_bytes,
        atomic_write_bytes: Some(lengths).filter(|l| can && !l.is_empty()),
        is_confirmed: said.is_some() || device.is_some(),
    })
}

/// What the system says now about an open file, and may say otherwise later.
pub(super) fn state(file: &fs::File) -> io::Result<FileState> {
    let device = Device::of(file)?;
    // SAFETY: no memory arguments; the result is checked.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    let is_read_only = match device {
        Some(_) => ask(file, BLKROGET)? != 0,
        None => {
            let attributes = statx(file, 0)?.stx_attributes;
            attributes & libc::STATX_ATTR_IMMUTABLE as u64 != 0 || is_mounted_read_only(file)
        }
    };
    Ok(FileState {
        is_direct: flags & libc::O_DIRECT != 0 && direct_io(file, device)?.is_confirmed,
        is_read_only,
    })
}

fn is_mounted_read_only(file: &fs::File) -> bool {
    // SAFETY: statvfs is plain data for which zero is valid.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor; `stat` lives through the call.
    let failed = unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut stat) };
    failed == 0 && stat.f_flag & libc::ST_RDONLY != 0
}

/// The device numbers of the file system that holds the file at `path`, as the kernel's own tables have them. On btrfs and
/// overlayfs a file shows others.
pub(super) fn file_system_of(path: &Path) -> io::Result<(u32, u32)> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let stat = statx_at(libc::AT_FDCWD, &path, 0, STATX_MNT_ID)?;
    let known = stat.stx_mask & STATX_MNT_ID != 0;
    let mount = mounts()?.into_iter();
    let mount = mount.filter(|mount| known && mount.id == stat.stx_mnt_id);
    let mut told = mount.filter_map(|mount| {
        let (major, minor) = mount.device.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    Ok(told
        .next()
        .unwrap_or((stat.stx_dev_major, stat.stx_dev_minor)))
}

fn statx(file: &fs::File, mask: u32) -> io::Result<libc::statx> {
    statx_at(file.as_raw_fd(), c"", libc::AT_EMPTY_PATH, mask)
}

fn statx_at(directory: RawFd, path: &CStr, flags: c_int, mask: u32) -> io::Result<libc::statx> {
    // SAFETY: statx is plain data for which zero is valid.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor or AT_FDCWD; `path` and `stat` live through the call.
    let failed = unsafe { libc::statx(directory, path.as_ptr(), flags, mask, &raw mut stat) };
    match failed {
        0 => Ok(stat),
        _ => Err(io::Error::last_os_error()),
    }
}
