//! Decides what a request means for the file: an immediate answer, or work for the unit. Without I/O or
//! state of its own: it has the file's properties and is passed its length.

use rustix::io::Errno;

use crate::{
    abi::{MAJOR, MINOR_MIN, falloc, init},
    reply::{Attributes, Reply},
    request::Operation,
};

/// The capabilities we use of those the kernel offers. Not the write-back cache: writes must reach
/// the volume, and errors must reach the writer.
const FLAGS: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::ASYNC_DIO
    | init::ABORT_ERROR
    | init::MAX_PAGES
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP;

/// The properties of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// Writes are refused.
    pub read_only: bool,
    /// The volume benefits from discards.
    pub takes_discards: bool,
    /// The longest read and write, in bytes: whole pages, at least one.
    pub io_max_bytes: u32,
    /// The most background requests (that no program waits for) the kernel may have open.
    pub max_background: u16,
    /// Permissions (the lower 12 bits of `st_mode`).
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The creation time, in seconds since 1970.
    pub time_s: u64,
}

/// How a request is handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Answer at once.
    Reply(Reply),
    /// Answer when this work is done.
    Work(Work),
    /// No answer is expected.
    Nothing,
}

/// Work for the unit. Ranges are in bytes, within the file and not empty; they need not be whole
/// blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
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

impl Session {
    /// How to handle `operation` on a file of `len_bytes`.
    pub fn step(&self, operation: &Operation, len_bytes: u64) -> Step {
        let error = |errno| Step::Reply(Reply::Error(errno));
        match *operation {
            Operation::Init {
                major,
                minor,
                max_readahead,
                flags,
            } => Step::Reply(self.init((major, minor), max_readahead, flags)),
            Operation::Destroy | Operation::Release => Step::Reply(Reply::Done),
            Operation::Forget => Step::Nothing,
            Operation::GetAttributes => self.attributes(len_bytes),
            Operation::SetAttributes {
                size,
                owner_or_mode,
            } => match size {
                _ if owner_or_mode => error(Errno::PERM),
                // A disk keeps its length, like a block device opened with O_TRUNC.
                Some(size) if size != 0 && size != len_bytes => error(Errno::INVAL),
                _ => self.attributes(len_bytes),
            },
            Operation::Open => Step::Reply(Reply::Opened),
            Operation::Statistics => Step::Reply(Reply::Statistics { len_bytes }),
            Operation::Read { at, len } => {
                match within(at, len.min(self.io_max_bytes).into(), len_bytes) {
                    0 => Step::Reply(Reply::Data(0)),
                    len => Step::Work(Work::Read {
                        at,
                        len: len as u32,
                    }),
                }
            }
            Operation::Write { at, len, durable } => {
                match within(at, len.min(self.io_max_bytes).into(), len_bytes) {
                    _ if self.read_only => error(Errno::ROFS),
                    0 if len == 0 => Step::Reply(Reply::Written(0)),
                    // As a block device does at its end.
                    0 => error(Errno::NOSPC),
                    len => Step::Work(Work::Write {
                        at,
                        len: len as u32,
                        durable,
                    }),
                }
            }
            Operation::Sync => Step::Work(Work::Flush),
            Operation::Allocate { mode, at, len } => self.allocate(mode, (at, len), len_bytes),
            Operation::Other { .. } => error(Errno::NOSYS),
        }
    }

    fn init(&self, (major, minor): (u32, u32), max_readahead: u32, flags: u64) -> Reply {
        if major != MAJOR || minor < MINOR_MIN {
            return Reply::Error(Errno::PROTO);
        }
        Reply::Init {
            flags: flags & FLAGS,
            max_readahead,
            max_background: self.max_background,
            io_max_bytes: self.io_max_bytes,
        }
    }

    fn attributes(&self, len_bytes: u64) -> Step {
        const WRITABLE: u32 = 0o222;
        Step::Reply(Reply::Attributes(Attributes {
            len_bytes,
            mode: match self.read_only {
                true => self.mode & !WRITABLE,
                false => self.mode,
            },
            uid: self.uid,
            gid: self.gid,
            time_s: self.time_s,
        }))
    }

    fn allocate(&self, mode: u32, (at, len): (u64, u64), len_bytes: u64) -> Step {
        let error = |errno| Step::Reply(Reply::Error(errno));
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
            0 => Step::Reply(Reply::Done),
            len => Step::Work(Work::Zero {
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
