//! WRITE ATOMIC (16) (SBC-4 5.48): all or nothing. Offered only if the volume can guarantee that; start and length
//! must be multiples of the unit in the block limits page. With an ATOMIC BOUNDARY the command would be several
//! atomic writes; the block limits page reports no support for boundaries.

use super::Command;
use super::read_write::{PROTECT, Transfer, unless_empty};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::medium::MediumOp;
use crate::sense::Sense;
use crate::shape::DiskShape;

pub(crate) fn decode_16(cdb: &Cdb) -> Result<Command, Sense> {
    cdb.must_be_zero(1, PROTECT)?;
    if cdb.u16(10) != 0 {
        return Err(Sense::invalid_cdb_field(10, None));
    }
    let transfer = Transfer::new(cdb.u64(2), cdb.u16(12).into(), cdb.bit(1, 3), 12);
    Ok(Command::WriteAtomic(transfer))
}

pub(super) fn begin(transfer: Transfer, shape: &DiskShape) -> Result<Action, Sense> {
    if shape.atomic_blocks_max == 0 {
        return Err(Sense::INVALID_OPCODE);
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
