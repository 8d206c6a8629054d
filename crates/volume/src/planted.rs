//! Bugs that a test plants, to see that the tests find them. Only what is built for tests has them.

/// A bug. Each is one decision of the data path, taken wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// `iscsi`: a flush has nothing to do when the home lane has written nothing.
    FlushOfOnePath,
    /// `iscsi`: a write is sent again before its lost nexus is dead at the target.
    ResendAtOnce,
    /// `iscsi`: other lanes go on by themselves while a lost nexus may still write.
    DoorsOpenWhileHaunted,
    /// `iscsi`: nobody waits until other lanes have said that they send nothing.
    DoorsNotWaitedFor,
    /// `iscsi`: other lanes do not look whether the claim still stands.
    ClaimUncheckedByLanes,
    /// `cache`: it answers from memory though another owner may have written.
    CacheKeptInDoubt,
}

/// Whether the current thread has planted `bug`.
#[cfg(any(test, feature = "planted"))]
pub(crate) fn is_planted(bug: Bug) -> bool {
    testing::PLANTED.get() == Some(bug)
}

/// No: what is built for users has none.
#[cfg(not(any(test, feature = "planted")))]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}

#[cfg(any(test, feature = "planted"))]
mod testing {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        pub(super) static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants `bug` in the current thread, on which a simulated world runs, for as long as this lives.
    #[must_use]
    #[derive(Debug)]
    pub struct Planted(());

    impl Planted {
        /// Plants `bug`.
        ///
        /// # Panics
        /// If there is one already.
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

#[cfg(any(test, feature = "planted"))]
pub use testing::Planted;
