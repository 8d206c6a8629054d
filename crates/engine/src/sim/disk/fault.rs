//! Errors that a test makes a simulated disk give.

use std::{ops::Range, path::PathBuf};

/// Which operations of a disk a [`Fault`] hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Syncs, and so the changes that they should have made durable.
    Sync,
    /// The sync that a durable write carries: its bytes are written, and of what was not durable yet,
    /// they included, only what chance leaves is ever on the medium.
    OwnSync,
    /// Punching, zeroing and reserving.
    Allocate,
}

/// An error that a disk gives instead of doing its work.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which operations it hits.
    pub kind: FaultKind,
    /// The file, or every file.
    pub path: Option<PathBuf>,
    /// The bytes that an operation must touch to be hit; without meaning for a sync.
    pub range: Range<u64>,
    /// What the operation gives: `libc::EIO`, `libc::ENOSPC`, …
    pub errno: i32,
    /// How many operations it hits before it is gone; `None`: all until it is cleared.
    pub times: Option<u32>,
}

impl Fault {
    /// Every operation of `kind` on any file fails with `errno`.
    pub fn new(kind: FaultKind, errno: i32) -> Self {
        Fault {
            kind,
            path: None,
            range: 0..u64::MAX,
            errno,
            times: None,
        }
    }
}
