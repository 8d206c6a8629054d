//! What an exploration may do, and what is wrong outside of the machine.

/// What may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Budget {
    pub(crate) writes: u8,
    pub(crate) reads: u8,
    /// The highest epoch.
    pub(crate) epochs: u8,
    pub(crate) crashes: u8,
    pub(crate) returns: u8,
    pub(crate) clears: u8,
    /// Requests that expire.
    pub(crate) abandons: u8,
    /// Crashes that also lose the reservation of the node's copy.
    pub(crate) lost: u8,
    /// Copies that are replaced by blank ones while they are out.
    pub(crate) replaced: u8,
    /// Whether copies keep a floor.
    pub(crate) has_floor: bool,
    /// Whether writes of metadata may be late, and answers too.
    pub(crate) is_slow: bool,
    /// Whether sessions end.
    pub(crate) sessions_end: bool,
    /// Whether there is another block before the one that clients use, marked from the beginning.
    pub(crate) has_other_block: bool,
    /// Whether a node asks for a read while its write is under way, or the other way round.
    pub(crate) asks_both: bool,
}

impl Budget {
    /// The block that clients use: the last.
    pub(crate) fn block(&self) -> u64 {
        self.has_other_block.into()
    }
}

/// A bug outside of the machine: of a copy, or of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Flaw {
    /// The local copy is reached past the fence.
    LocalUnfenced,
    /// The proof passes a fence, as TEST UNIT READY does.
    ProofPassesFences,
    /// Where the reservation is gone, the owner reserves again within its fence.
    FencedAgain,
    /// A key that was preempted may come back: what is refused is not forgotten.
    KeysComeBack,
}
