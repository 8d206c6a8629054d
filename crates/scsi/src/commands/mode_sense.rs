//! MODE SENSE (6), (10) (SPC-4 6.13, 6.14) with the pages that a disk needs. Nothing can be
//! changed, so MODE SELECT is not a command of this disk, the current values are the default
//! ones, none are saved, and the mask of changeable ones is empty.

use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::sense::{Asc, Sense, SenseKey};
use crate::shape::Shape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModeSense {
    form: Form,
    block_descriptor: BlockDescriptor,
    /// Asked for the changeable values' mask instead of the values.
    changeable: bool,
    page: u8,
    subpage: u8,
    allocation_len_bytes: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Six,
    Ten,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockDescriptor {
    None,
    /// 32 bits of blocks.
    Short,
    /// 64 bits of them, if the initiator takes it (LLBAA).
    Long,
}

const ALL_PAGES: u8 = 0x3F;
const ALL_SUBPAGES: u8 = 0xFF;

pub(crate) fn decode_6(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, Form::Six, BlockDescriptor::Short, cdb.u8(4).into())
}

pub(crate) fn decode_10(cdb: &Cdb) -> Result<Command, Sense> {
    let long_lba_accepted = cdb.bit(1, 4);
    let descriptor = if long_lba_accepted {
        BlockDescriptor::Long
    } else {
        BlockDescriptor::Short
    };
    decode(cdb, Form::Ten, descriptor, cdb.u16(7))
}

fn decode(
    cdb: &Cdb,
    form: Form,
    block_descriptor: BlockDescriptor,
    allocation_len_bytes: u16,
) -> Result<Command, Sense> {
    let disable_block_descriptors = cdb.bit(1, 3);
    let changeable = match cdb.u8(2) >> 6 {
        0b00 | 0b10 => false,
        0b01 => true,
        _ => {
            let asc = Asc::SAVING_PARAMETERS_NOT_SUPPORTED;
            return Err(Sense::new(SenseKey::IllegalRequest, asc));
        }
    };
    Ok(Command::ModeSense(ModeSense {
        form,
        block_descriptor: if disable_block_descriptors {
            BlockDescriptor::None
        } else {
            block_descriptor
        },
        changeable,
        page: cdb.u8(2) & 0x3F,
        subpage: cdb.u8(3),
        allocation_len_bytes,
    }))
}

impl ModeSense {
    pub(super) fn begin(self, shape: &Shape) -> Result<Action, Sense> {
        let pages = self.pages(shape)?;
        let descriptor = self.block_descriptor.encode(shape);
        let mut data = self.header(shape, descriptor.len(), pages.len());
        data.extend(descriptor);
        data.extend(pages);
        Ok(reply(data, self.allocation_len_bytes.into()))
    }

    /// The mode parameter header (SPC-4). The length that it states does not count itself.
    fn header(&self, shape: &Shape, descriptor_len: usize, pages_len: usize) -> Vec<u8> {
        const WRITE_PROTECT: u8 = 0x80;
        const DPOFUA: u8 = 0x10;
        let device = DPOFUA | if shape.read_only { WRITE_PROTECT } else { 0 };
        let following = descriptor_len + pages_len;
        match self.form {
            Form::Six => vec![(3 + following) as u8, 0, device, descriptor_len as u8],
            Form::Ten => {
                let long_lba = u8::from(self.block_descriptor == BlockDescriptor::Long);
                let [high, low] = ((6 + following) as u16).to_be_bytes();
                vec![high, low, 0, device, long_lba, 0, 0, descriptor_len as u8]
            }
        }
    }

    fn pages(&self, shape: &Shape) -> Result<Vec<u8>, Sense> {
        if self.subpage != 0 && self.subpage != ALL_SUBPAGES {
            return Err(Sense::invalid_cdb_field(3, None));
        }
        let asked = |page: &&Page| self.page == ALL_PAGES || self.page == page[0];
        let pages = [caching(shape), CONTROL];
        let mut data = Vec::with_capacity(32);
        for page in pages.iter().filter(asked) {
            let len = 2 + usize::from(page[1]);
            data.extend_from_slice(&page[..2]);
            if self.changeable {
                data.resize(data.len() + len - 2, 0);
            } else {
                data.extend_from_slice(&page[2..len]);
            }
        }
        if data.is_empty() {
            Err(Sense::invalid_cdb_field(2, Some(5)))
        } else {
            Ok(data)
        }
    }
}

/// A mode page: its code, the number of bytes that follow these two, and they, zero-padded.
type Page = [u8; 20];

/// The caching mode page (SBC-3): WCE says whether acknowledged writes wait for a flush; all else
/// is left to the device.
fn caching(shape: &Shape) -> Page {
    const WCE: u8 = 0x04;
    let mut page = [0; 20];
    page[0] = 0x08;
    page[1] = 0x12;
    page[2] = if shape.write_cache { WCE } else { 0 };
    page
}

/// The control mode page (SPC-4): one task set for all nexuses, commands of the SIMPLE attribute
/// may be reordered without restriction, sense data in fixed format (D_SENSE = 0), other commands
/// of the nexus live on after a CHECK CONDITION (QERR = 0), tasks that another nexus aborts end
/// silently (TAS = 0), and how long the disk may be busy is unlimited.
const CONTROL: Page = {
    const GLTSD: u8 = 0x02;
    const UNRESTRICTED_REORDERING: u8 = 0x10;
    let mut page = [0; 20];
    page[0] = 0x0A;
    page[1] = 0x0A;
    page[2] = GLTSD;
    page[3] = UNRESTRICTED_REORDERING;
    page[8] = 0xFF;
    page[9] = 0xFF;
    page
};

impl BlockDescriptor {
    /// The block descriptor of direct access devices (SBC-3): the number of blocks, all ones if the
    /// field is too small, and their size.
    fn encode(self, shape: &Shape) -> Vec<u8> {
        let block_size = shape.block_size_bytes.to_be_bytes();
        match self {
            BlockDescriptor::None => Vec::new(),
            BlockDescriptor::Short => {
                let blocks = u32::try_from(shape.len_blocks).unwrap_or(u32::MAX);
                [blocks.to_be_bytes(), block_size].concat()
            }
            BlockDescriptor::Long => {
                let mut descriptor = shape.len_blocks.to_be_bytes().to_vec();
                descriptor.extend([0; 4]);
                descriptor.extend(block_size);
                descriptor
            }
        }
    }
}

#[cfg(test)]
mod tests;
