//! COMPARE AND WRITE (SBC-3 5.2): the locking primitive of cluster file systems. The data-out is twice the extent:
//! the expected contents, then the new contents.

use super::Command;
use super::read_write::{PROTECT, Transfer};
use crate::action::{Action, ParameterList};
use crate::cdb::Cdb;
use crate::ending::Ending;
use crate::medium::MediumOp;
use crate::sense::Sense;
use crate::shape::DiskShape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompareAndWrite(Transfer);

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    cdb.must_be_zero(1, PROTECT)?;
    let transfer = Transfer::new(cdb.u64(2), cdb.u8(13).into(), cdb.bit(1, 3), 13);
    Ok(Command::CompareAndWrite(CompareAndWrite(transfer)))
}

impl CompareAndWrite {
    pub(super) fn begin(self, shape: &DiskShape) -> Result<Action, Sense> {
        if shape.compare_write_blocks_max == 0 {
            return Err(Sense::INVALID_OPCODE);
        }
        shape.check_writable()?;
        let blocks_max = shape.compare_write_blocks_max.into();
        let (extent, fua) = self.0.within(shape, blocks_max)?;
        Ok(if extent.blocks == 0 {
            // 0 blocks succeed only if the initiator sends no data: a request for 256 blocks, truncated to the
            // field's eight bits, must not appear to succeed (libiscsi checks this).
            Action::Parameters(ParameterList::none_to_compare())
        } else {
            Action::Medium(MediumOp::CompareAndWrite { extent, fua })
        })
    }

    pub(super) fn resume(self) -> Action {
        Action::End(Ending::GOOD)
    }
}

#[cfg(test)]
mod tests;
