//! COMPARE AND WRITE (SBC-3 5.2): the lock of clusters. The data-out is twice the extent: what must
//! be there, and what to write then.

use super::Command;
use super::read_write::{PROTECT, Transfer};
use crate::action::{Action, Ending};
use crate::cdb::Cdb;
use crate::medium::MediumOp;
use crate::opcodes;
use crate::sense::Sense;
use crate::shape::Shape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompareAndWrite(Transfer);

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    cdb.must_be_zero(1, PROTECT)?;
    let transfer = Transfer::new(cdb.u64(2), cdb.u8(13).into(), cdb.bit(1, 3), 13);
    Ok(Command::CompareAndWrite(CompareAndWrite(transfer)))
}

impl CompareAndWrite {
    pub(super) fn begin(self, shape: &Shape) -> Result<Action, Sense> {
        if shape.compare_write_blocks_max == 0 {
            return Err(opcodes::UNKNOWN);
        }
        shape.check_writable()?;
        let blocks_max = shape.compare_write_blocks_max.into();
        let (extent, fua) = self.0.within(shape, blocks_max)?;
        Ok(if extent.blocks == 0 {
            // Nothing to do is right only if the initiator sends nothing: 256 blocks, cut to the
            // field's eight bits, must not pass for done (libiscsi checks it).
            Command::CompareAndWrite(self).wants(0)
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
