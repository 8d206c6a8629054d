//! Places on the children of a volume.

use smallvec::SmallVec;

/// One entry per child; more than four children cost an allocation.
pub(super) type PerChild<T> = SmallVec<[T; 4]>;

/// A position on a child, counted from the start of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) child: usize,
    pub(super) at: u64,
}

/// The whole of a range that lies on one child, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) child: usize,
    pub(super) at: u64,
    pub(super) len: u64,
}
