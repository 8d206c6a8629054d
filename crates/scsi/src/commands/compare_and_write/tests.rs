//! COMPARE AND WRITE: what is compared, written, and refused.

use crate::fixture::{
    cdb_16, good, medium, out_of_range, run, run_with, sense, thick, write_protected,
};
use crate::{Asc, DiskShape, MediumOp};

fn cdb(flags: u8, lba: u64, blocks: u8) -> Vec<u8> {
    cdb_16(0x89, flags, lba, blocks.into())
}

#[test]
fn it_takes_twice_its_extent_and_excludes_others() {
    let action = run(thick(), &cdb(0x08, 5, 2));
    assert_eq!(action.data_out_len_bytes(), 2048);
    assert_eq!(action.check_offered(2048), Ok(()));
    for wrong in [0, 1024, 2047, 2049, 4096] {
        assert!(action.check_offered(wrong).is_err(), "{wrong} bytes");
    }
    let op = medium(action);
    assert!(op.is_exclusive());
    let MediumOp::CompareAndWrite { extent, fua } = op else {
        panic!("{op:?}")
    };
    assert_eq!((extent.lba, extent.blocks, fua), (5, 2, true));
}

#[test]
fn limits_range_and_protection_are_kept() {
    let nothing = run(thick(), &cdb(0, 0, 0));
    assert_eq!(nothing.check_offered(0), Ok(()));
    let too_much = nothing.check_offered(512 * 512).unwrap_err();
    assert_eq!(too_much.asc, Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(run_with(thick(), &cdb(0, 0, 0), &[]), good());
    assert!(out_of_range(run(
        thick(),
        &cdb(0, crate::fixture::LEN_BLOCKS - 1, 2)
    )));
    let asc = |shape, cdb: &[u8]| sense(run(shape, cdb)).asc;
    assert_eq!(asc(thick(), &cdb(0, 0, 129)), Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(asc(thick(), &cdb(0x20, 0, 1)), Asc::INVALID_FIELD_IN_CDB);
    let read_only = DiskShape {
        read_only: true,
        ..thick()
    };
    assert!(write_protected(run(read_only, &cdb(0, 0, 1))));
    let without = DiskShape {
        compare_write_blocks_max: 0,
        ..thick()
    };
    assert_eq!(
        asc(without, &cdb(0, 0, 1)),
        Asc::INVALID_COMMAND_OPERATION_CODE
    );
}
