//! WRITE SAME (10) and (16): repeated blocks, zeroes, and UNMAP.

use crate::fixture::*;
use crate::medium::{Extent, MediumOp};
use crate::sense::Asc;
use crate::{Action, DiskShape};

const EXTENT: Extent = Extent {
    lba: 8,
    blocks: 16,
    block_size_bytes: 512,
};
const UNMAP: u8 = 0x08;
const NDOB: u8 = 0x01;

#[test]
fn a_block_is_repeated_and_a_zero_block_is_said_so() {
    for cdb in [cdb_10(0x41, 0, 8, 16), cdb_16(0x93, 0, 8, 16)] {
        assert_eq!(run(thick(), &cdb).data_out_len_bytes(), 512);
        let block = vec![0xA6; 512];
        let op = medium(run_with(thick(), &cdb, &block));
        assert_eq!(
            op,
            MediumOp::WriteSame {
                extent: EXTENT,
                block
            }
        );
        let op = medium(run_with(thick(), &cdb, &[0; 512]));
        assert_eq!(
            op,
            MediumOp::Zero {
                extent: EXTENT,
                unmap: false
            }
        );
    }
}

#[test]
fn unmap_is_granted_only_for_zeroes() {
    for cdb in [cdb_10(0x41, UNMAP, 8, 16), cdb_16(0x93, UNMAP, 8, 16)] {
        let op = medium(run_with(thin(), &cdb, &[0; 512]));
        assert_eq!(
            op,
            MediumOp::Zero {
                extent: EXTENT,
                unmap: true
            }
        );
        let mut block = vec![0; 512];
        block[511] = 1;
        let op = medium(run_with(thin(), &cdb, &block));
        assert_eq!(
            op,
            MediumOp::WriteSame {
                extent: EXTENT,
                block
            }
        );
        // A disk without discard rejects the UNMAP bit.
        assert_eq!(sense(run(thick(), &cdb)).asc, Asc::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn without_a_data_buffer_zeroes_are_written() {
    let action = run(thin(), &cdb_16(0x93, NDOB | UNMAP, 8, 16));
    assert_eq!(action.data_out_len_bytes(), 0);
    assert_eq!(
        medium(action),
        MediumOp::Zero {
            extent: EXTENT,
            unmap: true
        }
    );
    // NDOB exists only in the 16-byte form; the other form still takes its block.
    assert_eq!(
        run(thin(), &cdb_10(0x41, NDOB, 8, 16)).data_out_len_bytes(),
        512
    );
}

#[test]
fn no_blocks_and_too_many_are_refused() {
    let most = thin().write_same_blocks_max;
    for cdb in [
        cdb_16(0x93, NDOB, 0, 0),
        cdb_16(0x93, 0, 8, 0),
        cdb_10(0x41, 0, 8, 0),
    ] {
        assert_eq!(sense(run(thin(), &cdb)).asc, Asc::INVALID_FIELD_IN_CDB);
    }
    assert_eq!(
        sense(run(thin(), &cdb_16(0x93, NDOB, 0, most as u32 + 1))).asc,
        Asc::INVALID_FIELD_IN_CDB
    );
    for lba in [LEN_BLOCKS + 1, 1 << 63, u64::MAX] {
        assert!(out_of_range(run(thin(), &cdb_16(0x93, 0, lba, 0))));
    }
    assert!(out_of_range(run(
        thin(),
        &cdb_10(0x41, 0, LEN_BLOCKS as u32 - 1, 2)
    )));
}

#[test]
fn anchors_protection_and_address_data_are_refused() {
    for flags in [0x10, 0x10 | UNMAP, 0x20, 0xE0, 0x02, 0x04] {
        for cdb in [cdb_10(0x41, flags, 0, 1), cdb_16(0x93, flags, 0, 1)] {
            assert_eq!(sense(run(thin(), &cdb)).asc, Asc::INVALID_FIELD_IN_CDB);
        }
    }
}

#[test]
fn exactly_one_block_must_be_offered() {
    let Action::Parameters(list) = run(thin(), &cdb_16(0x93, UNMAP, 0, 1)) else {
        panic!()
    };
    assert_eq!(list.check_offered(512), Ok(()));
    for offered in [0, 256, 1024] {
        assert_eq!(
            list.check_offered(offered).unwrap_err().asc,
            Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT
        );
    }
}

#[test]
fn a_read_only_disk_is_protected_before_any_data_comes() {
    let shape = DiskShape {
        read_only: true,
        ..thin()
    };
    for flags in [0, UNMAP] {
        assert!(write_protected(run(
            shape.clone(),
            &cdb_10(0x41, flags, 0, 1)
        )));
        assert!(write_protected(run(
            shape.clone(),
            &cdb_16(0x93, flags, 0, 1)
        )));
    }
}

#[test]
fn a_disk_that_became_read_only_while_the_block_came_is_protected() {
    let mut unit = unit(thin());
    let Action::Parameters(list) = unit.begin(NEXUS, &cdb_16(0x93, 0, 0, 1)) else {
        panic!()
    };
    unit.shared()
        .change(|state| state.mode.current.write_protect = true);
    assert!(write_protected(unit.resume(list, &[1; 512])));
}
