//! MODE SELECT (6), (10) (SPC-4 6.11, 6.12): a header, block descriptors that must match the disk, and pages, of
//! which only the control page has changeable fields. Nothing is changed unless the whole list is valid.

use super::Command;
use super::mode_sense::{Page, caching, control, control_changeable, control_values};
use crate::action::{Action, ParameterList};
use crate::cdb::Cdb;
use crate::change::{Change, ChangeKind};
use crate::ending::Ending;
use crate::mode::Control;
use crate::nexus::NexusId;
use crate::sense::Sense;
use crate::unit::LogicalUnit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModeSelect {
    /// SP: also save the new values.
    save: bool,
    long: bool,
    list_len_bytes: u16,
}

pub(crate) fn decode_6(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, false, cdb.u8(4).into())
}

pub(crate) fn decode_10(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, true, cdb.u16(7))
}

fn decode(cdb: &Cdb, long: bool, list_len_bytes: u16) -> Result<Command, Sense> {
    // Without PF the pages would be in a vendor-specific format.
    if !cdb.bit(1, 4) {
        return Err(Sense::invalid_cdb_field(1, Some(4)));
    }
    Ok(Command::ModeSelect(ModeSelect {
        save: cdb.bit(1, 0),
        long,
        list_len_bytes,
    }))
}

impl ModeSelect {
    /// Whether it comes with any values.
    pub(super) fn has_list(self) -> bool {
        self.list_len_bytes > 0
    }

    pub(super) fn begin(self) -> Result<Action, Sense> {
        Ok(match self.list_len_bytes {
            0 => Action::End(Ending::GOOD),
            len => Action::Parameters(ParameterList::new(len.into())),
        })
    }

    pub(super) fn resume(
        self,
        unit: &LogicalUnit,
        nexus: NexusId,
        list: &[u8],
    ) -> Result<Action, Sense> {
        let pages_at = self.check_header(unit, list)?;
        let Some(values) = check_pages(unit, list, pages_at)? else {
            return Ok(Action::End(Ending::GOOD));
        };
        let save = self.save;
        let what = ChangeKind::Mode { values, save };
        Ok(Action::Change(Change { nexus, what }))
    }

    /// Checks the header and block descriptors, and returns where the pages begin.
    fn check_header(self, unit: &LogicalUnit, list: &[u8]) -> Result<usize, Sense> {
        let header_len = if self.long { 8 } else { 4 };
        let header = list.get(..header_len).ok_or(Sense::LIST_LENGTH_ERROR)?;
        let (descriptor_len, long_lba) = match self.long {
            true => (
                usize::from(u16::from_be_bytes([header[6], header[7]])),
                header[4] & 1 != 0,
            ),
            false => (usize::from(header[3]), false),
        };
        let descriptor = list
            .get(header_len..header_len + descriptor_len)
            .ok_or(Sense::LIST_LENGTH_ERROR)?;
        let shape = unit.shape();
        let (blocks, all_ones, block_size_at) = match (descriptor.len(), long_lba) {
            (0, _) => return Ok(header_len),
            (8, false) => {
                let blocks = u32::from_be_bytes([
                    descriptor[0],
                    descriptor[1],
                    descriptor[2],
                    descriptor[3],
                ]);
                (u64::from(blocks), u64::from(u32::MAX), 4)
            }
            (16, true) => (Cdb::new(descriptor).u64(0), u64::MAX, 12),
            _ => return Err(Sense::invalid_parameter(header_len as u16, None)),
        };
        let block_size = Cdb::new(&descriptor[block_size_at..]).u32(0);
        // 0 and all ones leave the number of blocks unchanged (SBC-3 6.5.2).
        let same = [0, all_ones, shape.len_blocks].contains(&blocks);
        if !same || block_size != shape.block_size_bytes {
            return Err(Sense::invalid_parameter(header_len as u16, None));
        }
        Ok(header_len + descriptor_len)
    }
}

/// Checks every page, and returns the control page's values if there is one.
fn check_pages(unit: &LogicalUnit, list: &[u8], at: usize) -> Result<Option<Control>, Sense> {
    const PS: u8 = 0x80;
    let mut at = at;
    let mut values = None;
    let known: [(Page, Page); 2] = [
        (caching(unit.shape()), [0; 20]),
        (control(unit.mode().current), control_changeable()),
    ];
    while at < list.len() {
        let rest = &list[at..];
        let code = rest[0] & !PS;
        let found = known.iter().find(|(page, _)| page[0] == code);
        let Some((current, changeable)) = found else {
            return Err(Sense::invalid_parameter(at as u16, Some(5)));
        };
        let len = 2 + usize::from(current[1]);
        if rest.len() > 1 && rest[1] != current[1] {
            return Err(Sense::invalid_parameter(at as u16 + 1, None));
        }
        let page = rest.get(..len).ok_or(Sense::LIST_LENGTH_ERROR)?;
        for (index, byte) in page.iter().enumerate().skip(2) {
            if (byte ^ current[index]) & !changeable[index] != 0 {
                return Err(Sense::invalid_parameter((at + index) as u16, None));
            }
        }
        if changeable != &[0; 20] {
            let set = control_values(page);
            let set = set.map_err(|byte| Sense::invalid_parameter(at as u16 + byte, None))?;
            values = Some(set);
        }
        at += len;
    }
    Ok(values)
}

#[cfg(test)]
mod tests;
