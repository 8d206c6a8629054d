//! A copy between logical units (SPC-4 6.4): what is asked of the transport, and what the unit remembers of it.

use crate::ending::Ending;
use crate::nexus::NexusId;
use crate::sense::{Asc, Sense, SenseKey};

/// A copy that is ready to be performed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    pub(crate) form: CopyForm,
    /// `None` if the initiator wants no results to be kept.
    pub(crate) list_id: Option<u32>,
    /// In the order in which to copy them.
    pub segments: Vec<Segment>,
}

/// One run of blocks to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// NAA name of the unit to read.
    pub source: [u8; 16],
    /// First block to read.
    pub source_lba: u64,
    /// NAA name of the unit to write.
    pub destination: [u8; 16],
    /// First block to write.
    pub destination_lba: u64,
    /// Number of blocks; both units must have the same block size.
    pub blocks: u64,
}

/// Why a copy was stopped (SPC-4 6.4.4, COPY ABORTED).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyError {
    /// The target serves no unit with that name, or the initiator may not use it.
    Unreachable,
    /// The segment does not fit into both units, or an I/O failed.
    Failed,
}

impl CopyError {
    /// The ending of the command.
    pub fn ending(self) -> Ending {
        let asc = match self {
            CopyError::Unreachable => Asc::UNREACHABLE_COPY_TARGET,
            CopyError::Failed => Asc::NO_ADDITIONAL_SENSE,
        };
        Ending::check(Sense::new(SenseKey::CopyAborted, asc))
    }
}

/// Which of the two commands it is; the discriminant is its service action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CopyForm {
    /// The list identifier has one byte.
    Lid1 = 0x00,
    /// The list identifier has four bytes.
    Lid4 = 0x01,
}

/// The remembered result of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyResult {
    pub(crate) nexus: NexusId,
    pub(crate) form: CopyForm,
    pub(crate) list_id: u32,
    /// The numbers of segments and blocks copied.
    pub(crate) segments: u16,
    pub(crate) blocks: u64,
    pub(crate) ending: Ending,
}

impl CopyResult {
    pub(crate) fn is_of(&self, nexus: NexusId) -> bool {
        self.nexus == nexus
    }
}
