//! The medium operations that commands ask for, and how their failures map to sense data.

/// A run of logical blocks within the medium. It never extends past the end of the medium, and its byte offset and
/// length never overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First logical block address.
    pub lba: u64,
    /// Number of logical blocks, at least 1.
    pub blocks: u64,
    /// Size of a logical block in bytes: 512 or 4096.
    pub block_size_bytes: u32,
}

impl Extent {
    /// Byte offset from the start of the medium.
    pub fn offset_bytes(&self) -> u64 {
        self.lba * u64::from(self.block_size_bytes)
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size_bytes)
    }
}

/// An operation on the medium. Extents have been checked against capacity, limits, write protection and discard
/// support. They are never empty: commands for 0 blocks end at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MediumOp {
    /// Read `extent` and send it as data-in. With `fua` the data must come from, or first reach,
    /// the non-volatile medium (SBC-3 5.11).
    Read {
        /// What to read.
        extent: Extent,
        /// Force unit access.
        fua: bool,
    },
    /// Take data-out as long as `extent` and write it there; with `fua` it must be on the non-volatile medium before
    /// the command ends (SBC-3 5.33).
    Write {
        /// Where to write.
        extent: Extent,
        /// Force unit access.
        fua: bool,
    },
    /// Take data-out as long as `extent`, write it to the non-volatile medium, and verify that it can be read; with
    /// `compare`, also that it reads back unchanged (SBC-3 5.36).
    WriteVerify {
        /// Where to write.
        extent: Extent,
        /// Whether to compare the bytes (BYTCHK = 1).
        compare: bool,
    },
    /// Take data-out twice as long as `extent`; if the medium matches the first half, write the second (SBC-3 5.2).
    /// Compare and write must be atomic with respect to other operations on `extent`. A mismatch is
    /// [`MediumErrorKind::Miscompare`].
    CompareAndWrite {
        /// What to compare and write.
        extent: Extent,
        /// Force unit access.
        fua: bool,
    },
    /// Take data-out as long as `extent`, and write it OR-ed with the current contents (SBC-3 5.5). The update must
    /// be atomic with respect to other operations on `extent`.
    OrWrite {
        /// What to change.
        extent: Extent,
        /// Force unit access.
        fua: bool,
    },
    /// Like `Write`, but all or nothing, both across a power cut and as seen by other commands (SBC-4, WRITE ATOMIC).
    WriteAtomic {
        /// Where to write.
        extent: Extent,
        /// Force unit access.
        fua: bool,
    },
    /// Determine whether the first block of `extent` is mapped and how many of the following ones share its state,
    /// and send the first `len_bytes` of [`lba_status`](crate::lba_status) (SBC-3 5.4).
    LbaStatus {
        /// Where to look.
        extent: Extent,
        /// How many bytes of the answer the initiator wants.
        len_bytes: u32,
    },
    /// Make everything written to `extent` durable (SBC-3 5.26). A volume that can only flush as a whole does that.
    Flush {
        /// What to flush; an initiator usually asks for the whole medium.
        extent: Extent,
    },
    /// Verify that `extent` can be read; no data is transferred (SBC-3 5.29, BYTCHK = 0).
    Verify {
        /// What to verify.
        extent: Extent,
    },
    /// Take data-out as long as `extent` and compare it with the medium (BYTCHK = 1). A mismatch is
    /// [`MediumErrorKind::Miscompare`].
    Compare {
        /// What to compare with.
        extent: Extent,
    },
    /// Compare every block of `extent` with `block` (BYTCHK = 3). The data-out has already been received.
    CompareSame {
        /// What to compare with.
        extent: Extent,
        /// One logical block.
        block: Vec<u8>,
    },
    /// Write `block` to every block of `extent` (SBC-3 5.43). The data-out has already been received.
    WriteSame {
        /// Where to write.
        extent: Extent,
        /// One logical block.
        block: Vec<u8>,
    },
    /// Make `extent` read as zeroes (WRITE SAME with a zero block). With `unmap`, deallocate the space if possible;
    /// otherwise the space stays allocated.
    Zero {
        /// Where to write.
        extent: Extent,
        /// Whether the space may be deallocated.
        unmap: bool,
    },
    /// Deallocate these extents, as far as the volume can. If discarded blocks read as zeroes
    /// (`zeroes_after_discard`), every block must do so afterwards (SBC-3 5.28).
    Unmap {
        /// In the initiator's order; they may overlap.
        extents: Vec<Extent>,
    },
}

impl MediumOp {
    /// Bytes this operation sends to the initiator.
    pub fn data_in_len_bytes(&self) -> u64 {
        match self {
            MediumOp::Read { extent, .. } => extent.len_bytes(),
            MediumOp::LbaStatus { len_bytes, .. } => (*len_bytes).into(),
            _ => 0,
        }
    }

    /// Bytes this operation still needs from the initiator.
    pub fn data_out_len_bytes(&self) -> u64 {
        match self {
            MediumOp::Write { extent, .. }
            | MediumOp::WriteVerify { extent, .. }
            | MediumOp::OrWrite { extent, .. }
            | MediumOp::WriteAtomic { extent, .. }
            | MediumOp::Compare { extent } => extent.len_bytes(),
            MediumOp::CompareAndWrite { extent, .. } => 2 * extent.len_bytes(),
            _ => 0,
        }
    }
}

impl MediumOp {
    /// The range from the first to the last block that this operation reads or changes; `None` if it touches no data
    /// (a flush).
    pub fn span(&self) -> Option<Extent> {
        match self {
            MediumOp::Read { extent, .. }
            | MediumOp::Write { extent, .. }
            | MediumOp::WriteVerify { extent, .. }
            | MediumOp::CompareAndWrite { extent, .. }
            | MediumOp::OrWrite { extent, .. }
            | MediumOp::WriteAtomic { extent, .. }
            | MediumOp::Verify { extent }
            | MediumOp::Compare { extent }
            | MediumOp::CompareSame { extent, .. }
            | MediumOp::WriteSame { extent, .. }
            | MediumOp::Zero { extent, .. } => Some(*extent),
            MediumOp::Unmap { extents } => {
                let first = extents.iter().map(|e| e.lba).min()?;
                let end = extents.iter().map(|e| e.lba + e.blocks).max()?;
                Some(Extent {
                    lba: first,
                    blocks: end - first,
                    ..extents[0]
                })
            }
            MediumOp::Flush { .. } | MediumOp::LbaStatus { .. } => None,
        }
    }

    /// Whether it changes the medium or makes changes durable.
    pub fn changes(&self) -> bool {
        !matches!(
            self,
            MediumOp::Read { .. }
                | MediumOp::LbaStatus { .. }
                | MediumOp::Verify { .. }
                | MediumOp::Compare { .. }
                | MediumOp::CompareSame { .. }
        )
    }

    /// Whether it needs exclusive access to its blocks from start to end.
    pub fn is_exclusive(&self) -> bool {
        matches!(
            self,
            MediumOp::CompareAndWrite { .. }
                | MediumOp::OrWrite { .. }
                | MediumOp::WriteAtomic { .. }
        )
    }
}

/// Why an operation that has waited may not be performed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// Another nexus has reserved the unit, or has fenced this one off.
    ReservationConflict,
    /// The unit is being sanitized; this much is done.
    Sanitizing {
        /// Progress, in 65536ths.
        done_65536ths: u16,
    },
    /// The last sanitize has failed, so the unit serves nothing until another one succeeds.
    SanitizeFailed,
    /// The medium has been ejected.
    NoMedium,
    /// The unit takes no writes.
    WriteProtected,
}
