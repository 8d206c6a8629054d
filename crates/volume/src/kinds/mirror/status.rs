//! What a mirror tells of itself, readable from any thread.

use std::sync::{Arc, Mutex, PoisonError};

use ::mirror::Stand;

/// What is known of a mirror now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorStatus {
    /// The epoch of its owner.
    pub epoch: u64,
    /// The version of its record.
    pub version: u64,
    /// Its copies, in the order in which it was created.
    pub copies: Vec<CopyStatus>,
    /// Bytes in regions that were written recently, and are made equal after a power cut.
    pub marked_bytes: u64,
    /// Bytes that may differ between copies in sync, and are being made equal.
    pub in_doubt_bytes: u64,
    /// Bytes that the copy which returns has still to get.
    pub left_to_fill_bytes: u64,
    /// Why this owner is none any more.
    pub stopped: Option<String>,
}

/// What is known of one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyStatus {
    /// What messages call it.
    pub name: String,
    /// How far the mirror is with it.
    pub stand: Stand,
    /// Why it is not in sync, or was given up last.
    pub trouble: Option<String>,
}

impl CopyStatus {
    /// How far the mirror is with it, in a word or two.
    pub fn state(&self) -> &'static str {
        match self.stand {
            Stand::Out => "out",
            Stand::Fencing => "being fenced",
            Stand::Filling => "being filled",
            Stand::InSync => "in sync",
        }
    }
}

impl MirrorStatus {
    /// Whether every copy holds everything that was acknowledged.
    pub fn is_in_sync(&self) -> bool {
        let all_are = self.copies.iter().all(|copy| copy.stand == Stand::InSync);
        self.stopped.is_none() && !self.copies.is_empty() && all_are
    }
}

/// The status of an open mirror. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MirrorHandle(Arc<Mutex<MirrorStatus>>);

impl MirrorHandle {
    /// What is known now.
    pub fn status(&self) -> MirrorStatus {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sets what is known.
    pub(super) fn set(&self, status: MirrorStatus) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}
