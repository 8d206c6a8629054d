//! Names of what a world counts: machines, lanes, operations.

/// A machine, by the order in which they were made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct HostId(pub(super) usize);

/// A lane of one boot of a machine; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LaneKey(pub(super) u32);

/// An operation in flight; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct FlightKey(pub(super) u64);
