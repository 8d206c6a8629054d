//! Bugs that tests plant in order to check that they find them: each is a reading of a rule that looks right and loses
//! data. They exist only in test builds.

/// A bug: one rule, taken wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Rule 2: a restarted owner goes on with its epoch and keys.
    OldEpoch,
    /// Rule 2: a copy that returns within an epoch keeps its key.
    OldKeyOnReturn,
    /// Rule 3: the claimer does not fence.
    Unfenced,
    /// Rule 3: one copy is used without a fence.
    OneUnfenced,
    /// Rule 4: a copy keeps no floor.
    NoFloor,
    /// Rule 5: what was not fenced is not swapped out.
    UnfencedStays,
    /// Rule 5: marked ranges are used as they are.
    MarksIgnored,
    /// Rule 5: marked ranges are not written to the others.
    OthersNotEqualised,
    /// Rule 7: a write is acknowledged without a copy once the swap that takes it out is sent.
    AcknowledgedBeforeOut,
    /// Rule 7: a write is acknowledged before the rest has noted the record.
    Unnoted,
    /// Rule 8: the range of a failed write is used as it is.
    DoubtIgnored,
    /// Rule 9: the next operation does not wait for the end of the one before at each copy.
    OverlapAfterAnswer,
    /// Rule 10: reads are answered from one copy alone.
    Unproven,
    /// Rule 10: a copy whose swap-in was sent is needed by writes, but not by reads.
    PendingInUnread,
    /// Rule 11: no bit before the data.
    Unmarked,
    /// Rule 11: cleared when the copies in sync hold the region.
    ClearedAlone,
    /// Rule 11: a clear on its way does not hold up the next write.
    ClearOvertaken,
    /// Rule 12: a write still on its way to the copy is not waited for.
    NotDrained,
    /// Rule 12: only the bitmaps of copies in sync count.
    OneBitmap,
    /// Rule 12: the bitmaps count although the copy belongs to an older version.
    AnyVersion,
    /// Rule 12: acknowledgements need the copy only once it is swapped in.
    NeededWhenIn,
    /// Rule 13: heartbeats are not compared.
    SetBackIgnored,
    /// Rule 13: a claim leaves no trace on the copies that are in sync.
    ClaimNotNoted,
}

/// Whether `bug` is planted in the current thread.
#[cfg(feature = "testing")]
pub fn is_planted(bug: Bug) -> bool {
    testing::PLANTED.get() == Some(bug)
}

/// Never: builds for users have no planted bugs.
#[cfg(not(feature = "testing"))]
pub const fn is_planted(_: Bug) -> bool {
    false
}

/// Whether each step that asks only some rules is followed by all of them, which must find nothing to do.
#[cfg(feature = "testing")]
pub(crate) fn is_every_rule_checked() -> bool {
    testing::IS_EVERY_RULE_CHECKED.get()
}

/// Never: it takes as long as what it saves.
#[cfg(not(feature = "testing"))]
pub(crate) const fn is_every_rule_checked() -> bool {
    false
}

/// From now on mirrors in the current thread check that a step that asks only some rules leaves nothing to do for the others.
#[cfg(feature = "testing")]
pub fn check_every_rule() {
    testing::IS_EVERY_RULE_CHECKED.set(true);
}

#[cfg(feature = "testing")]
mod testing {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        pub(super) static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
        pub(super) static IS_EVERY_RULE_CHECKED: Cell<bool> = const { Cell::new(false) };
    }

    /// Plants `bug` in the current thread while this lives.
    #[must_use]
    #[derive(Debug)]
    pub struct Planted(());

    impl Planted {
        /// Plants `bug`.
        ///
        /// # Panics
        /// If a bug is planted already.
        pub fn new(bug: Bug) -> Planted {
            assert_eq!(PLANTED.replace(Some(bug)), None, "one at a time");
            Planted(())
        }
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }
}

#[cfg(feature = "testing")]
pub use testing::Planted;
