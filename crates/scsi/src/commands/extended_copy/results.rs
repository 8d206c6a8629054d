//! RECEIVE COPY RESULTS (SPC-4 6.23 to 6.26): the result of a copy by its list identifier, and the limits for lists.
//! A result is available once the copy has ended, until the nexus is lost or has made eight more copies.

use super::super::{Command, reply};
use super::{
    BLOCK_TO_BLOCK, CSCDS_MAX, DESCRIPTORS_LEN_MAX, IDENTIFICATION, SEGMENT_BLOCKS_MAX,
    SEGMENTS_MAX,
};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::copy::{Copy, CopyResult};
use crate::ending::Ending;
use crate::nexus::NexusId;
use crate::sense::{Sense, SenseFormat};
use crate::unit::LogicalUnit;

/// Maximum number of results remembered per nexus.
const RESULTS_MAX: usize = 8;
/// TRANSFER COUNT UNITS: logical blocks.
const BLOCKS: u8 = 0xF1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyResults {
    what: CopyResultsAction,
    allocation_len_bytes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyResultsAction {
    /// RECEIVE COPY STATUS (LID1), (LID4).
    Status(u32),
    LongStatus(u32),
    /// RECEIVE COPY FAILURE DETAILS (LID1).
    FailedSegment(u32),
    OperatingParameters,
}

pub(crate) fn decode_status(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, CopyResultsAction::Status(cdb.u8(2).into()))
}

pub(crate) fn decode_operating_parameters(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, CopyResultsAction::OperatingParameters)
}

pub(crate) fn decode_failed_segment(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, CopyResultsAction::FailedSegment(cdb.u8(2).into()))
}

pub(crate) fn decode_status_long(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, CopyResultsAction::LongStatus(cdb.u32(2)))
}

fn decode(cdb: &Cdb, what: CopyResultsAction) -> Result<Command, Sense> {
    Ok(Command::CopyResults(CopyResults {
        what,
        allocation_len_bytes: cdb.u32(10),
    }))
}

impl CopyResults {
    pub(in super::super) fn begin(
        self,
        unit: &LogicalUnit,
        nexus: NexusId,
    ) -> Result<Action, Sense> {
        let format = unit.sense_format();
        let of_list = |list_id, encode: &dyn Fn(&CopyResult) -> Vec<u8>| {
            let state = unit.shared().look();
            let mut latest = state.copies.iter().rev();
            let result = latest.find(|r| r.nexus == nexus && r.list_id == list_id);
            result.map(encode).ok_or(Sense::invalid_cdb_field(2, None))
        };
        let data = match self.what {
            CopyResultsAction::OperatingParameters => {
                operating_parameters(unit.shape().block_size_bytes)
            }
            CopyResultsAction::Status(id) => of_list(id, &CopyResult::status)?,
            CopyResultsAction::LongStatus(id) => of_list(id, &|result| result.long_status(format))?,
            CopyResultsAction::FailedSegment(id) => {
                of_list(id, &|result| result.failed_segment(format))?
            }
        };
        Ok(reply(data, self.allocation_len_bytes))
    }
}

/// Prefixes the data with its length in bytes.
fn counted(following: Vec<u8>) -> Vec<u8> {
    let mut data = (following.len() as u32).to_be_bytes().to_vec();
    data.extend(following);
    data
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
    // Maximum concurrent copies, in total and per nexus; a nominal value, since the transport limits commands as a
    // whole.
    data[35] = 64;
    data[36] = 64;
    // log2 of the data segment granularity.
    data[37] = block_size_bytes.trailing_zeros() as u8;
    data[43] = 2;
    data[44] = BLOCK_TO_BLOCK;
    data[45] = IDENTIFICATION;
    data
}

impl Copy {
    /// Records how the copy ended, for RECEIVE COPY RESULTS; the first `segments` segments were copied.
    pub fn ended(&self, unit: &LogicalUnit, nexus: NexusId, segments: usize, ending: &Ending) {
        let Some(list_id) = self.list_id else {
            return;
        };
        let mut state = unit.shared().look();
        let own = |r: &&CopyResult| r.nexus == nexus;
        if state.copies.iter().filter(own).count() >= RESULTS_MAX {
            let oldest = state.copies.iter().position(|r| r.nexus == nexus);
            oldest.map(|at| state.copies.remove(at));
        }
        state.copies.push(CopyResult {
            nexus,
            form: self.form,
            list_id,
            segments: segments as u16,
            blocks: self.segments[..segments].iter().map(|s| s.blocks).sum(),
            ending: ending.clone(),
        });
    }
}

impl CopyResult {
    /// COPY OPERATION STATUS: by now the operation is always complete.
    fn state(&self) -> u8 {
        const DONE: u8 = 0x01;
        const FAILED: u8 = 0x02;
        match self.ending == Ending::GOOD {
            true => DONE,
            false => FAILED,
        }
    }

    fn sense(&self, format: SenseFormat) -> Vec<u8> {
        let sense = self.ending.sense.as_ref();
        sense.map(|s| s.encode(format)).unwrap_or_default()
    }

    /// RECEIVE COPY STATUS (LID1) (SPC-4 6.26).
    fn status(&self) -> Vec<u8> {
        let mut data = vec![self.state()];
        data.extend(self.segments.to_be_bytes());
        data.push(BLOCKS);
        data.extend((self.blocks as u32).to_be_bytes());
        counted(data)
    }

    /// RECEIVE COPY STATUS (LID4) (SPC-4 6.27).
    fn long_status(&self, format: SenseFormat) -> Vec<u8> {
        /// No estimate of when to poll again, because nothing will change.
        const NO_DELAY: u32 = u32::MAX;
        let sense = self.sense(format);
        let sense_len = sense.len() as u8;
        let mut data = vec![self.form as u8, self.state()];
        data.extend(self.segments.to_be_bytes()); // each a copy operation
        data.extend(NO_DELAY.to_be_bytes());
        data.extend([self.ending.status as u8, sense_len, sense_len, BLOCKS]);
        data.extend(self.blocks.to_be_bytes());
        data.extend(self.segments.to_be_bytes());
        data.extend([0; 6]);
        data.extend(sense);
        counted(data)
    }

    /// RECEIVE COPY FAILURE DETAILS (LID1) (SPC-4 6.24); empty for a copy that did not fail.
    fn failed_segment(&self, format: SenseFormat) -> Vec<u8> {
        let sense = self.sense(format);
        if sense.is_empty() {
            return counted(Vec::new());
        }
        let mut data = vec![0; 52];
        data.extend([self.ending.status as u8, 0]);
        data.extend((sense.len() as u16).to_be_bytes());
        data.extend(sense);
        counted(data)
    }
}
