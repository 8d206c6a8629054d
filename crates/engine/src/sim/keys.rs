//! Identifiers within a world: machines, lanes, operations.

/// A machine, numbered in order of creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct HostId(pub(super) usize);

/// A lane of one boot of a machine; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LaneKey(pub(super) u32);

/// An operation in flight; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct FlightKey(pub(super) u64);
