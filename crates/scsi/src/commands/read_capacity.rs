//! READ CAPACITY (10), (16) (SBC-3 5.15, 5.16).

use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::sense::Sense;
use crate::shape::DiskShape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadCapacity {
    Ten,
    Sixteen { allocation_len_bytes: u32 },
}

/// The obsolete LBA and PMI fields asked for the last block before a substantial delay; there are no delays here.
pub(crate) fn decode_10(_cdb: &Cdb) -> Result<Command, Sense> {
    Ok(Command::ReadCapacity(ReadCapacity::Ten))
}

pub(crate) fn decode_16(cdb: &Cdb) -> Result<Command, Sense> {
    let allocation_len_bytes = cdb.u32(10);
    Ok(Command::ReadCapacity(ReadCapacity::Sixteen {
        allocation_len_bytes,
    }))
}

impl ReadCapacity {
    pub(super) fn begin(self, shape: &DiskShape) -> Action {
        let last_lba = shape.len_blocks - 1;
        match self {
            ReadCapacity::Ten => {
                // All ones tell the initiator to use READ CAPACITY (16).
                let last_lba = u32::try_from(last_lba).unwrap_or(u32::MAX);
                Action::Reply(
                    [last_lba, shape.block_size_bytes]
                        .map(u32::to_be_bytes)
                        .concat(),
                )
            }
            ReadCapacity::Sixteen {
                allocation_len_bytes,
            } => {
                let mut data = vec![0; 32];
                data[..8].copy_from_slice(&last_lba.to_be_bytes());
                data[8..12].copy_from_slice(&shape.block_size_bytes.to_be_bytes());
                data[13] = shape.physical_block_exponent();
                if let Some(discard) = &shape.discard {
                    const LBPME: u8 = 0x80;
                    const LBPRZ: u8 = 0x40;
                    data[14] = LBPME
                        | if discard.zeroes_after_discard {
                            LBPRZ
                        } else {
                            0
                        };
                }
                reply(data, allocation_len_bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests;
