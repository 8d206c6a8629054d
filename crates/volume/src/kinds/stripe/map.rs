//! Where each byte of the volume lies on its children, for either layout. Pure arithmetic.

use super::{
    place::{PerChild, Place, Run},
    round_robin::RoundRobin,
    sequence::Sequence,
};

/// The arithmetic of one volume. Child offsets count from the start of the child's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Map {
    /// Unit by unit to the children in turn: a stripe.
    RoundRobin(RoundRobin),
    /// One child after the other: a concat.
    Sequence(Sequence),
}

impl Map {
    /// Where byte `at` of the volume lies.
    pub(super) fn place(&self, at: u64) -> Place {
        match self {
            Map::RoundRobin(map) => map.place(at),
            Map::Sequence(sequence) => sequence.place(at),
        }
    }

    /// How many bytes from byte `at` on are contiguous on one child.
    pub(super) fn reach(&self, at: u64) -> u64 {
        match self {
            Map::RoundRobin(map) => map.reach(at),
            Map::Sequence(sequence) => sequence.reach(at),
        }
    }

    /// Where the non-empty range lies, if it is contiguous on one child.
    pub(super) fn single(&self, at: u64, len: u64) -> Option<Place> {
        (len <= self.reach(at)).then(|| self.place(at))
    }

    /// The runs of a non-empty range, one for each child that it touches, in the order in which the volume first
    /// touches them. The range's [`Map::pieces`] rotate through them.
    pub(super) fn runs(&self, at: u64, len: u64) -> PerChild<Run> {
        match self {
            Map::RoundRobin(map) => map.runs(at, len),
            Map::Sequence(sequence) => sequence.runs(at, len),
        }
    }

    /// The lengths of the pieces, each contiguous on one child, that make up a range, in volume order.
    pub(super) fn pieces(&self, at: u64, len: usize) -> impl Iterator<Item = usize> + '_ {
        let (mut at, end) = (at, at + len as u64);
        std::iter::from_fn(move || {
            let left = end - at;
            (left > 0).then(|| {
                let piece = self.reach(at).min(left);
                at += piece;
                piece as usize
            })
        })
    }
}
