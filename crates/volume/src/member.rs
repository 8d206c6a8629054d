//! A member of a set, such as a stripe's child: what its set asks of it through whatever lies in between.

use crate::Claim;

/// What a set asks of a member.
#[derive(Clone, Debug)]
pub enum Order {
    /// To read [`BLOCK_BYTES`] at this byte, even if another owner has reserved the member: during a registration that
    /// ends with the read and takes nothing away from the owner.
    Read(u64),
    /// To keep everyone else out until [`Volume::close`], and to write this claim's label, or to fail with the name of
    /// the current owner: see [`crate::claim`].
    Take(Claim),
    /// To write this claim's label again, if the member still has it.
    Label(Claim),
}

/// How many bytes [`Order::Read`] reads: a superblock.
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
}
