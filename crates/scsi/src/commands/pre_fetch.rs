//! PRE-FETCH (10), (16) (SBC-3 5.8, 5.9). The volume decides by itself what to cache, so nothing is fetched. GOOD is
//! then the status the standard requires: not all blocks are in the cache (CONDITION MET would claim that they are).

use super::Command;
use crate::action::Action;
use crate::cdb::Cdb;
use crate::ending::Ending;
use crate::sense::Sense;
use crate::shape::DiskShape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PreFetch {
    lba: u64,
    /// 0 means to the end of the medium.
    blocks: u32,
}

pub(crate) fn decode_10(cdb: &Cdb) -> Result<Command, Sense> {
    let (lba, blocks) = (cdb.u32(2).into(), cdb.u16(7).into());
    Ok(Command::PreFetch(PreFetch { lba, blocks }))
}

pub(crate) fn decode_16(cdb: &Cdb) -> Result<Command, Sense> {
    let (lba, blocks) = (cdb.u64(2), cdb.u32(10));
    Ok(Command::PreFetch(PreFetch { lba, blocks }))
}

impl PreFetch {
    pub(super) fn begin(self, shape: &DiskShape) -> Result<Action, Sense> {
        shape.extent_or_rest(self.lba, self.blocks.into())?;
        Ok(Action::End(Ending::GOOD))
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{LEN_BLOCKS, cdb_10, cdb_16, good, out_of_range, run, thick};

    #[test]
    fn a_range_that_exists_is_good_and_another_is_not() {
        for cdb in [cdb_10(0x34, 2, 0, 0), cdb_16(0x90, 0, LEN_BLOCKS - 1, 1)] {
            assert_eq!(run(thick(), &cdb), good());
        }
        for cdb in [
            cdb_10(0x34, 0, LEN_BLOCKS as u32, 0),
            cdb_16(0x90, 0, LEN_BLOCKS - 1, 2),
        ] {
            assert!(out_of_range(run(thick(), &cdb)));
        }
    }
}
