//! REPORT LUNS (SPC-4 6.33): any LUN answers for the whole target, even one without a logical unit.

use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::lun::Lun;
use crate::sense::Sense;

/// A REPORT LUNS command that waits for the transport to supply the target's LUNs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportLuns {
    select: Select,
    allocation_len_bytes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Select {
    /// The logical units, with or without well-known ones, of which this target has none.
    Units,
    /// Only the well-known ones.
    WellKnown,
}

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    let select = match cdb.u8(2) {
        0x00 | 0x02 => Select::Units,
        0x01 => Select::WellKnown,
        _ => return Err(Sense::invalid_cdb_field(2, None)),
    };
    Ok(Command::ReportLuns(ReportLuns {
        select,
        allocation_len_bytes: cdb.u32(6),
    }))
}

impl ReportLuns {
    /// Replies with `luns`, in their order, truncated to the allocation length. The LUN LIST LENGTH field still gives
    /// the full length.
    pub fn reply(&self, luns: &[Lun]) -> Action {
        let luns = if self.select == Select::WellKnown {
            &[]
        } else {
            luns
        };
        let mut data = vec![0; 8];
        data[..4].copy_from_slice(&(luns.len() as u32 * 8).to_be_bytes());
        data.extend(luns.iter().flat_map(|lun| lun.encode()));
        reply(data, self.allocation_len_bytes)
    }
}

#[cfg(test)]
mod tests;
