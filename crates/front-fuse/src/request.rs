//! Parses a request of the kernel. Nothing in it is trusted: requests that are too short, too long or
//! unknown are answered, too.

use zerocopy::{FromBytes, IntoBytes};

use crate::{
    abi::{FallocateIn, InHeader, InitIn, OpenIn, ReadIn, SetattrIn, WriteIn, fattr, init, opcode},
    changes::{SetTime, SetTimes, Timestamp},
};

/// The length of what precedes the data of a write, its header and fields, in bytes. Read this much
/// into one buffer and the rest into another, and the data start at the beginning of the second.
pub const HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();

/// The bit that `O_DSYNC` and `O_SYNC` share.
const O_DSYNC: u32 = rustix::fs::OFlags::DSYNC.bits();
const O_TRUNC: u32 = rustix::fs::OFlags::TRUNC.bits();

/// A request, and the number for its reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FuseRequest {
    /// The kernel's number for the request.
    pub unique: u64,
    /// The process that caused it; 0 if it is not known here.
    pub process: u32,
    /// What it asks for.
    pub operation: FuseOperation,
}

/// An operation that the kernel asks for. Ranges are in bytes and unchecked: any length, anywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FuseOperation {
    /// The first request: the kernel's capabilities.
    Init {
        /// Major version of the protocol.
        major: u32,
        /// Minor version.
        minor: u32,
        /// How far the kernel may read ahead, in bytes.
        max_readahead: u32,
        /// `FUSE_…`, with those of `flags2` from bit 32 on.
        flags: u64,
    },
    /// The last request, if the mount asks for it.
    Destroy,
    /// Reads owner, length and times of the file.
    GetAttributes,
    /// Changes attributes.
    SetAttributes(SetAttributes),
    /// Opens the file.
    Open {
        /// Takes away its content, too. The kernel asks for that by [`FuseOperation::SetAttributes`] instead, unless INIT
        /// has agreed on this.
        truncates: bool,
    },
    /// Closes the file, when its last user does.
    Release,
    /// Reads.
    Read {
        /// Position of the first byte.
        at: u64,
        /// Number of bytes.
        len: u32,
    },
    /// Writes the data that follow.
    Write {
        /// Position of the first byte.
        at: u64,
        /// Number of bytes.
        len: u32,
        /// The data must be on persistent media before the reply.
        durable: bool,
    },
    /// Makes all completed writes durable.
    Sync,
    /// `fallocate`.
    Allocate {
        /// `FALLOC_FL_…`
        mode: u32,
        /// Position of the first byte.
        at: u64,
        /// Number of bytes.
        len: u64,
    },
    /// `statfs`.
    Statistics,
    /// An inode is no longer needed. Gets no reply.
    Forget,
    /// An operation that a single file does not need.
    Other {
        /// Its number in `enum fuse_opcode`.
        opcode: u32,
    },
}

/// Attributes to change; all of them or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttributes {
    /// The length: by `truncate` or `O_TRUNC`.
    pub size: Option<u64>,
    /// The permissions.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The times.
    pub times: SetTimes,
    /// Something that this version of the protocol does not know.
    pub others: bool,
}

/// Bytes that do not form a valid request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why}")]
pub struct Malformed {
    /// The number to reply to, if it could be read.
    pub unique: Option<u64>,
    /// For people.
    pub why: &'static str,
}

impl FuseRequest {
    /// Parses the request in `head` and, following it, `rest`. The data of a write must be exactly
    /// `rest`, which holds if `head` has [`HEAD_BYTES`].
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(head: &[u8], rest: &[u8]) -> Result<FuseRequest, Malformed> {
        let mut bytes = Bytes { head, rest };
        let malformed = |why| Malformed { unique: None, why };
        let header: InHeader = bytes.take().ok_or(malformed("its header is incomplete"))?;
        let unique = header.unique;
        let malformed = |why| Malformed {
            unique: Some(unique),
            why,
        };
        if u64::from(header.len) != (head.len() + rest.len()) as u64 {
            return Err(malformed("its length differs from the one in its header"));
        }
        let operation = operation(header.opcode, bytes).map_err(malformed)?;
        Ok(FuseRequest {
            unique,
            process: header.pid,
            operation,
        })
    }
}

/// Parses what follows the header.
fn operation(opcode: u32, mut bytes: Bytes<'_>) -> Result<FuseOperation, &'static str> {
    const SHORT: &str = "it is too short for its opcode";
    Ok(match opcode {
        opcode::INIT => {
            let fixed: InitIn = bytes.take().ok_or(SHORT)?;
            let mut flags = u64::from(fixed.flags);
            if flags & init::INIT_EXT != 0 {
                let flags2: u32 = bytes.take().ok_or(SHORT)?;
                flags |= u64::from(flags2) << 32;
            }
            FuseOperation::Init {
                major: fixed.major,
                minor: fixed.minor,
                max_readahead: fixed.max_readahead,
                flags,
            }
        }
        opcode::DESTROY => FuseOperation::Destroy,
        opcode::GETATTR => FuseOperation::GetAttributes,
        opcode::SETATTR => {
            let fields: SetattrIn = bytes.take().ok_or(SHORT)?;
            FuseOperation::SetAttributes(set_attributes(&fields)?)
        }
        opcode::OPEN => {
            let fields: OpenIn = bytes.take().ok_or(SHORT)?;
            FuseOperation::Open {
                truncates: fields.flags & O_TRUNC != 0,
            }
        }
        opcode::RELEASE => FuseOperation::Release,
        opcode::READ => {
            let fields: ReadIn = bytes.take().ok_or(SHORT)?;
            FuseOperation::Read {
                at: fields.offset,
                len: fields.size,
            }
        }
        opcode::WRITE => {
            let fields: WriteIn = bytes.take().ok_or(SHORT)?;
            if !bytes.head.is_empty() || bytes.rest.len() as u64 != u64::from(fields.size) {
                return Err("its data is not as long as it announces");
            }
            FuseOperation::Write {
                at: fields.offset,
                len: fields.size,
                durable: fields.flags & O_DSYNC != 0,
            }
        }
        opcode::FSYNC => FuseOperation::Sync,
        opcode::FALLOCATE => {
            let fields: FallocateIn = bytes.take().ok_or(SHORT)?;
            FuseOperation::Allocate {
                mode: fields.mode,
                at: fields.offset,
                len: fields.length,
            }
        }
        opcode::STATFS => FuseOperation::Statistics,
        opcode::FORGET | opcode::BATCH_FORGET => FuseOperation::Forget,
        opcode => FuseOperation::Other { opcode },
    })
}

fn set_attributes(fields: &SetattrIn) -> Result<SetAttributes, &'static str> {
    const KNOWN: u32 = fattr::MODE
        | fattr::UID
        | fattr::GID
        | fattr::SIZE
        | fattr::ATIME
        | fattr::MTIME
        | fattr::FH
        | fattr::ATIME_NOW
        | fattr::MTIME_NOW
        | fattr::LOCKOWNER
        | fattr::CTIME
        | fattr::KILL_SUIDGID;
    let has = |flag| fields.valid & flag != 0;
    let time = |flag, now, seconds: u64, nanoseconds| match (has(flag), has(now)) {
        (_, true) => Ok(Some(SetTime::Now)),
        (true, _) if nanoseconds >= 1_000_000_000 => {
            Err("a time has a second or more beyond its seconds")
        }
        (true, _) => Ok(Some(SetTime::To(Timestamp::new(
            seconds as i64,
            nanoseconds,
        )))),
        (false, false) => Ok(None),
    };
    Ok(SetAttributes {
        size: has(fattr::SIZE).then_some(fields.size),
        mode: has(fattr::MODE).then_some(fields.mode),
        uid: has(fattr::UID).then_some(fields.uid),
        gid: has(fattr::GID).then_some(fields.gid),
        times: SetTimes {
            accessed: time(
                fattr::ATIME,
                fattr::ATIME_NOW,
                fields.atime,
                fields.atimensec,
            )?,
            modified: time(
                fattr::MTIME,
                fattr::MTIME_NOW,
                fields.mtime,
                fields.mtimensec,
            )?,
        },
        others: fields.valid & !KNOWN != 0,
    })
}

/// Bytes in two pieces, from which structures are taken one after the other.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    head: &'a [u8],
    rest: &'a [u8],
}

impl Bytes<'_> {
    fn take<T: FromBytes + IntoBytes>(&mut self) -> Option<T> {
        let mut taken = T::new_zeroed();
        let into = taken.as_mut_bytes();
        let from_head = into.len().min(self.head.len());
        let (first, second) = into.split_at_mut(from_head);
        let (head, head_left) = self.head.split_at(from_head);
        let (rest, rest_left) = self.rest.split_at_checked(second.len())?;
        first.copy_from_slice(head);
        second.copy_from_slice(rest);
        (self.head, self.rest) = (head_left, rest_left);
        Some(taken)
    }
}
