//! VERIFY (10), (12), (16) (SBC-3 5.29 to 5.31). BYTCHK selects whether blocks are only checked for readability (0),
//! compared with data-out of the same length (1), or each compared with a single block (3).

use super::Command;
use super::read_write::{PROTECT, transfer_extent, unless_empty};
use crate::action::{Action, ParameterList};
use crate::cdb::Cdb;
use crate::ending::Ending;
use crate::medium::MediumOp;
use crate::sense::Sense;
use crate::shape::DiskShape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verify {
    lba: u64,
    blocks: u32,
    check: Check,
    len_field: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    Readable,
    Bytes,
    SameBlock,
}

pub(crate) fn decode_10(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, cdb.u32(2).into(), cdb.u16(7).into(), 7)
}

pub(crate) fn decode_12(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, cdb.u32(2).into(), cdb.u32(6), 6)
}

pub(crate) fn decode_16(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, cdb.u64(2), cdb.u32(10), 10)
}

fn decode(cdb: &Cdb, lba: u64, blocks: u32, len_field: u16) -> Result<Command, Sense> {
    cdb.must_be_zero(1, PROTECT)?;
    let check = match cdb.u8(1) >> 1 & 0b11 {
        0b00 => Check::Readable,
        0b01 => Check::Bytes,
        0b11 => Check::SameBlock,
        _ => return Err(Sense::invalid_cdb_field(1, Some(2))),
    };
    Ok(Command::Verify(Verify {
        lba,
        blocks,
        check,
        len_field,
    }))
}

impl Verify {
    pub(super) fn begin(self, shape: &DiskShape) -> Result<Action, Sense> {
        let extent = transfer_extent(shape, self.lba, self.blocks, self.len_field)?;
        Ok(match self.check {
            Check::Readable => unless_empty(extent, || MediumOp::Verify { extent }),
            Check::Bytes => unless_empty(extent, || MediumOp::Compare { extent }),
            Check::SameBlock if extent.blocks == 0 => Action::End(Ending::GOOD),
            Check::SameBlock => Action::Parameters(ParameterList::exactly(shape.block_size_bytes)),
        })
    }

    pub(super) fn resume(self, shape: &DiskShape, data: &[u8]) -> Result<Action, Sense> {
        let extent = transfer_extent(shape, self.lba, self.blocks, self.len_field)?;
        Ok(Action::Medium(MediumOp::CompareSame {
            extent,
            block: data.to_vec(),
        }))
    }
}

#[cfg(test)]
mod tests;
