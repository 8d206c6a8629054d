//! A member of a set, such as a stripe's child: what its set asks of it through whatever lies in between.

use mirror::{fence::FenceAnswer, fence::FenceCommand, key::FenceKey};

use crate::Claim;

/// What a set asks of a member.
#[derive(Clone, Debug)]
pub enum Order {
    /// To read [`BLOCK_BYTES`] at this byte, even if another owner has reserved the member: during a registration that
    /// ends with the read and takes nothing away from the owner.
    Read(u64),
    /// To read [`BLOCK_BYTES`] at this byte as anybody may. It is no request of its user's, so it is counted and delayed
    /// nowhere on its way.
    Peek(u64),
    /// To keep everyone else out until [`Volume::close`], and to write this claim's label, or to fail with the name of
    /// the current owner: see [`crate::claim`].
    Take(Claim),
    /// To write this claim's label again, if the member still has it.
    Label(Claim),
    /// To carry out a step of the fence under this key. Nothing is sent to the member meanwhile, and what it was asked
    /// before has ended.
    Fence(FenceKey, FenceCommand),
    /// To answer as a command on data would, which a fence refuses, without touching the medium.
    Prove,
    /// To tell what it looks like now: it may have been opened later than its user.
    Look,
    /// To tell whether it has what the fence of a mirror needs, as far as it says so itself. Changes nothing.
    Suits,
    /// To be used as it is now, whatever it may have become: its user looks at all that it keeps on it. From now on, a restart
    /// of its target, which may have set it back, ends its use until the next one.
    Renew,
    /// To keep this block of [`BLOCK_BYTES`] in a slot, 0 or 1, on each disk that it is made of, durably. One that is a disk
    /// itself keeps nothing: what its user writes to it is there.
    Note(usize, Vec<u8>),
    /// To read what was noted in this slot.
    Notes(usize),
}

/// What a member looks like: the part of its [`Shape`](crate::Shape) that matters to its set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Looks {
    /// The unit of offsets and lengths, in bytes.
    pub block_size_bytes: u32,
    /// The unit that is written without read-modify-write, in bytes.
    pub physical_block_bytes: u32,
    /// The I/O length that uses all of it at once, in bytes.
    pub optimal_io_bytes: u32,
    /// Its length, in bytes.
    pub len_bytes: u64,
    /// Whether a power cut may take back what was written.
    pub volatile_cache: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The longest COMPARE AND WRITE that the disk itself decides, in bytes; 0: none.
    pub compare_and_write_max_bytes: u32,
}

/// How many bytes [`Order::Read`] and [`Order::Peek`] read: a superblock.
pub const BLOCK_BYTES: usize = set::envelope::BLOCK_BYTES;

/// What a member has done.
#[derive(Clone, Debug)]
pub enum Report {
    /// It has read this.
    Block(Vec<u8>),
    /// It is the claim's; how far it had come with its set. `None`: it has no label.
    Taken(Option<set::Generation>),
    /// Its label is written.
    Labelled,
    /// What it answers to a step of a fence.
    Fence(FenceAnswer),
    /// No fence keeps its owner from using it.
    Proved,
    /// What it looks like.
    Looks(Looks),
    /// It has what it needs, as far as it says.
    Suits,
    /// It can be used.
    Renewed,
    /// It is noted on each disk.
    Noted,
    /// What is noted on each disk that it is made of.
    Notes(Vec<Vec<u8>>),
}
