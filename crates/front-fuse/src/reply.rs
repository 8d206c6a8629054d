//! A reply to the kernel, as bytes. The data of a read are not copied here: they follow the header of
//! [`Reply::Data`].

use rustix::io::Errno;
use smallvec::SmallVec;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{
    Attr, AttrOut, InitOut, MAJOR, MINOR, OpenOut, OutHeader, ROOT, StatfsOut, WriteOut, fopen,
};

/// `S_IFREG`
const REGULAR: u32 = 0o100_000;
/// Unit of `st_blocks`, whatever the file system.
const STAT_BLOCK_BYTES: u64 = 512;
/// What programs are told to read and write in. More than a page is not taken by all kernels.
const BLOCK_BYTES: u32 = 4096;

/// What is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// It is done.
    Done,
    /// It is not.
    Error(Errno),
    /// INIT: what we can do.
    Init {
        /// `FUSE_…`, with those of `flags2` from bit 32 on.
        flags: u64,
        /// How far the kernel may read ahead, in bytes.
        max_readahead: u32,
        /// Requests that it may have open that no program waits for.
        max_background: u16,
        /// Longest read and write, in bytes: whole pages.
        io_max_bytes: u32,
    },
    /// Owner, length and times.
    Attributes(Attributes),
    /// It is open.
    Opened,
    /// The data follow: so many bytes.
    Data(u32),
    /// So many bytes were written.
    Written(u32),
    /// A file system as long as the file, and full.
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
    /// Who may do what (the lower 12 bits of `st_mode`).
    pub mode: u32,
    /// Whose it is.
    pub uid: u32,
    /// And of which group.
    pub gid: u32,
    /// When it was made and changed, in seconds since 1970.
    pub time_s: u64,
}

impl Reply {
    /// The reply to the request of this number; what follows [`Reply::Data`] is for the caller.
    pub fn to_bytes(&self, unique: u64) -> SmallVec<[u8; 128]> {
        match *self {
            Reply::Done => message(unique, 0, &[]),
            Reply::Error(errno) => message(unique, -errno.raw_os_error(), &[]),
            Reply::Data(len) => header(unique, 0, len as usize).as_bytes().into(),
            Reply::Init {
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
            Reply::Attributes(attributes) => structure(unique, &attributes.to_abi()),
            Reply::Opened => {
                let open_flags = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
                let opened = OpenOut {
                    open_flags,
                    ..OpenOut::default()
                };
                structure(unique, &opened)
            }
            Reply::Written(size) => structure(unique, &WriteOut { size, padding: 0 }),
            Reply::Statistics { len_bytes } => {
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
    /// They are valid for no time: the file may grow.
    fn to_abi(self) -> AttrOut {
        let attr = Attr {
            ino: ROOT,
            size: self.len_bytes,
            blocks: self.len_bytes / STAT_BLOCK_BYTES,
            atime: self.time_s,
            mtime: self.time_s,
            ctime: self.time_s,
            mode: REGULAR | (self.mode & 0o7777),
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
