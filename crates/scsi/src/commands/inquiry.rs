//! INQUIRY (SPC-4 6.6): the standard data. Vital product data pages are in `vpd.rs`.

use super::opcode_table::OpcodeTable;
use super::vpd::{self, DIRECT_ACCESS};
use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::identity::{Identity, ascii_field};
use crate::sense::Sense;
use crate::unit::LogicalUnit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inquiry {
    /// The vital product data page, or `None` for standard data.
    page: Option<u8>,
    allocation_len_bytes: u16,
}

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    // CMDDT of SPC-2 asked about commands; it must not be mistaken for a plain INQUIRY.
    const CMDDT: u8 = 0x02;
    cdb.must_be_zero(1, CMDDT)?;
    let (vital, page) = (cdb.bit(1, 0), cdb.u8(2));
    if !vital && page != 0 {
        return Err(Sense::invalid_cdb_field(2, None));
    }
    let allocation_len_bytes = cdb.u16(3);
    Ok(Command::Inquiry(Inquiry {
        page: vital.then_some(page),
        allocation_len_bytes,
    }))
}

const NO_LOGICAL_UNIT: u8 = 0x7F;

impl Inquiry {
    pub(super) fn begin(self, unit: &LogicalUnit, table: &OpcodeTable) -> Result<Action, Sense> {
        let data = match self.page {
            None => standard(DIRECT_ACCESS, unit.identity(), unit.shape().removable),
            Some(page) => {
                let page = vpd::page(page, unit.identity(), unit.shape(), table);
                page.ok_or(Sense::invalid_cdb_field(2, None))?
            }
        };
        Ok(reply(data, self.allocation_len_bytes.into()))
    }

    /// The answer if there is no logical unit: standard data that says so (SPC-4 6.6), and no vital product data.
    pub(crate) fn begin_absent(self, identity: &Identity) -> Result<Action, Sense> {
        match self.page {
            None => {
                let data = standard(NO_LOGICAL_UNIT, identity, false);
                Ok(reply(data, self.allocation_len_bytes.into()))
            }
            Some(_) => Err(Sense::invalid_cdb_field(2, None)),
        }
    }
}

/// Standard INQUIRY data (SPC-4 6.6), 96 bytes.
fn standard(peripheral: u8, identity: &Identity, removable: bool) -> Vec<u8> {
    const RMB: u8 = 0x80;
    const VERSION_SPC_4: u8 = 0x06;
    const HISUP: u8 = 0x10;
    const RESPONSE_FORMAT: u8 = 0x02;
    const THIRD_PARTY_COPY: u8 = 0x08;
    const TPGS_IMPLICIT: u8 = 0x10;
    const MULTIP: u8 = 0x10;
    const CMDQUE: u8 = 0x02;
    const VERSION_DESCRIPTORS: [u16; 4] = [
        0x00A0, // SAM-5
        0x0460, // SPC-4
        0x04C0, // SBC-3
        0x0960, // iSCSI
    ];
    let mut data = vec![0; 96];
    data[0] = peripheral;
    data[1] = if removable { RMB } else { 0 };
    data[2] = VERSION_SPC_4;
    data[3] = HISUP | RESPONSE_FORMAT;
    data[4] = (data.len() - 5) as u8;
    data[5] = TPGS_IMPLICIT | THIRD_PARTY_COPY;
    data[6] = MULTIP;
    data[7] = CMDQUE;
    data[8..16].copy_from_slice(&ascii_field::<8>(&identity.vendor));
    data[16..32].copy_from_slice(&ascii_field::<16>(&identity.product));
    data[32..36].copy_from_slice(&ascii_field::<4>(&identity.revision));
    data[58..66].copy_from_slice(VERSION_DESCRIPTORS.map(u16::to_be_bytes).as_flattened());
    data
}

#[cfg(test)]
mod tests;
