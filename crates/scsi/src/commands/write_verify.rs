//! WRITE AND VERIFY (10), (12), (16) (SBC-3 5.36 to 5.38): a write that completes only once the data is on the medium
//! and has been read back, and compared if BYTCHK asks for it.

use super::Command;
use super::read_write::{PROTECT, transfer_extent, unless_empty};
use crate::action::Action;
use crate::cdb::Cdb;
use crate::medium::MediumOp;
use crate::sense::Sense;
use crate::shape::DiskShape;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteVerify {
    lba: u64,
    blocks: u32,
    compare: bool,
    len_field: u16,
}

pub(crate) fn decode_10(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, cdb.u32(2).into(), cdb.u16(7).into(), 7)
}

pub(crate) fn decode_12(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, cdb.u32(2).into(), cdb.u32(6), 6)
}

pub(crate) fn decode_16(cdb: &Cdb) -> Result<Command, Sense> {
    decode(cdb, cdb.u64(2), cdb.u32(10), 10)
}

fn decode(cdb: &Cdb, lba: u64, blocks: u32, len_field: u16) -> Result<Command, Sense> {
    // The upper bit of BYTCHK is defined for VERIFY only.
    const BYTCHK_HIGH: u8 = 0x04;
    cdb.must_be_zero(1, PROTECT)?;
    cdb.must_be_zero(1, BYTCHK_HIGH)?;
    Ok(Command::WriteVerify(WriteVerify {
        lba,
        blocks,
        compare: cdb.bit(1, 1),
        len_field,
    }))
}

impl WriteVerify {
    pub(super) fn begin(self, shape: &DiskShape) -> Result<Action, Sense> {
        shape.check_writable()?;
        let extent = transfer_extent(shape, self.lba, self.blocks, self.len_field)?;
        let compare = self.compare;
        Ok(unless_empty(extent, || MediumOp::WriteVerify {
            extent,
            compare,
        }))
    }
}

#[cfg(test)]
mod tests {
    use crate::MediumOp;
    use crate::fixture::{
        LEN_BLOCKS, cdb_10, cdb_12, cdb_16, medium, out_of_range, run, sense, thick,
    };

    #[test]
    fn every_form_writes_and_compares_if_asked() {
        for (flags, compared) in [(0x10, false), (0x12, true)] {
            for cdb in [
                cdb_10(0x2E, flags, 3, 2),
                cdb_12(0xAE, flags, 3, 2),
                cdb_16(0x8E, flags, 3, 2),
            ] {
                let action = run(thick(), &cdb);
                assert_eq!(action.data_out_len_bytes(), 1024);
                let op = medium(action);
                let MediumOp::WriteVerify { extent, compare } = op else {
                    panic!("{op:?}")
                };
                assert_eq!((extent.lba, extent.blocks, compare), (3, 2, compared));
            }
        }
    }

    #[test]
    fn what_it_cannot_do_is_refused() {
        for flags in [0x04, 0x06, 0x20] {
            sense(run(thick(), &cdb_10(0x2E, flags, 0, 1)));
        }
        let beyond = cdb_10(0x2E, 0, LEN_BLOCKS as u32, 0);
        assert!(out_of_range(run(thick(), &beyond)));
    }
}
