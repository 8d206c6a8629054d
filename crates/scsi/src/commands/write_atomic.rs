//! WRITE ATOMIC (16) (SBC-4 5.48): all of it or nothing. Offered only where the volume can promise
//! that; start and length are multiples of what the block limits page says. With an ATOMIC BOUNDARY the command would be
//! several atomic writes, which no boundary support in the block limits page rules out.

use super::Command;
use super::read_write::{PROTECT, Transfer, unless_empty};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::medium::MediumOp;
use crate::opcodes;
use crate::sense::Sense;
use crate::shape::Shape;

pub(crate) fn decode_16(cdb: &Cdb) -> Result<Command, Sense> {
    cdb.must_be_zero(1, PROTECT)?;
    if cdb.u16(10) != 0 {
        return Err(Sense::invalid_cdb_field(10, None));
    }
    let transfer = Transfer::new(cdb.u64(2), cdb.u16(12).into(), cdb.bit(1, 3), 12);
    Ok(Command::WriteAtomic(transfer))
}

pub(super) fn begin(transfer: Transfer, shape: &Shape) -> Result<Action, Sense> {
    if shape.atomic_blocks_max == 0 {
        return Err(opcodes::UNKNOWN);
    }
    shape.check_writable()?;
    let (extent, fua) = transfer.within(shape, shape.atomic_blocks_max)?;
    let unit = u64::from(shape.atomic_blocks_unit);
    if extent.lba % unit != 0 {
        return Err(Sense::invalid_cdb_field(2, None));
    }
    if extent.blocks % unit != 0 {
        return Err(Sense::invalid_cdb_field(12, None));
    }
    Ok(unless_empty(extent, || MediumOp::WriteAtomic {
        extent,
        fua,
    }))
}
