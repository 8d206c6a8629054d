//! READ and WRITE (6), (10), (12), (16) (SBC-3 5.11 to 5.13 and 5.33 to 5.35; the 6-byte forms are from SBC-2), and
//! ORWRITE (16) (SBC-3 5.5), which has the layout of a WRITE.

use super::Command;
use crate::action::Action;
use crate::cdb::Cdb;
use crate::ending::Ending;
use crate::medium::{Extent, MediumOp};
use crate::sense::Sense;
use crate::shape::DiskShape;

/// RDPROTECT and WRPROTECT: protection information is not supported.
pub(super) const PROTECT: u8 = 0xE0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transfer {
    lba: u64,
    blocks: u32,
    /// Force unit access. The adjacent DPO bit is only a hint and is ignored.
    fua: bool,
    /// The position of the transfer length in the CDB, for the sense data if it is too long.
    len_field: u16,
}

/// 21 bits of LBA; a length of 0 means 256 blocks.
fn decode_6(cdb: &Cdb) -> Transfer {
    let lba = u64::from(cdb.u32(0) & 0x1F_FFFF);
    let blocks = match cdb.u8(4) {
        0 => 256,
        blocks => blocks.into(),
    };
    Transfer {
        lba,
        blocks,
        fua: false,
        len_field: 4,
    }
}

fn decode_long(cdb: &Cdb, lba: u64, blocks: u32, len_field: u16) -> Result<Transfer, Sense> {
    cdb.must_be_zero(1, PROTECT)?;
    Ok(Transfer {
        lba,
        blocks,
        fua: cdb.bit(1, 3),
        len_field,
    })
}

fn decode_10(cdb: &Cdb) -> Result<Transfer, Sense> {
    decode_long(cdb, cdb.u32(2).into(), cdb.u16(7).into(), 7)
}

fn decode_12(cdb: &Cdb) -> Result<Transfer, Sense> {
    decode_long(cdb, cdb.u32(2).into(), cdb.u32(6), 6)
}

fn decode_16(cdb: &Cdb) -> Result<Transfer, Sense> {
    decode_long(cdb, cdb.u64(2), cdb.u32(10), 10)
}

pub(crate) fn decode_read_6(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::Read(decode_6(cdb)))
}

pub(crate) fn decode_read_10(cdb: &Cdb) -> Result<Command, Sense> {
    decode_10(cdb).map(Command::Read)
}

pub(crate) fn decode_read_12(cdb: &Cdb) -> Result<Command, Sense> {
    decode_12(cdb).map(Command::Read)
}

pub(crate) fn decode_read_16(cdb: &Cdb) -> Result<Command, Sense> {
    decode_16(cdb).map(Command::Read)
}

pub(crate) fn decode_write_6(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::Write(decode_6(cdb)))
}

pub(crate) fn decode_write_10(cdb: &Cdb) -> Result<Command, Sense> {
    decode_10(cdb).map(Command::Write)
}

pub(crate) fn decode_write_12(cdb: &Cdb) -> Result<Command, Sense> {
    decode_12(cdb).map(Command::Write)
}

pub(crate) fn decode_write_16(cdb: &Cdb) -> Result<Command, Sense> {
    decode_16(cdb).map(Command::Write)
}

pub(crate) fn decode_or_write_16(cdb: &Cdb) -> Result<Command, Sense> {
    decode_16(cdb).map(Command::OrWrite)
}

impl Transfer {
    /// A transfer with its length field at an unusual position.
    pub(super) fn new(lba: u64, blocks: u32, fua: bool, len_field: u16) -> Transfer {
        Transfer {
            lba,
            blocks,
            fua,
            len_field,
        }
    }

    pub(super) fn begin_read(self, shape: &DiskShape) -> Result<Action, Sense> {
        let extent = self.extent(shape)?;
        Ok(unless_empty(extent, || MediumOp::Read {
            extent,
            fua: self.fua,
        }))
    }

    pub(super) fn begin_write(self, shape: &DiskShape) -> Result<Action, Sense> {
        shape.check_writable()?;
        let extent = self.extent(shape)?;
        Ok(unless_empty(extent, || MediumOp::Write {
            extent,
            fua: self.fua,
        }))
    }

    pub(super) fn begin_or_write(self, shape: &DiskShape) -> Result<Action, Sense> {
        shape.check_writable()?;
        let extent = self.extent(shape)?;
        Ok(unless_empty(extent, || MediumOp::OrWrite {
            extent,
            fua: self.fua,
        }))
    }

    /// The extent, if it has at most `blocks_max` blocks, and whether it forces unit access.
    pub(super) fn within(
        &self,
        shape: &DiskShape,
        blocks_max: u32,
    ) -> Result<(Extent, bool), Sense> {
        let extent = shape.extent(self.lba, self.blocks.into())?;
        if self.blocks > blocks_max {
            return Err(Sense::invalid_cdb_field(self.len_field, None));
        }
        Ok((extent, self.fua))
    }

    fn extent(&self, shape: &DiskShape) -> Result<Extent, Sense> {
        transfer_extent(shape, self.lba, self.blocks, self.len_field)
    }
}

/// The extent of a command that is subject to MAXIMUM TRANSFER LENGTH in the block limits page.
pub(super) fn transfer_extent(
    shape: &DiskShape,
    lba: u64,
    blocks: u32,
    len_field: u16,
) -> Result<Extent, Sense> {
    let extent = shape.extent(lba, blocks.into())?;
    if blocks > shape.transfer_blocks_max {
        return Err(Sense::invalid_cdb_field(len_field, None));
    }
    Ok(extent)
}

/// A transfer of 0 blocks is valid and does nothing.
pub(super) fn unless_empty(extent: Extent, op: impl FnOnce() -> MediumOp) -> Action {
    if extent.blocks == 0 {
        Action::End(Ending::GOOD)
    } else {
        Action::Medium(op())
    }
}

#[cfg(test)]
mod tests;
