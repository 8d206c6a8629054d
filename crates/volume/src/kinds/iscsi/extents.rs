//! GET LBA STATUS (SBC-3 5.7): which blocks of the disk are certainly blank.

use super::{cdb, claim::be, session::Data, transfer::Way};
use crate::{Allocation, ErrorKind, Result};

/// The parameter data with one descriptor, in bytes.
const ONE_EXTENT_BYTES: usize = 24;
const DEALLOCATED: u8 = 1;

/// Whether the first bytes of `disk` from byte `at` on are mapped, at most `len`. A disk that cannot tell is.
pub(super) async fn allocation(disk: &impl Way, at: u64, len: u64) -> Result<Allocation> {
    let facts = disk.facts();
    facts.shape.check(at, len)?;
    let mapped = Allocation {
        is_mapped: true,
        len_bytes: len,
    };
    if !facts.unmapped_reads_zeroes {
        return Ok(mapped);
    }
    let block = u64::from(facts.shape.block_size_bytes);
    let first = at / block;
    let command = cdb::get_lba_status(first, ONE_EXTENT_BYTES as u32);
    match disk.run(&command, Data::In(ONE_EXTENT_BYTES)).await {
        Ok(reply) => {
            let blank = blank_blocks(&reply.data.to_vec(), first);
            Ok(blank.map_or(mapped, |blocks| Allocation {
                is_mapped: false,
                len_bytes: len.min(blocks.saturating_mul(block)),
            }))
        }
        Err(error) => match error.kind() {
            ErrorKind::Unreachable
            | ErrorKind::TimedOut
            | ErrorKind::ReservationConflict
            | ErrorKind::Preempted
            | ErrorKind::Claimed => Err(error),
            // Few targets have the command.
            _ => Ok(mapped),
        },
    }
}

/// How many blocks from `first` on are deallocated, if parameter data say so.
fn blank_blocks(data: &[u8], first: u64) -> Option<u64> {
    let data: &[u8; ONE_EXTENT_BYTES] = data.try_into().ok()?;
    // What follows this field.
    let is_whole = be(&data[..4]) >= ONE_EXTENT_BYTES as u64 - 4;
    let (start, blocks, status) = (be(&data[8..16]), be(&data[16..20]), data[20] & 0x0F);
    let left = start.checked_add(blocks)?.checked_sub(first)?;
    (is_whole && status == DEALLOCATED && start <= first && left > 0).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(start: u64, blocks: u32, status: u8) -> Vec<u8> {
        let mut data = vec![0, 0, 0, 20, 0, 0, 0, 0];
        data.extend(start.to_be_bytes());
        data.extend(blocks.to_be_bytes());
        data.extend([status, 0, 0, 0]);
        data
    }

    #[test]
    fn only_a_deallocated_extent_that_begins_there_is_blank() {
        assert_eq!(blank_blocks(&data(8, 16, 1), 10), Some(14));
        for (start, blocks, status) in [(8, 16, 0), (8, 16, 2), (8, 2, 1), (11, 16, 1)] {
            assert_eq!(blank_blocks(&data(start, blocks, status), 10), None);
        }
        let mut short = data(8, 16, 1);
        short[3] = 4;
        assert_eq!(blank_blocks(&short, 10), None);
        assert_eq!(blank_blocks(&short[..12], 10), None);
    }
}
