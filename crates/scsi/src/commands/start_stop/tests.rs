//! START STOP UNIT: stopping flushes, and nothing is ejected.

use crate::MediumOp;
use crate::fixture::*;
use crate::sense::Asc;

#[test]
fn stopping_flushes_the_whole_disk_unless_told_not_to() {
    let op = medium(run(thick(), &[0x1B, 0, 0, 0, 0x00, 0]));
    let MediumOp::Flush { extent } = op else {
        panic!("{op:?}")
    };
    assert_eq!((extent.lba, extent.blocks), (0, LEN_BLOCKS));
    for byte in [0x04, 0x01, 0x10, 0x30] {
        assert_eq!(run(thick(), &[0x1B, 0, 0, 0, byte, 0]), good());
    }
}

#[test]
fn a_disk_that_is_not_removable_does_not_eject() {
    for byte in [0x02, 0x03] {
        assert_eq!(
            sense(run(thick(), &[0x1B, 0, 0, 0, byte, 0])).asc,
            Asc::INVALID_FIELD_IN_CDB
        );
    }
}
