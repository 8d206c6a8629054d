//! A member of a set, such as a stripe's child: what its set asks of it through whatever lies in between.

use mirror::{fence::Answer, fence::Step, key::Key};

use crate::{Claim, Shape};

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
    /// To carry out a step of the fence under this key. Nothing is sent to the member meanwhile, and what it was asked
    /// before has ended.
    Fence(Key, Step),
    /// To answer as a command on data would, which a fence refuses, without touching the medium.
    Prove,
    /// To tell its shape as it is now: it may have been opened later than its user.
    Look,
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
    /// What it answers to a step of a fence.
    Fence(Answer),
    /// No fence keeps its owner from using it.
    Proved,
    /// Its shape.
    Shape(Shape),
}
