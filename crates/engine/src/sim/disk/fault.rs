//! Errors that a test injects into a simulated disk.

use std::{ops::Range, path::PathBuf};

/// Which operations of a disk a [`InjectedFault`] hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Syncs, and with them the durability of the changes they cover.
    Sync,
    /// The sync of a durable write: its bytes are written, but chance decides how much of them and of
    /// earlier data that was not durable ever reaches the medium.
    OwnSync,
    /// Punching, zeroing and reserving.
    Allocate,
    /// Setting or removing a mark ([`crate::store::set_mark`]).
    Mark,
    /// Writing the new content when a file is replaced ([`crate::store::replace`]), under the name `*.new`: the old file
    /// stays.
    Create,
    /// The sync of a path: of a directory, after a file in it was replaced, say. What it covers may be durable or not.
    Settle,
}

/// An error returned in place of an operation's work.
#[derive(Clone, Debug)]
pub struct InjectedFault {
    /// Which operations it hits.
    pub kind: FaultKind,
    /// The file, or every file.
    pub path: Option<PathBuf>,
    /// The operation must touch these bytes to be hit; ignored for a sync.
    pub range: Range<u64>,
    /// The error of the operation: `libc::EIO`, `libc::ENOSPC`, …
    pub errno: i32,
    /// How many operations it hits before it ends; `None`: all until it is cleared.
    pub times: Option<u32>,
}

impl InjectedFault {
    /// Every operation of `kind` on any file fails with `errno`.
    pub fn new(kind: FaultKind, errno: i32) -> Self {
        InjectedFault {
            kind,
            path: None,
            range: 0..u64::MAX,
            errno,
            times: None,
        }
    }
}
