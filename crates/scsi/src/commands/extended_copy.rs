//! EXTENDED COPY (LID1) (SPC-4 6.4) and RECEIVE COPY RESULTS (LID1) (SPC-4 6.23, 6.25): block to
//! block segments between logical units that the same target serves, named by their NAA names.
//! The transport, which knows them, copies; nothing is copied unless the whole list is right.

use super::{Command, reply};
use crate::action::{Action, Ending};
use crate::attention::NexusId;
use crate::cdb::Cdb;
use crate::sense::{Asc, Sense, SenseKey};
use crate::unit::LogicalUnit;

const CSCDS_MAX: usize = 16;
const SEGMENTS_MAX: usize = 16;
const CSCD_LEN: usize = 32;
const SEGMENT_LEN: usize = 28;
const HEADER_LEN: usize = 16;
const DESCRIPTORS_LEN_MAX: usize = CSCDS_MAX * CSCD_LEN + SEGMENTS_MAX * SEGMENT_LEN;
/// Blocks in a segment: its field has 16 bits.
const SEGMENT_BLOCKS_MAX: u32 = 0xFFFF;
/// Descriptor types: identification descriptor CSCD; block device to block device.
const IDENTIFICATION: u8 = 0xE4;
const BLOCK_TO_BLOCK: u8 = 0x02;
/// Results remembered for a nexus.
const RESULTS_MAX: usize = 8;

const LIST_LENGTH_ERROR: Sense =
    Sense::new(SenseKey::IllegalRequest, Asc::PARAMETER_LIST_LENGTH_ERROR);

/// A copy that waits to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    list_id: u8,
    /// In order.
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

/// Why a copy was broken off (SPC-4 6.4.4, COPY ABORTED).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyError {
    /// The target serves no unit of that name, or the initiator may not use it.
    Unreachable,
    /// The segment does not lie in both units, or an I/O failed.
    Failed,
}

impl CopyError {
    /// How the command ends.
    pub fn ending(self) -> Ending {
        let asc = match self {
            CopyError::Unreachable => Asc::UNREACHABLE_COPY_TARGET,
            CopyError::Failed => Asc::NO_ADDITIONAL_SENSE,
        };
        Ending::check(Sense::new(SenseKey::CopyAborted, asc))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtendedCopy {
    list_len_bytes: u32,
}

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::ExtendedCopy(ExtendedCopy {
        list_len_bytes: cdb.u32(10),
    }))
}

impl ExtendedCopy {
    pub(super) fn begin(self) -> Result<Action, Sense> {
        let most = HEADER_LEN + 2 * DESCRIPTORS_LEN_MAX;
        match self.list_len_bytes as usize {
            0 => Ok(Action::End(Ending::GOOD)),
            len if (HEADER_LEN..=most).contains(&len) => {
                Ok(Command::ExtendedCopy(self).wants(self.list_len_bytes))
            }
            _ => Err(LIST_LENGTH_ERROR),
        }
    }

    pub(super) fn resume(self, list: &[u8]) -> Result<Action, Sense> {
        let header = Cdb::new(list.get(..HEADER_LEN).ok_or(LIST_LENGTH_ERROR)?);
        let (cscds_len, segments_len) = (usize::from(header.u16(2)), header.u32(8) as usize);
        let descriptors = &list[HEADER_LEN..];
        let total = cscds_len.saturating_add(segments_len);
        if total > DESCRIPTORS_LEN_MAX || total > descriptors.len() {
            return Err(LIST_LENGTH_ERROR);
        }
        // Data within the list is for segments that are not supported.
        if header.u32(12) != 0 {
            return Err(Sense::invalid_parameter(12, None));
        }
        let (cscds, rest) = descriptors.split_at(cscds_len);
        let names = parse_cscds(cscds)?;
        let segments = parse_segments(&rest[..segments_len], &names)?;
        Ok(Action::Copy(Copy {
            list_id: header.u8(0),
            segments,
        }))
    }
}

fn illegal(asc: Asc) -> Sense {
    Sense::new(SenseKey::IllegalRequest, asc)
}

/// CSCD descriptors (SPC-4 6.4.5): the NAA names in them; `None` where it is no NAA name.
fn parse_cscds(list: &[u8]) -> Result<Vec<Option<[u8; 16]>>, Sense> {
    if list.len() > CSCDS_MAX * CSCD_LEN {
        return Err(illegal(Asc::TOO_MANY_TARGET_DESCRIPTORS));
    }
    let mut names = Vec::new();
    for cscd in list.chunks(CSCD_LEN) {
        const DISK: u8 = 0x00;
        const NAA: u8 = 0x03;
        if cscd[0] != IDENTIFICATION {
            return Err(illegal(Asc::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE));
        }
        let cscd: &[u8; CSCD_LEN] = cscd.try_into().map_err(|_| LIST_LENGTH_ERROR)?;
        let is_naa = cscd[1] & 0x1F == DISK && cscd[5] & 0x0F == NAA && cscd[7] == 16;
        names.push(is_naa.then(|| *cscd[8..].first_chunk().expect("24 bytes follow")));
    }
    Ok(names)
}

/// Segment descriptors (SPC-4 6.4.6).
fn parse_segments(list: &[u8], names: &[Option<[u8; 16]>]) -> Result<Vec<Segment>, Sense> {
    if list.len() > SEGMENTS_MAX * SEGMENT_LEN {
        return Err(illegal(Asc::TOO_MANY_SEGMENT_DESCRIPTORS));
    }
    let mut segments = Vec::new();
    for descriptor in list.chunks(SEGMENT_LEN) {
        if descriptor[0] != BLOCK_TO_BLOCK {
            return Err(illegal(Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE));
        }
        if descriptor.len() < SEGMENT_LEN || descriptor[2..4] != [0, SEGMENT_LEN as u8 - 4] {
            return Err(LIST_LENGTH_ERROR);
        }
        let (head, lbas) = (Cdb::new(descriptor), Cdb::new(&descriptor[12..]));
        let name = |index: u16| {
            let name = names.get(usize::from(index)).copied().flatten();
            let unreachable = Sense::new(SenseKey::CopyAborted, Asc::UNREACHABLE_COPY_TARGET);
            name.ok_or(unreachable)
        };
        segments.push(Segment {
            source: name(head.u16(4))?,
            source_lba: lbas.u64(0),
            destination: name(head.u16(6))?,
            destination_lba: lbas.u64(8),
            blocks: head.u16(10).into(),
        });
    }
    Ok(segments)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyResults {
    what: What,
    allocation_len_bytes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Status { list_id: u8 },
    OperatingParameters,
}

pub(crate) fn decode_status(cdb: &Cdb) -> Result<Command, Sense> {
    decode_results(cdb, What::Status { list_id: cdb.u8(2) })
}

pub(crate) fn decode_operating_parameters(cdb: &Cdb) -> Result<Command, Sense> {
    decode_results(cdb, What::OperatingParameters)
}

fn decode_results(cdb: &Cdb, what: What) -> Result<Command, Sense> {
    Ok(Command::CopyResults(CopyResults {
        what,
        allocation_len_bytes: cdb.u32(10),
    }))
}

/// The result of a copy, as it is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyResult {
    nexus: NexusId,
    list_id: u8,
    segments: u16,
    failed: bool,
}

impl CopyResults {
    pub(super) fn begin(self, unit: &LogicalUnit, nexus: NexusId) -> Result<Action, Sense> {
        let data = match self.what {
            What::OperatingParameters => operating_parameters(unit.shape().block_size_bytes),
            What::Status { list_id } => {
                let state = unit.shared().look();
                let results = state.copies.iter();
                let result = results
                    .rev()
                    .find(|r| r.nexus == nexus && r.list_id == list_id)
                    .ok_or(Sense::invalid_cdb_field(2, None))?;
                status(result)
            }
        };
        Ok(reply(data, self.allocation_len_bytes))
    }
}

/// COPY STATUS (SPC-4 6.23, LID1): all of it is done by now.
fn status(result: &CopyResult) -> Vec<u8> {
    const DONE: u8 = 0x01;
    const FAILED: u8 = 0x02;
    let [high, low] = result.segments.to_be_bytes();
    let state = if result.failed { FAILED } else { DONE };
    // AVAILABLE DATA, the state, segments processed, transfer count in bytes: not counted.
    vec![0, 0, 0, 8, state, high, low, 0, 0, 0, 0, 0]
}

/// OPERATING PARAMETERS (SPC-4 6.25).
fn operating_parameters(block_size_bytes: u32) -> Vec<u8> {
    const SNLID: u8 = 0x01;
    let mut data = vec![0; 46];
    data[3] = 42;
    data[4] = SNLID;
    data[8..10].copy_from_slice(&(CSCDS_MAX as u16).to_be_bytes());
    data[10..12].copy_from_slice(&(SEGMENTS_MAX as u16).to_be_bytes());
    data[12..16].copy_from_slice(&(DESCRIPTORS_LEN_MAX as u32).to_be_bytes());
    data[16..20].copy_from_slice(&(SEGMENT_BLOCKS_MAX * block_size_bytes).to_be_bytes());
    // Copies at a time, in all and for a nexus: the transport bounds commands as such.
    data[35] = 64;
    data[36] = 64;
    // log2 of the granularity.
    data[37] = block_size_bytes.trailing_zeros() as u8;
    data[43] = 2;
    data[44] = BLOCK_TO_BLOCK;
    data[45] = IDENTIFICATION;
    data
}

impl Copy {
    /// Notes how it ended, for RECEIVE COPY RESULTS; `segments` have been copied.
    pub fn ended(&self, unit: &LogicalUnit, nexus: NexusId, segments: usize) {
        let mut state = unit.shared().look();
        let own = |r: &&CopyResult| r.nexus == nexus;
        if state.copies.iter().filter(own).count() >= RESULTS_MAX {
            let oldest = state.copies.iter().position(|r| r.nexus == nexus);
            oldest.map(|at| state.copies.remove(at));
        }
        state.copies.push(CopyResult {
            nexus,
            list_id: self.list_id,
            segments: segments as u16,
            failed: segments < self.segments.len(),
        });
    }
}

impl CopyResult {
    pub(crate) fn is_of(&self, nexus: NexusId) -> bool {
        self.nexus == nexus
    }
}

#[cfg(test)]
mod tests;
