//! A command descriptor block with accessors for the decoders. It is padded to 16 bytes so that reading a field
//! cannot fail; CDBs that are too short have been refused by the opcode table.

use crate::sense::Sense;

/// The first 16 bytes of a CDB, zero-padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cdb([u8; Cdb::LEN]);

impl Cdb {
    const LEN: usize = 16;

    pub(crate) fn new(bytes: &[u8]) -> Cdb {
        if let Some(whole) = bytes.first_chunk() {
            return Cdb(*whole);
        }
        let mut cdb = [0; Cdb::LEN];
        cdb[..bytes.len()].copy_from_slice(bytes);
        Cdb(cdb)
    }

    pub(crate) fn bytes(&self) -> &[u8; Cdb::LEN] {
        &self.0
    }

    pub(crate) fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) << 16 | u32::from(self.u16(at + 2))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) << 32 | u64::from(self.u32(at + 4))
    }

    pub(crate) fn bit(&self, at: usize, bit: u8) -> bool {
        self.0[at] >> bit & 1 != 0
    }

    /// Refuses the command if any bit of `mask` in byte `at` is set, because this disk supports the field only as
    /// zero. The sense data points at the field's highest bit.
    pub(crate) fn must_be_zero(&self, at: usize, mask: u8) -> Result<(), Sense> {
        if self.0[at] & mask == 0 {
            Ok(())
        } else {
            let highest = 7 - mask.leading_zeros() as u8;
            Err(Sense::invalid_cdb_field(at as u16, Some(highest)))
        }
    }
}
