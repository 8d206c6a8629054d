//! SYNCHRONIZE CACHE (10), (16) (SBC-3 5.26, 5.27). IMMED asks for an answer before the flush completes; completing
//! it first anyway is a stronger guarantee and is always allowed.

use super::Command;
use crate::action::Action;
use crate::cdb::Cdb;
use crate::medium::MediumOp;
use crate::sense::Sense;
use crate::shape::DiskShape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SynchronizeCache {
    lba: u64,
    /// 0 means to the end of the medium.
    blocks: u32,
}

pub(crate) fn decode_10(cdb: &Cdb) -> Result<Command, Sense> {
    let (lba, blocks) = (cdb.u32(2).into(), cdb.u16(7).into());
    Ok(Command::SynchronizeCache(SynchronizeCache { lba, blocks }))
}

pub(crate) fn decode_16(cdb: &Cdb) -> Result<Command, Sense> {
    let (lba, blocks) = (cdb.u64(2), cdb.u32(10));
    Ok(Command::SynchronizeCache(SynchronizeCache { lba, blocks }))
}

impl SynchronizeCache {
    pub(super) fn begin(self, shape: &DiskShape) -> Result<Action, Sense> {
        let extent = shape.extent_or_rest(self.lba, self.blocks.into())?;
        Ok(Action::Medium(MediumOp::Flush { extent }))
    }
}
