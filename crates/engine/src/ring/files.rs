//! Opening and inspecting files on the real system: what io_uring has no operation for, or what is needed
//! only at start (`open`, `statx`).

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt},
        },
    },
    path::Path,
    sync::Arc,
};

use super::facts;
use crate::{
    handle::{Handle, Keeper},
    reactor::{OpenOptions, OpenedFile},
};

/// Opens `path`.
pub(super) fn open(path: &Path, options: &OpenOptions) -> io::Result<OpenedFile> {
    let mut flags = libc::O_CLOEXEC
        | if options.write {
            libc::O_RDWR
        } else {
            libc::O_RDONLY
        };
    if options.direct {
        flags |= libc::O_DIRECT;
    }
    if options.durable {
        flags |= libc::O_DSYNC;
    }
    if options.create {
        flags |= libc::O_CREAT;
    }
    if options.create_new {
        flags |= libc::O_CREAT | libc::O_EXCL;
    }
    let c_path = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the path contains a NUL byte"))?;
    let mut fd = open_path(&c_path, flags)?;
    if options.lock && options.write && is_block_device(&fd)? {
        fd = alone(&fd, flags & !(libc::O_CREAT | libc::O_EXCL))?;
    }
    if options.lock {
        let operation = if options.write {
            libc::LOCK_EX
        } else {
            libc::LOCK_SH
        } | libc::LOCK_NB;
        // SAFETY: no memory arguments.
        if unsafe { libc::flock(fd.as_raw_fd(), operation) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let file = fs::File::from(fd);
    let len_bytes = length(&file)?;
    let is_regular = file.metadata()?.is_file();
    let device = facts::Device::of(&file)?;
    let direct = facts::direct_io(&file, device)?;
    let (io_align_bytes, atomic_write_bytes) = match options.direct {
        true => (direct.align_bytes, direct.atomic_write_bytes),
        false => (1, None),
    };
    let state = facts::state(&file)?;
    let kind = kind_of(&file);
    let raw = file.as_raw_fd();
    let is_ext4 = kind == Some(libc::EXT4_SUPER_MAGIC);
    let keeps_small = is_regular && !options.direct && !options.durable && is_ext4;
    Ok(OpenedFile {
        raw,
        keeper: Keeper::Fd(Arc::new(file.into())),
        len_bytes,
        is_regular,
        io_align_bytes,
        atomic_write_bytes,
        write_max_bytes: keeps_small.then_some(FOLIO_MAX_BYTES),
        waits: is_regular && kind.is_none_or(asks_somebody),
        sector_bytes: device.map_or(1, |device| device.sector_bytes),
        physical_bytes: device.map_or(1, |device| device.physical_bytes),
        state,
    })
}

fn is_block_device(fd: &OwnedFd) -> io::Result<bool> {
    let kind = fs::metadata(own_path(fd.as_raw_fd()))?.file_type();
    Ok(kind.is_block_device())
}

/// Opens the block device behind `fd` again with O_EXCL, as mkfs and mount do (open(2)). That fails while the
/// device or a partition of it is mounted or part of another device.
fn alone(fd: &OwnedFd, flags: libc::c_int) -> io::Result<OwnedFd> {
    let path = CString::new(own_path(fd.as_raw_fd())).expect("no NUL byte");
    open_path(&path, flags | libc::O_EXCL)
}

/// Opens `path` as open(2) does; a file that is created belongs to its user alone.
fn open_path(path: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: a NUL-terminated path that lives through the call.
    let raw = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// A path that leads to whatever is open as `raw`, wherever its original path leads now.
fn own_path(raw: RawFd) -> String {
    format!("/proc/self/fd/{raw}")
}

/// The longest single write into ext4's page cache, in bytes.
///
/// A write creates folios as long as itself (Linux 6.16), and each later write into a folio walks over all of
/// its blocks: 4 KiB cost 2 to 3 µs in a folio of 16 KiB, 6 µs in one of 128 KiB and 25 µs in one of 1 MiB.
/// Database pages are no longer than this.
const FOLIO_MAX_BYTES: usize = 16 << 10;

/// The file systems that ask a process or another machine: FUSE and virtiofs, NFS, SMB (three numbers), AFS,
/// Coda, 9P, Ceph (statfs(2)).
const ASKING: [u32; 9] = [
    0x6573_5546,
    0x0000_6969,
    0x0000_517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x5346_414f,
    0x7375_7245,
    0x0102_1997,
    0x00c3_6400,
];

fn asks_somebody(kind: libc::c_long) -> bool {
    ASKING.contains(&(kind as u32))
}

/// The type of the file system that holds a file; `None`: unknown.
fn kind_of(file: &fs::File) -> Option<libc::c_long> {
    // SAFETY: statfs is plain data for which zero is valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor; `stat` lives through the call.
    let failed = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) };
    (failed == 0).then_some(stat.f_type)
}

/// Opens the file behind the descriptor `raw` again. Not by its original path, which may lead elsewhere now.
pub(super) fn reopen(raw: RawFd, options: &OpenOptions) -> io::Result<OpenedFile> {
    let path = own_path(raw);
    open(Path::new(&path), options).map_err(|error| {
        let message = format!("it cannot be reopened through {path}: {error}");
        io::Error::other(message)
    })
}

/// The identity of what a path leads to, independent of the path.
#[derive(PartialEq, Eq)]
pub(super) enum PathIdentity {
    /// A block device by its number; its node may be recreated.
    Device(u64),
    /// A file, by its file system and inode.
    File(u64, u64),
}

impl PathIdentity {
    fn of(found: &fs::Metadata) -> PathIdentity {
        match found.file_type().is_block_device() {
            true => PathIdentity::Device(found.rdev()),
            false => PathIdentity::File(found.dev(), found.ino()),
        }
    }
}

pub(super) fn identity_of(file: &Handle) -> io::Result<PathIdentity> {
    match &file.keeper {
        Keeper::Fd(fd) => Ok(PathIdentity::of(
            &fs::File::from(fd.try_clone()?).metadata()?,
        )),
        Keeper::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

pub(super) fn identity_at(path: &Path) -> io::Result<PathIdentity> {
    Ok(PathIdentity::of(&fs::metadata(path)?))
}

/// The length of an open file in bytes; for a device, its size.
pub(super) fn length(mut file: &fs::File) -> io::Result<u64> {
    match file.metadata()?.len() {
        // A block device has no length in its inode; seeking to its end gives its size.
        0 => io::Seek::seek(&mut file, io::SeekFrom::End(0)),
        len_bytes => Ok(len_bytes),
    }
}
