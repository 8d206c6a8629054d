//! Decides what a request means for the file: an immediate answer, or work for the unit. Without I/O or
//! state of its own: it has the file's properties and is passed its length.
//!
//! The file says that it is a regular one, and programs rely on what regular files do. So whatever it does not do is
//! refused, and nothing is answered with success that was not done.

use rustix::io::Errno;

use crate::{
    abi::{MAJOR, MINOR_MIN, falloc, init},
    changes::{FileTimes, SetTime, SetTimes},
    reply::{Attributes, FuseReply},
    request::{FuseOperation, SetAttributes},
};

/// The capabilities we use of those the kernel offers. Not the write-back cache: writes must reach
/// the volume, and errors must reach the writer. With that cache the kernel would keep the file's times, too.
const FLAGS: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::ASYNC_DIO
    | init::ABORT_ERROR
    | init::MAX_PAGES
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP;

/// The properties of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileProperties {
    /// Writes are refused.
    pub read_only: bool,
    /// The volume benefits from discards.
    pub takes_discards: bool,
    /// The longest read and write, in bytes: whole pages, at least one.
    pub io_max_bytes: u32,
    /// The most background requests (that no program waits for) the kernel may have open.
    pub max_background: u16,
    /// Permissions (the lower 9 bits of `st_mode`).
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// How a request is handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handling {
    /// Answer at once.
    Reply(FuseReply),
    /// Answer at once with the [attributes](Session::attributes), after the file has been given these times, if any.
    Attributes(Option<SetTimes>),
    /// Answer when this work is done.
    Work(FuseWork),
    /// No answer is expected.
    Nothing,
}

/// Work for the unit. Ranges are in bytes, within the file and not empty; they need not be whole
/// blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FuseWork {
    /// Reads.
    Read {
        /// Position of the first byte.
        at: u64,
        /// Number of bytes.
        len: u32,
    },
    /// Writes the first `len` bytes of the data.
    Write {
        /// Position of the first byte.
        at: u64,
        /// Number of bytes.
        len: u32,
        /// The data must be on persistent media before the reply.
        durable: bool,
    },
    /// Makes a range read as zeroes.
    Zero {
        /// Position of the first byte.
        at: u64,
        /// Number of bytes.
        len: u64,
        /// The space may be freed.
        may_discard: bool,
    },
    /// Makes all completed writes durable.
    Flush,
}

impl FileProperties {
    /// How to handle `operation` on a file of `len_bytes`.
    pub fn step(&self, operation: &FuseOperation, len_bytes: u64) -> Handling {
        let error = |errno| Handling::Reply(FuseReply::Error(errno));
        match *operation {
            FuseOperation::Init {
                major,
                minor,
                max_readahead,
                flags,
            } => Handling::Reply(self.init((major, minor), max_readahead, flags)),
            FuseOperation::Destroy | FuseOperation::Release => Handling::Reply(FuseReply::Done),
            FuseOperation::Forget => Handling::Nothing,
            FuseOperation::GetAttributes => Handling::Attributes(None),
            FuseOperation::SetAttributes(set) => self.set_attributes(&set, len_bytes),
            FuseOperation::Open { truncates: true } => error(Errno::PERM),
            FuseOperation::Open { truncates: false } => Handling::Reply(FuseReply::Opened),
            FuseOperation::Statistics => Handling::Reply(FuseReply::Statistics { len_bytes }),
            FuseOperation::Read { at, len } => {
                match within(at, len.min(self.io_max_bytes).into(), len_bytes) {
                    0 => Handling::Reply(FuseReply::Data(0)),
                    len => Handling::Work(FuseWork::Read {
                        at,
                        len: len as u32,
                    }),
                }
            }
            FuseOperation::Write { at, len, durable } => {
                match within(at, len.min(self.io_max_bytes).into(), len_bytes) {
                    _ if self.read_only => error(Errno::ROFS),
                    0 if len == 0 => Handling::Reply(FuseReply::Written(0)),
                    // As a block device does at its end.
                    0 => error(Errno::NOSPC),
                    len => Handling::Work(FuseWork::Write {
                        at,
                        len: len as u32,
                        durable,
                    }),
                }
            }
            FuseOperation::Sync => Handling::Work(FuseWork::Flush),
            FuseOperation::Allocate { mode, at, len } => self.allocate(mode, (at, len), len_bytes),
            FuseOperation::Other { .. } => error(Errno::NOSYS),
        }
    }

    fn init(&self, (major, minor): (u32, u32), max_readahead: u32, flags: u64) -> FuseReply {
        if major != MAJOR || minor < MINOR_MIN {
            return FuseReply::Error(Errno::PROTO);
        }
        FuseReply::Init {
            flags: flags & FLAGS,
            max_readahead,
            max_background: self.max_background,
            io_max_bytes: self.io_max_bytes,
        }
    }

    /// The answer with the attributes of a file of `len_bytes` that has these `times`.
    pub fn attributes(&self, len_bytes: u64, times: FileTimes) -> FuseReply {
        FuseReply::Attributes(Attributes {
            len_bytes,
            mode: self.permissions(),
            uid: self.uid,
            gid: self.gid,
            times,
        })
    }

    fn permissions(&self) -> u32 {
        const WRITABLE: u32 = 0o222;
        match self.read_only {
            true => self.mode & !WRITABLE,
            false => self.mode,
        }
    }

    /// A disk keeps its length, its owner and its permissions. To change one is refused as for a file that is sealed
    /// or may only be appended to (EPERM): programs that have truncated a file rely on its being empty, and write no
    /// zeroes.
    fn set_attributes(&self, set: &SetAttributes, len_bytes: u64) -> Handling {
        let error = |errno| Handling::Reply(FuseReply::Error(errno));
        let differs = |wanted: Option<u32>, is: u32| wanted.is_some_and(|wanted| wanted != is);
        let mode = set.mode.map(|mode| mode & 0o7777);
        if self.read_only {
            return error(Errno::ROFS);
        }
        if set.others {
            return error(Errno::OPNOTSUPP);
        }
        if set.size.is_some_and(|size| size != len_bytes)
            || differs(mode, self.permissions())
            || differs(set.uid, self.uid)
            || differs(set.gid, self.gid)
        {
            return error(Errno::PERM);
        }
        let mut times = set.times;
        // POSIX has `ftruncate` move it, whether or not the length changes.
        times.modified = times.modified.or(set.size.map(|_| SetTime::Now));
        Handling::Attributes(Some(times))
    }

    fn allocate(&self, mode: u32, (at, len): (u64, u64), len_bytes: u64) -> Handling {
        let error = |errno| Handling::Reply(FuseReply::Error(errno));
        let may_discard = match mode & !falloc::KEEP_SIZE {
            // The range must read as zeroes, which a discard alone does not ensure.
            falloc::PUNCH_HOLE if self.takes_discards => true,
            falloc::ZERO_RANGE => false,
            _ => return error(Errno::OPNOTSUPP),
        };
        let keeps_size = mode & falloc::KEEP_SIZE != 0;
        match within(at, len, len_bytes) {
            _ if self.read_only => error(Errno::ROFS),
            inside if inside < len && !keeps_size => error(Errno::NOSPC),
            0 => Handling::Reply(FuseReply::Done),
            len => Handling::Work(FuseWork::Zero {
                at,
                len,
                may_discard,
            }),
        }
    }
}

/// How many of the `len` bytes at byte `at` lie within a file of `len_bytes`.
fn within(at: u64, len: u64, len_bytes: u64) -> u64 {
    len.min(len_bytes.saturating_sub(at))
}
