//! VERIFY of every length, with and without data to compare.

use crate::fixture::*;
use crate::medium::{Extent, MediumOp};
use crate::sense::Asc;

const EXTENT: Extent = Extent {
    lba: 5,
    blocks: 3,
    block_size_bytes: 512,
};

fn all_sizes(bytchk: u8) -> [Vec<u8>; 3] {
    let flags = bytchk << 1;
    [
        cdb_10(0x2F, flags, 5, 3),
        cdb_12(0xAF, flags, 5, 3),
        cdb_16(0x8F, flags, 5, 3),
    ]
}

#[test]
fn without_byte_check_only_reading_is_tried() {
    for cdb in all_sizes(0) {
        let action = run(thick(), &cdb);
        assert_eq!(
            (action.data_in_len_bytes(), action.data_out_len_bytes()),
            (0, 0)
        );
        assert_eq!(medium(action), MediumOp::Verify { extent: EXTENT });
    }
}

#[test]
fn byte_check_takes_as_much_data_as_it_compares() {
    for cdb in all_sizes(1) {
        let action = run(thick(), &cdb);
        assert_eq!(action.data_out_len_bytes(), 3 * 512);
        assert_eq!(medium(action), MediumOp::Compare { extent: EXTENT });
    }
}

#[test]
fn byte_check_3_compares_each_block_with_one() {
    let block = vec![0xA6; 512];
    for cdb in all_sizes(3) {
        assert_eq!(run(thick(), &cdb).data_out_len_bytes(), 512);
        let op = medium(run_with(thick(), &cdb, &block));
        assert_eq!(
            op,
            MediumOp::CompareSame {
                extent: EXTENT,
                block: block.clone()
            }
        );
    }
}

#[test]
fn byte_check_2_and_protection_are_refused() {
    for cdb in all_sizes(2).into_iter().chain([cdb_10(0x2F, 0x20, 5, 3)]) {
        assert_eq!(sense(run(thick(), &cdb)).asc, Asc::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn blocks_must_exist_and_may_be_none() {
    for flags in [0, 2, 6] {
        assert_eq!(run(thick(), &cdb_10(0x2F, flags, 0, 0)), good());
        let lba = LEN_BLOCKS as u32;
        assert!(out_of_range(run(thick(), &cdb_10(0x2F, flags, lba + 1, 0))));
        assert!(out_of_range(run(thick(), &cdb_10(0x2F, flags, lba - 1, 2))));
    }
}
