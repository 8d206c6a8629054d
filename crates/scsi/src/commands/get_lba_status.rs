//! GET LBA STATUS (SBC-3 5.4): the provisioning status of blocks, in one descriptor that starts at the requested
//! block. Blocks of unknown status count as "mapped", which SBC-4 5.6.2.2 defines as "mapped or unknown".

use super::Command;
use crate::action::Action;
use crate::cdb::Cdb;
use crate::ending::Ending;
use crate::medium::{Extent, MediumOp};
use crate::sense::Sense;
use crate::shape::DiskShape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GetLbaStatus {
    lba: u64,
    allocation_len_bytes: u32,
}

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::GetLbaStatus(GetLbaStatus {
        lba: cdb.u64(2),
        allocation_len_bytes: cdb.u32(10),
    }))
}

impl GetLbaStatus {
    pub(super) fn begin(self, shape: &DiskShape) -> Result<Action, Sense> {
        if shape.discard.is_none() {
            return Err(Sense::INVALID_OPCODE);
        }
        let extent = shape.extent_or_rest(self.lba, 0)?;
        let len_bytes = self.allocation_len_bytes.min(LEN as u32);
        Ok(match len_bytes {
            0 => Action::End(Ending::GOOD),
            _ => Action::Medium(MediumOp::LbaStatus { extent, len_bytes }),
        })
    }
}

const LEN: usize = 24;

/// The parameter data of GET LBA STATUS for blocks that are all mapped or all unmapped.
pub fn lba_status(extent: Extent, is_mapped: bool) -> [u8; LEN] {
    const MAPPED: u8 = 0x00;
    const DEALLOCATED: u8 = 0x01;
    let mut data = [0; LEN];
    // PARAMETER DATA LENGTH counts only the bytes after itself.
    data[3] = LEN as u8 - 4;
    data[8..16].copy_from_slice(&extent.lba.to_be_bytes());
    let blocks = u32::try_from(extent.blocks).unwrap_or(u32::MAX);
    data[16..20].copy_from_slice(&blocks.to_be_bytes());
    data[20] = if is_mapped { MAPPED } else { DEALLOCATED };
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{LEN_BLOCKS, medium, out_of_range, run, thin};

    fn cdb(lba: u64) -> Vec<u8> {
        let mut cdb = vec![0x9E, 0x12];
        cdb.extend(lba.to_be_bytes());
        cdb.extend([0, 0, 0, 24, 0, 0]);
        cdb
    }

    #[test]
    fn it_looks_from_the_block_asked_for_to_the_end() {
        let op = medium(run(thin(), &cdb(LEN_BLOCKS - 3)));
        let MediumOp::LbaStatus { extent, len_bytes } = op else {
            panic!("{op:?}")
        };
        assert_eq!((extent.blocks, len_bytes), (3, 24));
        let data = lba_status(extent, false);
        assert_eq!(data[8..16], (LEN_BLOCKS - 3).to_be_bytes());
        assert_eq!(data[16..21], [0, 0, 0, 3, 1]);
        assert!(out_of_range(run(thin(), &cdb(LEN_BLOCKS))));
    }
}
