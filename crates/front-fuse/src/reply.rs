//! Encodes a reply to the kernel. The data of a read are not copied here; the caller sends them after
//! the header of [`FuseReply::Data`].

use rustix::io::Errno;
use smallvec::SmallVec;
use zerocopy::{Immutable, IntoBytes};

use crate::{
    abi::{
        Attr, AttrOut, InitOut, MAJOR, MINOR, OpenOut, OutHeader, ROOT, StatfsOut, WriteOut, fopen,
    },
    changes::FileTimes,
};

/// `S_IFREG`
const REGULAR: u32 = 0o100_000;
/// The unit of `st_blocks` in every file system.
const STAT_BLOCK_BYTES: u64 = 512;
/// The preferred I/O size reported to programs. Not all kernels accept more than a page.
const BLOCK_BYTES: u32 = 4096;

/// The content of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FuseReply {
    /// Success, without data.
    Done,
    /// Failure.
    Error(Errno),
    /// INIT: our capabilities.
    Init {
        /// `FUSE_…`, with those of `flags2` from bit 32 on.
        flags: u64,
        /// How far the kernel may read ahead, in bytes.
        max_readahead: u32,
        /// The most background requests (that no program waits for) the kernel may have open.
        max_background: u16,
        /// The longest read and write, in bytes: whole pages.
        io_max_bytes: u32,
    },
    /// Owner, length and times.
    Attributes(Attributes),
    /// The file is open.
    Opened,
    /// This many bytes of data follow.
    Data(u32),
    /// This many bytes were written.
    Written(u32),
    /// Statistics of a file system as large as the file, and full.
    Statistics {
        /// Its length, in bytes.
        len_bytes: u64,
    },
}

/// What `stat` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Length in bytes.
    pub len_bytes: u64,
    /// Permissions (the lower 9 bits of `st_mode`).
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The times.
    pub times: FileTimes,
}

impl FuseReply {
    /// Encodes the reply to request `unique`. The caller appends the data of [`FuseReply::Data`].
    pub fn to_bytes(&self, unique: u64) -> SmallVec<[u8; 128]> {
        match *self {
            FuseReply::Done => message(unique, 0, &[]),
            FuseReply::Error(errno) => message(unique, -errno.raw_os_error(), &[]),
            FuseReply::Data(len) => header(unique, 0, len as usize).as_bytes().into(),
            FuseReply::Init {
                flags,
                max_readahead,
                max_background,
                io_max_bytes,
            } => structure(
                unique,
                &InitOut {
                    major: MAJOR,
                    minor: MINOR,
                    max_readahead,
                    flags: flags as u32,
                    max_background,
                    congestion_threshold: max_background / 4 * 3,
                    max_write: io_max_bytes,
                    time_gran: 1,
                    max_pages: (io_max_bytes / 4096) as u16,
                    flags2: (flags >> 32) as u32,
                    ..InitOut::default()
                },
            ),
            FuseReply::Attributes(attributes) => structure(unique, &attributes.to_abi()),
            FuseReply::Opened => {
                let open_flags = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
                let opened = OpenOut {
                    open_flags,
                    ..OpenOut::default()
                };
                structure(unique, &opened)
            }
            FuseReply::Written(size) => structure(unique, &WriteOut { size, padding: 0 }),
            FuseReply::Statistics { len_bytes } => {
                let statistics = StatfsOut {
                    blocks: len_bytes / u64::from(BLOCK_BYTES),
                    files: 1,
                    bsize: BLOCK_BYTES,
                    frsize: BLOCK_BYTES,
                    namelen: 255,
                    ..StatfsOut::default()
                };
                structure(unique, &statistics)
            }
        }
    }
}

impl Attributes {
    /// Never cached (validity 0), because the file may grow and its times move with each write.
    fn to_abi(self) -> AttrOut {
        let (accessed, modified) = (self.times.accessed.parts(), self.times.modified.parts());
        let changed = self.times.changed.parts();
        let attr = Attr {
            ino: ROOT,
            size: self.len_bytes,
            blocks: self.len_bytes / STAT_BLOCK_BYTES,
            atime: accessed.0 as u64,
            mtime: modified.0 as u64,
            ctime: changed.0 as u64,
            atimensec: accessed.1,
            mtimensec: modified.1,
            ctimensec: changed.1,
            mode: REGULAR | (self.mode & 0o777),
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            blksize: BLOCK_BYTES,
            ..Attr::default()
        };
        AttrOut {
            attr,
            ..AttrOut::default()
        }
    }
}

fn header(unique: u64, error: i32, len: usize) -> OutHeader {
    OutHeader {
        len: (size_of::<OutHeader>() + len) as u32,
        error,
        unique,
    }
}

fn structure<T: IntoBytes + Immutable>(unique: u64, body: &T) -> SmallVec<[u8; 128]> {
    message(unique, 0, body.as_bytes())
}

fn message(unique: u64, error: i32, body: &[u8]) -> SmallVec<[u8; 128]> {
    let mut bytes = SmallVec::from_slice(header(unique, error, body.len()).as_bytes());
    bytes.extend_from_slice(body);
    bytes
}
