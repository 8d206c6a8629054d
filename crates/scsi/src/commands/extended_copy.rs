//! EXTENDED COPY (LID1) and (LID4) (SPC-4 6.4, 6.5): block-to-block segments between logical units served by the same
//! target, identified by their NAA names. The two commands differ in the list header and in the length of the list
//! identifier. The transport, which knows the units, does the copying; nothing is copied unless the whole list is
//! valid. A copy ends before its command does (IMMED is refused), so it can be aborted like any other command, and
//! COPY OPERATION ABORT is not needed.

mod page;
mod results;

pub(crate) use page::third_party_copy;
pub(crate) use results::{
    CopyResults, decode_failed_segment, decode_operating_parameters, decode_status,
    decode_status_long,
};

use super::Command;
use crate::action::{Action, ParameterList};
use crate::cdb::Cdb;
use crate::copy::{Copy, CopyForm, Segment};
use crate::ending::Ending;
use crate::sense::{Asc, Sense, SenseKey};
use crate::unit::LogicalUnit;

const CSCDS_MAX: usize = 16;
const SEGMENTS_MAX: usize = 16;
const CSCD_LEN: usize = 32;
const SEGMENT_LEN: usize = 28;
const HEADER_LEN: usize = 16;
const LONG_HEADER_LEN: usize = 48;
const DESCRIPTORS_LEN_MAX: usize = CSCDS_MAX * CSCD_LEN + SEGMENTS_MAX * SEGMENT_LEN;
/// Maximum number of blocks in a segment: the field has 16 bits.
const SEGMENT_BLOCKS_MAX: u32 = 0xFFFF;
/// Descriptor types: identification descriptor CSCD; block device to block device.
const IDENTIFICATION: u8 = 0xE4;
const BLOCK_TO_BLOCK: u8 = 0x02;
/// The CSCD descriptor ID of the unit that the command is sent to.
const THIS_UNIT: u16 = 0xFFFF;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtendedCopy {
    form: CopyForm,
    list_len_bytes: u32,
}

pub(crate) fn decode_lid1(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, CopyForm::Lid1)
}

pub(crate) fn decode_lid4(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, CopyForm::Lid4)
}

fn decode(cdb: &Cdb, form: CopyForm) -> Result<Command, Sense> {
    Ok(Command::ExtendedCopy(ExtendedCopy {
        form,
        list_len_bytes: cdb.u32(10),
    }))
}

/// The parsed header of a list.
struct Header {
    list_id: Option<u32>,
    cscds_len: usize,
    segments_len: usize,
}

impl ExtendedCopy {
    pub(super) fn begin(self) -> Result<Action, Sense> {
        let header_len = self.header_len();
        let most = header_len + 2 * DESCRIPTORS_LEN_MAX;
        match self.list_len_bytes as usize {
            0 => Ok(Action::End(Ending::GOOD)),
            len if (header_len..=most).contains(&len) => {
                Ok(Action::Parameters(ParameterList::new(self.list_len_bytes)))
            }
            _ => Err(Sense::LIST_LENGTH_ERROR),
        }
    }

    pub(super) fn resume(self, unit: &LogicalUnit, list: &[u8]) -> Result<Action, Sense> {
        if list.len() < self.header_len() {
            return Err(Sense::LIST_LENGTH_ERROR);
        }
        let (header, descriptors) = list.split_at(self.header_len());
        let header = match self.form {
            CopyForm::Lid1 => parse_header(header, descriptors.len())?,
            CopyForm::Lid4 => parse_long_header(header, descriptors.len())?,
        };
        let (cscds, rest) = descriptors.split_at(header.cscds_len);
        let names = parse_cscds(cscds)?;
        let own = unit.identity().naa();
        let segments = parse_segments(&rest[..header.segments_len], &names, own)?;
        Ok(Action::Copy(Copy {
            form: self.form,
            list_id: header.list_id,
            segments,
        }))
    }

    fn header_len(self) -> usize {
        match self.form {
            CopyForm::Lid1 => HEADER_LEN,
            CopyForm::Lid4 => LONG_HEADER_LEN,
        }
    }
}

/// The header of a LID1 list (SPC-4 6.4.3).
fn parse_header(header: &[u8], descriptors_len: usize) -> Result<Header, Sense> {
    let fields = Cdb::new(header);
    // Inline data is only for segment types that are not supported.
    let inline_len = fields.u32(12);
    let list_id = list_id(header[1], fields.u8(0).into(), 0)?;
    let (cscds_len, segments_len) = (fields.u16(2).into(), fields.u32(8) as usize);
    check_lens(cscds_len, segments_len, descriptors_len)?;
    match inline_len {
        0 => Ok(Header {
            list_id,
            cscds_len,
            segments_len,
        }),
        _ => Err(Sense::invalid_parameter(12, None)),
    }
}

/// The header of a LID4 list (SPC-4 6.5.2).
fn parse_long_header(header: &[u8], descriptors_len: usize) -> Result<Header, Sense> {
    const FORMAT: u8 = 0x01;
    const IMMED: u8 = 0x01;
    /// The header itself has the form of a CSCD descriptor, of this type and length.
    const CSCD_TYPE: u8 = 0xFF;
    const CSCD_LEN: u16 = 0x20;
    let invalid = |byte, bit| Err(Sense::invalid_parameter(byte, bit));
    let (first, middle, last) = (
        Cdb::new(header),
        Cdb::new(&header[16..]),
        Cdb::new(&header[42..]),
    );
    if first.u8(0) != FORMAT {
        return invalid(0, None);
    }
    if first.u16(2) != CSCD_LEN {
        return invalid(2, None);
    }
    if first.u8(15) & IMMED != 0 {
        return invalid(15, Some(0));
    }
    if middle.u8(0) != CSCD_TYPE {
        return invalid(16, None);
    }
    let list_id = list_id(first.u8(1), middle.u32(4), 20)?;
    let (cscds_len, segments_len) = (last.u16(0).into(), last.u16(2).into());
    check_lens(cscds_len, segments_len, descriptors_len)?;
    if last.u16(4) != 0 {
        return invalid(46, None);
    }
    Ok(Header {
        list_id,
        cscds_len,
        segments_len,
    })
}

/// The list identifier, whose field is at byte `at`, or `None` if LIST ID USAGE (11b) says that there is none.
fn list_id(flags: u8, id: u32, at: u16) -> Result<Option<u32>, Sense> {
    const USAGE: u8 = 0x18;
    const NONE: u8 = 0x18;
    match (flags & USAGE == NONE, id) {
        (false, id) => Ok(Some(id)),
        (true, 0) => Ok(None),
        (true, _) => Err(Sense::invalid_parameter(at, None)),
    }
}

fn check_lens(cscds: usize, segments: usize, descriptors: usize) -> Result<(), Sense> {
    let total = cscds.saturating_add(segments);
    match total > DESCRIPTORS_LEN_MAX || total > descriptors {
        true => Err(Sense::LIST_LENGTH_ERROR),
        false => Ok(()),
    }
}

fn illegal(asc: Asc) -> Sense {
    Sense::new(SenseKey::IllegalRequest, asc)
}

/// CSCD descriptors (SPC-4 6.4.5): the NAA names in them; `None` for designators of other types.
fn parse_cscds(list: &[u8]) -> Result<Vec<Option<[u8; 16]>>, Sense> {
    if list.len() > CSCDS_MAX * CSCD_LEN {
        return Err(illegal(Asc::TOO_MANY_TARGET_DESCRIPTORS));
    }
    let mut names = Vec::new();
    for cscd in list.chunks(CSCD_LEN) {
        const DISK: u8 = 0x00;
        const NAA: u8 = 0x03;
        if cscd[0] != IDENTIFICATION {
            return Err(illegal(Asc::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE));
        }
        let cscd: &[u8; CSCD_LEN] = cscd.try_into().map_err(|_| Sense::LIST_LENGTH_ERROR)?;
        let is_naa = cscd[1] & 0x1F == DISK && cscd[5] & 0x0F == NAA && cscd[7] == 16;
        names.push(is_naa.then(|| *cscd[8..].first_chunk().expect("24 bytes follow")));
    }
    Ok(names)
}

/// Segment descriptors (SPC-4 6.4.6).
fn parse_segments(
    list: &[u8],
    names: &[Option<[u8; 16]>],
    own: [u8; 16],
) -> Result<Vec<Segment>, Sense> {
    if list.len() > SEGMENTS_MAX * SEGMENT_LEN {
        return Err(illegal(Asc::TOO_MANY_SEGMENT_DESCRIPTORS));
    }
    let mut segments = Vec::new();
    for descriptor in list.chunks(SEGMENT_LEN) {
        if descriptor[0] != BLOCK_TO_BLOCK {
            return Err(illegal(Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE));
        }
        if descriptor.len() < SEGMENT_LEN || descriptor[2..4] != [0, SEGMENT_LEN as u8 - 4] {
            return Err(Sense::LIST_LENGTH_ERROR);
        }
        let (head, lbas) = (Cdb::new(descriptor), Cdb::new(&descriptor[12..]));
        let name = |index: u16| {
            let name = match index {
                THIS_UNIT => Some(own),
                index => names.get(usize::from(index)).copied().flatten(),
            };
            let unreachable = Sense::new(SenseKey::CopyAborted, Asc::UNREACHABLE_COPY_TARGET);
            name.ok_or(unreachable)
        };
        segments.push(Segment {
            source: name(head.u16(4))?,
            source_lba: lbas.u64(0),
            destination: name(head.u16(6))?,
            destination_lba: lbas.u64(8),
            blocks: head.u16(10).into(),
        });
    }
    Ok(segments)
}

#[cfg(test)]
mod tests;
