//! The kernel's FUSE interface: structures and constants from `linux/fuse.h`, for version 7.31 and later. Fields are
//! in native byte order and have the kernel's names; each structure has the kernel's length.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol version that we speak.
pub(crate) const MAJOR: u32 = 7;
/// The minor version that we speak (Linux 6.18). An older kernel falls back to its own.
pub(crate) const MINOR: u32 = 45;
/// Older kernels lack FUSE_MAX_PAGES and more (Linux 4.20 has 7.28, 5.4 has 7.31).
pub(crate) const MINOR_MIN: u32 = 31;
/// The first version with FOPEN_PARALLEL_DIRECT_WRITES (Linux 6.2).
pub(crate) const MINOR_PARALLEL_WRITES: u32 = 38;

/// The only inode.
pub(crate) const ROOT: u64 = 1;

/// Defines a kernel structure; the second argument is its length in the kernel, in bytes.
macro_rules! structure {
    ($(#[$doc:meta])* $name:ident, $len:literal { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == $len);
    };
}

structure! {
    /// `fuse_in_header`: precedes every request. `len` includes the header itself.
    InHeader, 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
}

structure! {
    /// `fuse_out_header`: precedes every reply. `error` is 0 or a negated errno.
    OutHeader, 16 {
        len: u32, error: i32, unique: u64,
    }
}

structure! {
    /// `fuse_init_in`, the part common to all versions; `flags2` follows if `flags` has INIT_EXT.
    InitIn, 16 {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
    }
}

structure! {
    /// `fuse_init_out`.
    InitOut, 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, unused: [u32; 7],
    }
}

structure! {
    /// `fuse_attr`.
    Attr, 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
}

structure! {
    /// `fuse_attr_out`.
    AttrOut, 104 {
        attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr,
    }
}

structure! {
    /// `fuse_setattr_in`.
    SetattrIn, 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
}

structure! {
    /// `fuse_open_in`.
    OpenIn, 8 {
        flags: u32, open_flags: u32,
    }
}

structure! {
    /// `fuse_open_out`.
    OpenOut, 16 {
        fh: u64, open_flags: u32, padding: u32,
    }
}

structure! {
    /// `fuse_read_in`.
    ReadIn, 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
}

structure! {
    /// `fuse_write_in`; the data follow. `flags` are those of the open file, plus O_DSYNC if this
    /// write asks for it.
    WriteIn, 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
}

structure! {
    /// `fuse_write_out`.
    WriteOut, 8 {
        size: u32, padding: u32,
    }
}

structure! {
    /// `fuse_fallocate_in`.
    FallocateIn, 32 {
        fh: u64, offset: u64, length: u64, mode: u32, padding: u32,
    }
}

structure! {
    /// `fuse_statfs_out`.
    StatfsOut, 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
}

/// `enum fuse_opcode`: the ones that a single file needs.
pub(crate) mod opcode {
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
}

/// `FUSE_…` flags of INIT; bits from 32 on travel in `flags2`.
pub(crate) mod init {
    /// Read-ahead requests may run concurrently.
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    /// Writes longer than a page.
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    /// Direct I/O from libaio and io_uring runs concurrently.
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    /// The device reports ECONNABORTED after an abort, ENODEV after an unmount.
    pub(crate) const ABORT_ERROR: u64 = 1 << 21;
    /// The field `max_pages` is valid.
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    /// The field `flags2` is valid.
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    /// Permits MAP_SHARED of a file opened with FOPEN_DIRECT_IO (Linux 6.6).
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// `FATTR_…`: which fields of [`SetattrIn`] are valid.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    /// `fh` is valid.
    pub(crate) const FH: u32 = 1 << 6;
    /// The current time instead of `atime`.
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    /// The current time instead of `mtime`.
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    /// `lock_owner` is valid.
    pub(crate) const LOCKOWNER: u32 = 1 << 9;
    /// The kernel's own time of the change, from kernels that keep the times themselves.
    pub(crate) const CTIME: u32 = 1 << 10;
    /// Takes away set-user-ID and set-group-ID, which a volume's file never has.
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// `FOPEN_…`: flags of [`OpenOut`].
pub(crate) mod fopen {
    /// Reads and writes bypass the page cache.
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    /// Direct writes to one file may run in parallel.
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// `FALLOC_FL_…` of `linux/falloc.h`.
pub(crate) mod falloc {
    pub(crate) const KEEP_SIZE: u32 = 0x01;
    pub(crate) const PUNCH_HOLE: u32 = 0x02;
    pub(crate) const ZERO_RANGE: u32 = 0x10;
}
