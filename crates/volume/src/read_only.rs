//! Whether a volume refuses writes. As the [`Len`](crate::Len), this may change while it is open, and all copies of a
//! leaf's shape share it: a device may become read-only, and a remote disk write-protected.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Whether writes are refused, shared by its clones. Two are equal if they agree now.
#[derive(Clone, Default)]
pub struct ReadOnly(Arc<AtomicBool>);

impl ReadOnly {
    /// A new one, shared with nobody yet.
    pub fn new(is_on: bool) -> Self {
        ReadOnly(Arc::new(AtomicBool::new(is_on)))
    }

    /// Whether writes are refused now.
    pub fn is_on(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Refuses writes from now on, or no longer, for all who share it.
    pub(crate) fn set(&self, is_on: bool) {
        self.0.store(is_on, Relaxed);
    }
}

impl PartialEq for ReadOnly {
    fn eq(&self, other: &ReadOnly) -> bool {
        self.is_on() == other.is_on()
    }
}

impl Eq for ReadOnly {}

impl fmt::Debug for ReadOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.is_on(), f)
    }
}
