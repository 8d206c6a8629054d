//! What a table of commands is: a row for each, found by its operation code.

use super::Command;
use crate::cdb::Cdb;
use crate::sense::Sense;
use crate::shape::DiskShape;

/// One command supported by this disk.
pub(crate) struct SupportedCommand {
    pub(crate) opcode: u8,
    /// Set for opcodes with service actions (in the low five bits of byte 1).
    pub(crate) service_action: Option<u8>,
    /// The CDB USAGE DATA of SPC-4 6.35, without the opcode: a bit is set if it is evaluated. The CDB is one byte
    /// longer than this.
    pub(crate) usage: &'static [u8],
    pub(crate) decode: fn(&Cdb) -> Result<Command, Sense>,
    /// Whether a disk of this shape supports it.
    pub(crate) supported: fn(&DiskShape) -> bool,
}

/// The commands that a disk supports.
pub(crate) struct OpcodeTable {
    /// By operation code; the service actions of an opcode are adjacent.
    pub(crate) rows: &'static [SupportedCommand],
    /// The index of each opcode's first row, or [`OpcodeTable::NO_ROW`]: one lookup per command.
    first: [u8; 256],
}

impl OpcodeTable {
    const NO_ROW: u8 = 0xFF;

    /// A table of these rows.
    pub(crate) const fn new(rows: &'static [SupportedCommand]) -> OpcodeTable {
        assert!(rows.len() < Self::NO_ROW as usize);
        let mut first = [Self::NO_ROW; 256];
        let mut at = rows.len();
        while at > 0 {
            at -= 1;
            first[rows[at].opcode as usize] = at as u8;
        }
        OpcodeTable { rows, first }
    }

    /// The rows of an opcode: none, one, or one per service action.
    pub(crate) fn of(&self, opcode: u8) -> &'static [SupportedCommand] {
        let first = self.first[usize::from(opcode)];
        if first == Self::NO_ROW {
            return &[];
        }
        let rows = &self.rows[usize::from(first)..];
        let count = rows.iter().take_while(|row| row.opcode == opcode).count();
        &rows[..count]
    }
}
