//! REPORT LUNS (SPC-4 6.33): any LUN answers for the whole target, even one without a logical unit.

use super::Command;
use crate::action::ReportLuns;
use crate::cdb::Cdb;
use crate::sense::Sense;

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    let only_well_known = match cdb.u8(2) {
        0x00 | 0x02 => false,
        0x01 => true,
        _ => return Err(Sense::invalid_cdb_field(2, None)),
    };
    Ok(Command::ReportLuns(ReportLuns {
        only_well_known,
        allocation_len_bytes: cdb.u32(6),
    }))
}

#[cfg(test)]
mod tests;
