//! Bugs that a test plants in order to check that the tests catch them. They exist only in test builds.

/// A bug: one decision of the data path, taken wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// `iscsi`: a flush does nothing when the home lane has written nothing.
    FlushOfOnePath,
    /// `iscsi`: a write is resent before its lost nexus is dead at the target.
    ResendAtOnce,
    /// `iscsi`: a login of the same initiator port ends also the work of the session before.
    LoginEndsWrites,
    /// `iscsi`: a write that nobody could end counts as ended.
    GivenUpForgotten,
    /// `iscsi`: that writes were left which nobody could end is forgotten with their nexus.
    UnfencedForgotten,
    /// `iscsi`: a reset does not wait for what is on its way to the target.
    ResetAtOnce,
    /// `iscsi`: a unit attention for our own reset counts as a restart.
    OwnResetCounts,
    /// `iscsi`: a restart that is reported while nexuses are asked about another one is taken for that one.
    SecondRestartForgotten,
    /// `iscsi`: a flush that was refused loses what it was to cover.
    RefusedFlushLoses,
    /// `iscsi`: each session's report of a restart counts as another one.
    RestartCountedByEach,
    /// `iscsi`: an answer settles also what has happened since the question was asked.
    SettledByOldAnswer,
    /// `iscsi`: what is reset has restarted.
    ResetLoses,
    /// `iscsi`: a disk whose blocks have another size is read and written as before.
    OtherBlocksTaken,
    /// `iscsi`: where a target has once moved to is tried first for ever, although nobody answers there.
    RedirectionKept,
    /// `iscsi`: the writes that a removed path has left hold nothing back.
    RemovedPathForgotten,
    /// `iscsi`: other lanes keep sending by themselves while a lost nexus may still write.
    LanesGrantedDespiteGhost,
    /// `iscsi`: nobody waits until other lanes have confirmed that they have stopped sending.
    RevocationNotAwaited,
    /// `iscsi`: other lanes do not check whether the claim still stands.
    ClaimUncheckedByLanes,
    /// `iscsi`: a lone path that is lost while nothing is asked stays lost until something is.
    IdlePathForgotten,
    /// `cache`: it answers from memory although another owner may have written.
    CacheKeptInDoubt,
    /// `mirror`, rule 1: a swap whose answer was an error is answered by what the register shows.
    RegisterUnsettled,
    /// `mirror`, rule 1: a swap that has no answer counts as made.
    UnansweredIsMade,
    /// `iscsi`, rule 3 of `mirror`: a fence keeps others out, and ends nothing that is under way.
    FenceEndsNothing,
    /// `iscsi`, rule 4 of `mirror`: a fence that the target has lost is made again under its key.
    FencedAgain,
    /// `mirror`, rule 13: a copy that is lost while nothing is asked of the mirror stays in sync.
    LostWhileIdle,
    /// `mirror`, rule 6: copies may have volatile caches, and writes leave data there.
    MirrorOverCaches,
}

/// Whether `bug` is planted in the current thread.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn is_planted(bug: Bug) -> bool {
    testing::PLANTED.get() == Some(bug)
}

/// Never: builds for users have no planted bugs.
#[cfg(not(any(test, feature = "testing")))]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}

#[cfg(any(test, feature = "testing"))]
mod testing {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        pub(super) static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants `bug` in the current thread, which runs a simulated world, while this lives.
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

#[cfg(any(test, feature = "testing"))]
pub use testing::Planted;
