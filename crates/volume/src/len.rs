//! The length of a volume, which may change while it is open, but only upwards. All copies
//! of a leaf's shape share it, so that everything above the leaf (a layer, a volume's home, a remote of it) always
//! has the leaf's current length without being notified. Whoever sees a length also sees what was done before it was given.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// A length in bytes, shared by its clones. Two are equal if their current lengths are.
#[derive(Clone)]
pub struct Len(Arc<AtomicU64>);

impl Len {
    /// A new length, shared with nobody yet.
    pub fn new(bytes: u64) -> Self {
        Len(Arc::new(AtomicU64::new(bytes)))
    }

    /// The current length. After notification of a new length by a message or under a lock, it is visible here.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Increases the length for all who share it; never decreases it.
    pub(crate) fn grow(&self, bytes: u64) {
        self.0.fetch_max(bytes, Ordering::Release);
    }

    /// Whether both share one length, so that growing one grows the other.
    pub fn is_shared_with(&self, other: &Len) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl PartialEq for Len {
    fn eq(&self, other: &Len) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Len {}

impl fmt::Debug for Len {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.bytes(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_grow_together_and_never_shrink() {
        let (len, other) = (Len::new(512), Len::new(512));
        let clone = len.clone();
        clone.grow(1024);
        assert_eq!((len.bytes(), other.bytes()), (1024, 512));
        clone.grow(512);
        assert_eq!((len.bytes(), &clone), (1024, &len));
        assert!(clone.is_shared_with(&len) && !clone.is_shared_with(&other));
        assert_ne!(clone, other);
    }
}
