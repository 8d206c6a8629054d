//! REPORT SUPPORTED OPERATION CODES (SPC-4 6.35): the opcode table in wire format. With RCTD, each command also gets
//! a timeouts descriptor, which specifies no timeout.

use super::opcode_table::{OpcodeTable, SupportedCommand};
use super::{Command, reply};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::sense::Sense;
use crate::shape::DiskShape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportOpcodes {
    timeouts: bool,
    what: ReportingOptions,
    allocation_len_bytes: u32,
}

/// REPORTING OPTIONS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReportingOptions {
    /// 000b.
    All,
    /// 001b: a command without service actions.
    Opcode(u8),
    /// 010b: a command with service actions.
    Action(u8, u16),
    /// 011b: either.
    Either(u8, u16),
}

pub(crate) fn decode(cdb: &Cdb) -> Result<Command, Sense> {
    let (opcode, service_action) = (cdb.u8(3), cdb.u16(4));
    let what = match cdb.u8(2) & 0b111 {
        0b000 => ReportingOptions::All,
        0b001 => ReportingOptions::Opcode(opcode),
        0b010 => ReportingOptions::Action(opcode, service_action),
        0b011 => ReportingOptions::Either(opcode, service_action),
        _ => return Err(Sense::invalid_cdb_field(2, Some(2))),
    };
    let (timeouts, allocation_len_bytes) = (cdb.bit(2, 7), cdb.u32(6));
    Ok(Command::ReportOpcodes(ReportOpcodes {
        timeouts,
        what,
        allocation_len_bytes,
    }))
}

/// LENGTH 10, nothing else: no timeout is specified (SPC-4 6.35).
const NO_TIMEOUTS: [u8; 12] = [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

impl ReportOpcodes {
    pub(super) fn begin(self, shape: &DiskShape, table: &OpcodeTable) -> Result<Action, Sense> {
        let data = match self.what {
            ReportingOptions::All => self.all(shape, table),
            ReportingOptions::Opcode(opcode) => {
                let rows = table.of(opcode);
                if rows.iter().any(|row| row.service_action.is_some()) {
                    return Err(Sense::invalid_cdb_field(2, Some(2)));
                }
                self.one(shape, rows.first())
            }
            ReportingOptions::Action(opcode, service_action) => {
                let rows = table.of(opcode);
                if rows.iter().any(|row| row.service_action.is_none()) {
                    return Err(Sense::invalid_cdb_field(2, Some(2)));
                }
                self.one(shape, with_action(rows, service_action))
            }
            ReportingOptions::Either(opcode, service_action) => {
                self.one(shape, with_action(table.of(opcode), service_action))
            }
        };
        Ok(reply(data, self.allocation_len_bytes))
    }

    fn all(&self, shape: &DiskShape, table: &OpcodeTable) -> Vec<u8> {
        const SERVACTV: u8 = 0x01;
        const CTDP: u8 = 0x02;
        let mut data = vec![0; 4];
        for row in table.rows.iter().filter(|row| (row.supported)(shape)) {
            let flags = if row.service_action.is_some() {
                SERVACTV
            } else {
                0
            };
            let flags = flags | if self.timeouts { CTDP } else { 0 };
            let [action_high, action_low] = service_action_of(row).to_be_bytes();
            let cdb_len = row.usage.len() as u8 + 1;
            data.extend([row.opcode, 0, action_high, action_low, 0, flags, 0, cdb_len]);
            if self.timeouts {
                data.extend(NO_TIMEOUTS);
            }
        }
        let len = (data.len() - 4) as u32;
        data[..4].copy_from_slice(&len.to_be_bytes());
        data
    }

    fn one(&self, shape: &DiskShape, row: Option<&SupportedCommand>) -> Vec<u8> {
        const SUPPORTED: u8 = 0b011;
        const NOT_SUPPORTED: u8 = 0b001;
        const CTDP: u8 = 0x80;
        let Some(row) = row.filter(|row| (row.supported)(shape)) else {
            return vec![0, NOT_SUPPORTED, 0, 0];
        };
        let timeouts = if self.timeouts { CTDP } else { 0 };
        let mut data = vec![
            0,
            timeouts | SUPPORTED,
            0,
            row.usage.len() as u8 + 1,
            row.opcode,
        ];
        data.extend(row.usage);
        // In the usage map, the service action's bits hold its value, as the opcode's do.
        if let Some(service_action) = row.service_action {
            data[5] = data[5] & 0xE0 | service_action;
        }
        if self.timeouts {
            data.extend(NO_TIMEOUTS);
        }
        data
    }
}

fn service_action_of(row: &SupportedCommand) -> u16 {
    row.service_action.unwrap_or(0).into()
}

fn with_action(rows: &[SupportedCommand], service_action: u16) -> Option<&SupportedCommand> {
    rows.iter()
        .find(|row| service_action_of(row) == service_action)
}

#[cfg(test)]
mod tests;
