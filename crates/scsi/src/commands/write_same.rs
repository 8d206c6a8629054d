//! WRITE SAME (10), (16) (SBC-3 5.43, 5.44): writes one block of data-out to a whole extent. A zero block, or no
//! data-out at all (NDOB), becomes an operation of its own, which volumes can do faster. 0 blocks do not mean "to the
//! end" (WSNZ in the block limits page): that would nearly always exceed the WRITE SAME limit, and where it does not,
//! it is probably a mistake.

use super::Command;
use super::read_write::PROTECT;
use crate::action::{Action, ParameterList};
use crate::cdb::Cdb;
use crate::medium::{Extent, MediumOp};
use crate::sense::Sense;
use crate::shape::DiskShape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteSame {
    lba: u64,
    blocks: u32,
    unmap: bool,
    /// No data-out buffer: the block is zeroes.
    no_data: bool,
    len_field: u16,
}

const ANCHOR: u8 = 0x10;
/// LBDATA and PBDATA of SBC-2 would make each block carry its own address.
const ADDRESS_DATA: u8 = 0x06;

pub(crate) fn decode_10(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, cdb.u32(2).into(), cdb.u16(7).into(), false, 7)
}

pub(crate) fn decode_16(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, cdb.u64(2), cdb.u32(10), cdb.bit(1, 0), 10)
}

fn decode(
    cdb: &Cdb,
    lba: u64,
    blocks: u32,
    no_data: bool,
    len_field: u16,
) -> Result<Command, Sense> {
    cdb.must_be_zero(1, PROTECT)?;
    cdb.must_be_zero(1, ANCHOR)?;
    cdb.must_be_zero(1, ADDRESS_DATA)?;
    Ok(Command::WriteSame(WriteSame {
        lba,
        blocks,
        unmap: cdb.bit(1, 3),
        no_data,
        len_field,
    }))
}

impl WriteSame {
    pub(super) fn begin(self, shape: &DiskShape) -> Result<Action, Sense> {
        let extent = self.extent(shape)?;
        Ok(if self.no_data {
            Action::Medium(MediumOp::Zero {
                extent,
                unmap: self.unmap,
            })
        } else {
            Action::Parameters(ParameterList::exactly(shape.block_size_bytes))
        })
    }

    pub(super) fn resume(self, shape: &DiskShape, block: &[u8]) -> Result<Action, Sense> {
        let extent = self.extent(shape)?;
        let zero = block.iter().all(|byte| *byte == 0);
        Ok(Action::Medium(if zero {
            MediumOp::Zero {
                extent,
                unmap: self.unmap,
            }
        } else {
            // Unmapped blocks could not read as this pattern, so the UNMAP bit is ignored.
            MediumOp::WriteSame {
                extent,
                block: block.to_vec(),
            }
        }))
    }

    fn extent(&self, shape: &DiskShape) -> Result<Extent, Sense> {
        shape.check_writable()?;
        if self.unmap && shape.discard.is_none() {
            return Err(Sense::invalid_cdb_field(1, Some(3)));
        }
        let extent = shape.extent(self.lba, self.blocks.into())?;
        if extent.blocks == 0 {
            return Err(Sense::invalid_cdb_field(self.len_field, None));
        }
        if extent.blocks > shape.write_same_blocks_max {
            return Err(Sense::invalid_cdb_field(self.len_field, None));
        }
        Ok(extent)
    }
}

#[cfg(test)]
mod tests;
