//! MODE SENSE (6), (10) (SPC-4 6.13, 6.14) with the pages that a disk needs. Four fields of the control page can be
//! changed and saved (see `mode.rs`); everything else follows from the volume.

use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::mode::{Control, ModeParameters, QueueError};
use crate::sense::Sense;
use crate::shape::DiskShape;
use crate::unit::LogicalUnit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModeSense {
    form: ModeSenseForm,
    block_descriptor: BlockDescriptor,
    values: Values,
    page: u8,
    subpage: u8,
    allocation_len_bytes: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ModeSenseForm {
    Six,
    Ten,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockDescriptor {
    None,
    /// The number of blocks in 32 bits.
    Short,
    /// The number of blocks in 64 bits, if the initiator accepts it (LLBAA).
    Long,
}

/// PC: the kind of page values requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    Current,
    /// A mask with ones where a value can be changed.
    Changeable,
    Default,
    Saved,
}

const ALL_PAGES: u8 = 0x3F;
const ALL_SUBPAGES: u8 = 0xFF;

pub(crate) fn decode_6(cdb: &Cdb) -> Result<Command, Sense> {
    decode(
        cdb,
        ModeSenseForm::Six,
        BlockDescriptor::Short,
        cdb.u8(4).into(),
    )
}

pub(crate) fn decode_10(cdb: &Cdb) -> Result<Command, Sense> {
    let long_lba_accepted = cdb.bit(1, 4);
    let descriptor = if long_lba_accepted {
        BlockDescriptor::Long
    } else {
        BlockDescriptor::Short
    };
    decode(cdb, ModeSenseForm::Ten, descriptor, cdb.u16(7))
}

fn decode(
    cdb: &Cdb,
    form: ModeSenseForm,
    block_descriptor: BlockDescriptor,
    allocation_len_bytes: u16,
) -> Result<Command, Sense> {
    let disable_block_descriptors = cdb.bit(1, 3);
    let values = match cdb.u8(2) >> 6 {
        0b00 => Values::Current,
        0b01 => Values::Changeable,
        0b10 => Values::Default,
        _ => Values::Saved,
    };
    Ok(Command::ModeSense(ModeSense {
        form,
        block_descriptor: if disable_block_descriptors {
            BlockDescriptor::None
        } else {
            block_descriptor
        },
        values,
        page: cdb.u8(2) & 0x3F,
        subpage: cdb.u8(3),
        allocation_len_bytes,
    }))
}

impl ModeSense {
    pub(super) fn begin(self, unit: &LogicalUnit) -> Result<Action, Sense> {
        let shape = unit.shape();
        let pages = self.pages(shape, unit.mode())?;
        let descriptor = self.block_descriptor.encode(shape);
        let mut data = self.header(shape, descriptor.len(), pages.len());
        data.extend(descriptor);
        data.extend(pages);
        Ok(reply(data, self.allocation_len_bytes.into()))
    }

    /// The mode parameter header (SPC-4). Its length field does not count itself.
    fn header(&self, shape: &DiskShape, descriptor_len: usize, pages_len: usize) -> Vec<u8> {
        const WRITE_PROTECT: u8 = 0x80;
        const DPOFUA: u8 = 0x10;
        let is_protected = shape.read_only || shape.is_protected;
        let device = DPOFUA | if is_protected { WRITE_PROTECT } else { 0 };
        let following = descriptor_len + pages_len;
        match self.form {
            ModeSenseForm::Six => vec![(3 + following) as u8, 0, device, descriptor_len as u8],
            ModeSenseForm::Ten => {
                let long_lba = u8::from(self.block_descriptor == BlockDescriptor::Long);
                let [high, low] = ((6 + following) as u16).to_be_bytes();
                vec![high, low, 0, device, long_lba, 0, 0, descriptor_len as u8]
            }
        }
    }

    fn pages(&self, shape: &DiskShape, mode: &ModeParameters) -> Result<Vec<u8>, Sense> {
        const PS: u8 = 0x80;
        if self.subpage != 0 && self.subpage != ALL_SUBPAGES {
            return Err(Sense::invalid_cdb_field(3, None));
        }
        let asked = |page: &Page| self.page == ALL_PAGES || self.page == page[0];
        let changeable = self.values == Values::Changeable;
        let mut data = Vec::with_capacity(32);
        let mut add = |page: Page, bits: Page| {
            let len = 2 + usize::from(page[1]);
            // Only the control page can be saved, and changed.
            let savable = if bits != [0; 20] { PS } else { 0 };
            data.extend([page[0] | savable, page[1]]);
            data.extend_from_slice(if changeable {
                &bits[2..len]
            } else {
                &page[2..len]
            });
        };
        let values = match self.values {
            Values::Current | Values::Changeable => mode.current,
            Values::Saved => mode.saved,
            Values::Default => Control::default(),
        };
        let bits = match shape.reads_only {
            true => [0; 20],
            false => control_changeable(),
        };
        for (page, bits) in [(caching(shape), [0; 20]), (control(values), bits)] {
            if asked(&page) {
                add(page, bits);
            }
        }
        if data.is_empty() {
            Err(Sense::invalid_cdb_field(2, Some(5)))
        } else {
            Ok(data)
        }
    }
}

/// A mode page: page code, page length, and that many bytes of content; zero-padded.
pub(super) type Page = [u8; 20];

/// The caching mode page (SBC-3): WCE says whether acknowledged writes need a flush; everything else is left to the
/// device.
pub(super) fn caching(shape: &DiskShape) -> Page {
    const WCE: u8 = 0x04;
    let mut page = [0; 20];
    page[0] = 0x08;
    page[1] = 0x12;
    page[2] = if shape.write_cache { WCE } else { 0 };
    page
}

const CONTROL_CODE: u8 = 0x0A;
const D_SENSE: u8 = 0x04;
const QERR: u8 = 0x06;
const QERR_SHIFT: u32 = QERR.trailing_zeros();
const SWP: u8 = 0x08;
const TAS: u8 = 0x40;

/// The control mode page (SPC-4 7.5.8): one task set for all nexuses, unrestricted reordering of SIMPLE commands,
/// unlimited busy time, and the rest according to `values`.
pub(super) fn control(values: Control) -> Page {
    const GLTSD: u8 = 0x02;
    const UNRESTRICTED_REORDERING: u8 = 0x10;
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    let mut page = [0; 20];
    page[0] = CONTROL_CODE;
    page[1] = 0x0A;
    page[2] = GLTSD | bit(values.descriptor_sense, D_SENSE);
    page[3] = UNRESTRICTED_REORDERING | (values.queue_error as u8) << QERR_SHIFT;
    page[4] = bit(values.write_protect, SWP);
    page[5] = bit(values.task_aborted_status, TAS);
    page[8] = 0xFF;
    page[9] = 0xFF;
    page
}

/// A mask of the control page fields that MODE SELECT may change.
pub(super) fn control_changeable() -> Page {
    let mut bits = [0; 20];
    bits[2] = D_SENSE;
    bits[3] = QERR;
    bits[4] = SWP;
    bits[5] = TAS;
    bits
}

/// Parses the changeable values of a control page.
///
/// # Errors
/// The offset of a byte that holds a reserved value.
pub(super) fn control_values(page: &[u8]) -> Result<Control, u16> {
    let queue_error = QueueError::from_code((page[3] & QERR) >> QERR_SHIFT).ok_or(3_u16)?;
    Ok(Control {
        descriptor_sense: page[2] & D_SENSE != 0,
        queue_error,
        write_protect: page[4] & SWP != 0,
        task_aborted_status: page[5] & TAS != 0,
    })
}

impl BlockDescriptor {
    /// The block descriptor of direct access devices (SBC-3): the number of blocks (all ones if the field is too
    /// small) and their size.
    fn encode(self, shape: &DiskShape) -> Vec<u8> {
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
