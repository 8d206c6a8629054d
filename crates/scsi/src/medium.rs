//! Operations on the medium that commands ask for, and how their failures are told.

/// A run of logical blocks inside the medium: never reaches past its end, and its byte offset
/// and length never overflow.
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
    /// Distance of the first byte from the start of the medium.
    pub fn offset_bytes(&self) -> u64 {
        self.lba * u64::from(self.block_size_bytes)
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size_bytes)
    }
}

/// What to do with the medium. Extents have been checked against capacity, limits, write
/// protection and discard support, and are never empty: commands for 0 blocks end at once.
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
    /// Take data-out as long as `extent` and write it there; with `fua` it is on the non-volatile
    /// medium before the command ends (SBC-3 5.33).
    Write {
        /// Where to write.
        extent: Extent,
        /// Force unit access.
        fua: bool,
    },
    /// Take data-out as long as `extent`, write it to the non-volatile medium, and check that it
    /// can be read; with `compare` also that it reads as it was sent (SBC-3 5.36).
    WriteVerify {
        /// Where to write.
        extent: Extent,
        /// Whether to compare the bytes (BYTCHK = 1).
        compare: bool,
    },
    /// Take data-out twice as long as `extent`; if the medium holds the first half, write the
    /// second (SBC-3 5.2). Nothing else may touch `extent` in between. A difference is
    /// [`MediumErrorKind::Miscompare`].
    CompareAndWrite {
        /// What to compare and write.
        extent: Extent,
        /// Force unit access.
        fua: bool,
    },
    /// Take data-out as long as `extent` and write it OR-ed with what is there (SBC-3 5.6).
    /// Nothing else may touch `extent` in between.
    OrWrite {
        /// What to change.
        extent: Extent,
        /// Force unit access.
        fua: bool,
    },
    /// As `Write`, but all of it or nothing, also through a power cut and as others see it
    /// (SBC-4, WRITE ATOMIC).
    WriteAtomic {
        /// Where to write.
        extent: Extent,
        /// Force unit access.
        fua: bool,
    },
    /// Ask whether the first block of `extent` takes space and how many after it are alike, and
    /// send the first `len_bytes` of [`lba_status`](crate::lba_status) (SBC-3 5.4).
    LbaStatus {
        /// Where to look.
        extent: Extent,
        /// What the initiator wants of the answer.
        len_bytes: u32,
    },
    /// Make what was written to `extent` durable (SBC-3 5.26). A volume that flushes only as a
    /// whole does that.
    Flush {
        /// What to flush; an initiator usually asks for the whole medium.
        extent: Extent,
    },
    /// Check that `extent` can be read; no data is transferred (SBC-3 5.29, BYTCHK = 0).
    Verify {
        /// What to check.
        extent: Extent,
    },
    /// Take data-out as long as `extent` and compare it with the medium (BYTCHK = 1). A
    /// difference is [`MediumErrorKind::Miscompare`].
    Compare {
        /// What to compare with.
        extent: Extent,
    },
    /// Compare every block of `extent` with `block` (BYTCHK = 3). The data-out has been taken.
    CompareSame {
        /// What to compare with.
        extent: Extent,
        /// One logical block.
        block: Vec<u8>,
    },
    /// Write `block` to every block of `extent` (SBC-3 5.43). The data-out has been taken.
    WriteSame {
        /// Where to write.
        extent: Extent,
        /// One logical block.
        block: Vec<u8>,
    },
    /// Make `extent` read as zeroes (WRITE SAME of a zero block): where `unmap` is set by giving
    /// its space back if that can be done, else so that the space stays allocated.
    Zero {
        /// Where to write.
        extent: Extent,
        /// Whether space may be given back.
        unmap: bool,
    },
    /// Give back the space of these extents, as far as the volume can; where discarded blocks
    /// read as zeroes (`zeroes_after_discard`) every block must read so afterwards (SBC-3 5.28).
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

    /// Bytes this operation still takes from the initiator.
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
    /// The blocks from the first to the last that this operation reads or changes; `None` where
    /// it touches no data (a flush).
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

    /// Whether it changes the medium, or asks for changes to be made durable.
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

    /// Whether nothing else may touch its blocks from its beginning to its end.
    pub fn is_exclusive(&self) -> bool {
        matches!(
            self,
            MediumOp::CompareAndWrite { .. }
                | MediumOp::OrWrite { .. }
                | MediumOp::WriteAtomic { .. }
        )
    }
}

/// Why an operation on the medium failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediumErrorKind {
    /// Blocks could not be read: MEDIUM ERROR, UNRECOVERED READ ERROR.
    Read,
    /// Blocks could not be written: MEDIUM ERROR, WRITE ERROR.
    Write,
    /// A flush failed; what was written before may be lost. MEDIUM ERROR, WRITE ERROR, so that no
    /// initiator takes it for an unsupported command.
    Flush,
    /// The storage below failed as a whole (a dead child, a leaf that must be reopened):
    /// HARDWARE ERROR, INTERNAL TARGET FAILURE.
    Failed,
    /// The storage cannot be reached or used now and may be later: NOT READY, CAUSE NOT REPORTABLE.
    NotReady,
    /// The storage is read-only: DATA PROTECT, WRITE PROTECTED.
    WriteProtected,
    /// A thin volume has no room for the write: DATA PROTECT, SPACE ALLOCATION FAILED WRITE
    /// PROTECT.
    OutOfSpace,
    /// The data differ, first at this byte of the data-out: MISCOMPARE.
    Miscompare {
        /// Distance from the first byte of the data-out, or of the extent for BYTCHK = 3.
        offset_bytes: u64,
    },
    /// The operation was given up before it took effect: ABORTED COMMAND; the initiator retries.
    Aborted,
}

/// A failure of an operation on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediumError {
    /// What happened.
    pub kind: MediumErrorKind,
    /// The first block it happened at, if known; it becomes the sense data's INFORMATION.
    pub lba: Option<u64>,
}
