//! What a mirror tells of itself, readable from any thread.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
};

use ::mirror::Stand;

use super::comparison::{Compared, ComparisonRequest};
use crate::Result;

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
    /// Why the register does not change, for which a copy that leaves or returns waits.
    pub register_trouble: Option<String>,
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
    /// Why it is not in sync, or does not answer although it is.
    pub trouble: Option<String>,
}

impl CopyStatus {
    /// How far the mirror is with it, in a word or two.
    pub fn state(&self) -> &'static str {
        match self.stand {
            Stand::Out => "out",
            Stand::Fencing => "being fenced",
            Stand::Filling => "being filled",
            Stand::InSync if self.trouble.is_none() => "in sync",
            Stand::InSync | Stand::Leaving => "in trouble",
        }
    }
}

impl MirrorStatus {
    /// Whether every copy holds everything that was acknowledged, and nothing else.
    pub fn is_in_sync(&self) -> bool {
        let is_in_sync = |copy: &CopyStatus| copy.stand == Stand::InSync && copy.trouble.is_none();
        let all_are = !self.copies.is_empty() && self.copies.iter().all(is_in_sync);
        self.stopped.is_none() && self.in_doubt_bytes == 0 && all_are
    }

    /// Whether the copy called `name` alone holds everything that was acknowledged.
    pub(super) fn is_only_in_sync(&self, name: &str) -> bool {
        let mut in_sync = self
            .copies
            .iter()
            .filter(|copy| copy.stand == Stand::InSync);
        in_sync.next().is_some_and(|copy| copy.name == name) && in_sync.next().is_none()
    }
}

/// The status of an open mirror. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MirrorHandle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    status: Mutex<MirrorStatus>,
    asked: Mutex<VecDeque<ComparisonRequest>>,
}

impl MirrorHandle {
    /// What is known now.
    pub fn status(&self) -> MirrorStatus {
        locked(&self.0.status).clone()
    }

    /// Has the mirror compare its copies from `at_bytes` on, and returns where the answer arrives: for a part of it, which
    /// takes a second or two. A mirror that ends meanwhile may not answer.
    pub fn compare(&self, at_bytes: u64) -> mpsc::Receiver<Result<Compared>> {
        let (answer, compared) = mpsc::channel();
        locked(&self.0.asked).push_back(ComparisonRequest { at_bytes, answer });
        compared
    }

    /// Sets what is known.
    pub(super) fn set(&self, status: MirrorStatus) {
        *locked(&self.0.status) = status;
    }

    /// Who has asked for a comparison.
    pub(super) fn take_asked(&self) -> Option<ComparisonRequest> {
        locked(&self.0.asked).pop_front()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
