//! UNMAP (SBC-3 5.28): a parameter list of ranges to discard.

use super::Command;
use crate::action::{Action, ParameterList};
use crate::cdb::Cdb;
use crate::ending::Ending;
use crate::medium::MediumOp;
use crate::sense::Sense;
use crate::shape::{Discard, DiskShape};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unmap {
    list_len_bytes: u16,
}

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    const ANCHOR: u8 = 0x01;
    cdb.must_be_zero(1, ANCHOR)?;
    Ok(Command::Unmap(Unmap {
        list_len_bytes: cdb.u16(7),
    }))
}

const HEADER_LEN: usize = 8;
const DESCRIPTOR_LEN: usize = 16;
impl Unmap {
    pub(super) fn begin(self, shape: &DiskShape) -> Result<Action, Sense> {
        Unmap::check(shape)?;
        match usize::from(self.list_len_bytes) {
            0 => Ok(Action::End(Ending::GOOD)),
            1..HEADER_LEN => Err(Sense::LIST_LENGTH_ERROR),
            len => Ok(Action::Parameters(ParameterList::new(len as u32))),
        }
    }

    pub(super) fn resume(self, shape: &DiskShape, list: &[u8]) -> Result<Action, Sense> {
        let discard = Unmap::check(shape)?;
        let (Some(length), Some(descriptors)) = (list.get(2..4), list.get(HEADER_LEN..)) else {
            return Err(Sense::LIST_LENGTH_ERROR);
        };
        let len_bytes = usize::from(u16::from_be_bytes([length[0], length[1]]));
        let descriptors = descriptors
            .get(..len_bytes)
            .ok_or(Sense::LIST_LENGTH_ERROR)?;
        // The rest of a truncated descriptor is ignored (SBC-3 5.28).
        let count = descriptors.len() / DESCRIPTOR_LEN;
        if count > usize::from(discard.unmap_ranges_max) {
            return Err(Sense::invalid_parameter(2, None));
        }

        let mut extents = Vec::with_capacity(count);
        let mut blocks_total = 0;
        for (index, descriptor) in descriptors.chunks_exact(DESCRIPTOR_LEN).enumerate() {
            let descriptor = Cdb::new(descriptor);
            let (lba, blocks) = (descriptor.u64(0), u64::from(descriptor.u32(8)));
            if blocks == 0 {
                continue;
            }
            extents.push(shape.extent(lba, blocks)?);
            blocks_total += blocks;
            if blocks_total > u64::from(discard.unmap_blocks_max) {
                let field = HEADER_LEN + index * DESCRIPTOR_LEN + 8;
                return Err(Sense::invalid_parameter(field as u16, None));
            }
        }
        Ok(if extents.is_empty() {
            Action::End(Ending::GOOD)
        } else {
            Action::Medium(MediumOp::Unmap { extents })
        })
    }

    fn check(shape: &DiskShape) -> Result<&Discard, Sense> {
        let discard = shape.discard.as_ref().ok_or(Sense::INVALID_OPCODE)?;
        shape.check_writable()?;
        Ok(discard)
    }
}

#[cfg(test)]
mod tests;
