//! GET LBA STATUS (SBC-3 5.4): which blocks have space. Volumes do not tell, so all of them are
//! "mapped", which SBC-4 5.6.2.2 defines as "mapped or unknown": one descriptor from the block asked
//! for to the end.

use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::opcodes;
use crate::sense::Sense;
use crate::shape::Shape;

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
    pub(super) fn begin(self, shape: &Shape) -> Result<Action, Sense> {
        const MAPPED: u8 = 0x00;
        if shape.discard.is_none() {
            return Err(opcodes::UNKNOWN);
        }
        let extent = shape.extent_or_rest(self.lba, 0)?;
        let blocks = u32::try_from(extent.blocks).unwrap_or(u32::MAX);
        // PARAMETER DATA LENGTH counts what follows it.
        let mut data = vec![0, 0, 0, 20, 0, 0, 0, 0];
        data.extend(extent.lba.to_be_bytes());
        data.extend(blocks.to_be_bytes());
        data.extend([MAPPED, 0, 0, 0]);
        Ok(reply(data, self.allocation_len_bytes))
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::{LEN_BLOCKS, data, out_of_range, run, thin};

    fn cdb(lba: u64) -> Vec<u8> {
        let mut cdb = vec![0x9E, 0x12];
        cdb.extend(lba.to_be_bytes());
        cdb.extend([0, 0, 0, 24, 0, 0]);
        cdb
    }

    #[test]
    fn one_descriptor_reaches_from_the_block_asked_for_to_the_end() {
        let reply = data(run(thin(), &cdb(LEN_BLOCKS - 3)));
        assert_eq!(reply.len(), 24);
        assert_eq!(reply[8..16], (LEN_BLOCKS - 3).to_be_bytes());
        assert_eq!(reply[16..21], [0, 0, 0, 3, 0]);
        assert!(out_of_range(run(thin(), &cdb(LEN_BLOCKS))));
    }
}
