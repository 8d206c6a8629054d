//! READ and WRITE of every CDB length: which blocks they address, and what is refused.

use crate::fixture::*;
use crate::medium::{Extent, MediumOp};
use crate::sense::{Asc, KeySpecific};
use crate::{Action, DiskShape};

fn extent(lba: u64, blocks: u64) -> Extent {
    Extent {
        lba,
        blocks,
        block_size_bytes: 512,
    }
}

#[test]
fn every_size_of_read_and_write_names_the_same_blocks() {
    let extent = extent(0x1234, 8);
    let read = MediumOp::Read { extent, fua: false };
    for cdb in [
        vec![0x08, 0, 0x12, 0x34, 8, 0],
        cdb_10(0x28, 0, 0x1234, 8),
        cdb_12(0xA8, 0, 0x1234, 8),
        cdb_16(0x88, 0, 0x1234, 8),
    ] {
        let action = run(thick(), &cdb);
        assert_eq!(
            (action.data_in_len_bytes(), action.data_out_len_bytes()),
            (4096, 0)
        );
        assert_eq!(medium(action), read);
    }
    let write = MediumOp::Write { extent, fua: false };
    for cdb in [
        vec![0x0A, 0, 0x12, 0x34, 8, 0],
        cdb_10(0x2A, 0, 0x1234, 8),
        cdb_12(0xAA, 0, 0x1234, 8),
        cdb_16(0x8A, 0, 0x1234, 8),
    ] {
        let action = run(thick(), &cdb);
        assert_eq!(
            (action.data_in_len_bytes(), action.data_out_len_bytes()),
            (0, 4096)
        );
        assert_eq!(medium(action), write);
    }
}

#[test]
fn six_bytes_hold_21_bits_of_lba_and_0_means_256_blocks() {
    let shape = DiskShape::new(512, 1 << 30);
    let read = medium(run(shape, &[0x08, 0xFF, 0xFF, 0xFF, 0, 0]));
    assert_eq!(
        read,
        MediumOp::Read {
            extent: extent(0x1F_FFFF, 256),
            fua: false
        }
    );
}

#[test]
fn force_unit_access_is_heard_and_page_out_hints_are_taken() {
    for (flags, fua) in [(0x08, true), (0x10, false), (0x18, true), (0x02, false)] {
        let extent = extent(0, 1);
        for (opcode, op) in [
            (0x28, MediumOp::Read { extent, fua }),
            (0x2A, MediumOp::Write { extent, fua }),
        ] {
            assert_eq!(medium(run(thick(), &cdb_10(opcode, flags, 0, 1))), op);
        }
        let op = MediumOp::Write { extent, fua };
        assert_eq!(medium(run(thick(), &cdb_12(0xAA, flags, 0, 1))), op);
        assert_eq!(medium(run(thick(), &cdb_16(0x8A, flags, 0, 1))), op);
    }
}

#[test]
fn protection_information_is_refused() {
    let pointer = Some(KeySpecific::FieldPointer {
        in_cdb: true,
        byte: 1,
        bit: Some(7),
    });
    for protect in 1..8 {
        for cdb in [
            cdb_10(0x28, protect << 5, 0, 1),
            cdb_12(0xA8, protect << 5, 0, 1),
            cdb_16(0x88, protect << 5, 0, 1),
            cdb_10(0x2A, protect << 5, 0, 1),
            cdb_12(0xAA, protect << 5, 0, 1),
            cdb_16(0x8A, protect << 5, 0, 1),
        ] {
            let sense = sense(run(thick(), &cdb));
            assert_eq!(
                (sense.asc, sense.specific),
                (Asc::INVALID_FIELD_IN_CDB, pointer)
            );
        }
    }
}

#[test]
fn no_block_beyond_the_last_is_touched() {
    let len = LEN_BLOCKS as u32;
    for blocks in 1..=256 {
        for lba in [len + 1 - u32::from(blocks), 0x8000_0000, u32::MAX] {
            assert!(out_of_range(run(thick(), &cdb_10(0x28, 0, lba, blocks))));
            assert!(out_of_range(run(thick(), &cdb_10(0x2A, 0, lba, blocks))));
            assert!(out_of_range(run(
                thick(),
                &cdb_12(0xAA, 0, lba, blocks.into())
            )));
        }
    }
    assert!(out_of_range(run(thick(), &cdb_16(0x88, 0, u64::MAX, 1))));
    assert!(out_of_range(run(
        thick(),
        &cdb_16(0x8A, 0, 1 << 63, u32::MAX)
    )));
    // READ (6) addresses at most 2^21 blocks, and all of them exist here, but its length may still pass the end.
    assert!(out_of_range(run(thick(), &[0x08, 0x1F, 0xFF, 0xFF, 2, 0])));
}

#[test]
fn no_blocks_are_no_error_unless_they_start_outside() {
    for opcode in [0x28, 0x2A] {
        assert_eq!(run(thick(), &cdb_10(opcode, 0, 0, 0)), good());
        assert!(out_of_range(run(
            thick(),
            &cdb_10(opcode, 0, LEN_BLOCKS as u32 + 1, 0)
        )));
    }
}

#[test]
fn what_is_longer_than_the_longest_transfer_is_refused() {
    let longest = thick().transfer_blocks_max;
    assert!(matches!(
        run(thick(), &cdb_12(0xA8, 0, 0, longest)),
        Action::Medium(_)
    ));
    for (cdb, byte) in [
        (cdb_10(0x28, 0, 0, longest as u16 + 1), 7),
        (cdb_12(0xAA, 0, 0, longest + 1), 6),
        (cdb_16(0x88, 0, 0, longest + 1), 10),
    ] {
        let sense = sense(run(thick(), &cdb));
        assert_eq!(sense.asc, Asc::INVALID_FIELD_IN_CDB);
        let pointer = KeySpecific::FieldPointer {
            in_cdb: true,
            byte,
            bit: None,
        };
        assert_eq!(sense.specific, Some(pointer));
    }
}

#[test]
fn a_read_only_disk_reads_and_does_not_write() {
    let shape = DiskShape {
        read_only: true,
        ..thick()
    };
    assert!(matches!(
        run(shape.clone(), &cdb_10(0x28, 0, 0, 1)),
        Action::Medium(_)
    ));
    for cdb in [
        vec![0x0A, 0, 0, 0, 1, 0],
        cdb_10(0x2A, 0, 0, 1),
        cdb_12(0xAA, 0, 0, 1),
        cdb_16(0x8A, 0, 0, 1),
    ] {
        assert!(write_protected(run(shape.clone(), &cdb)));
    }
}

#[test]
fn a_write_of_half_a_block_is_refused_and_a_read_into_too_little_room_is_not() {
    let write = run(thick(), &cdb_10(0x2A, 0, 0, 2));
    assert_eq!(write.check_offered(1024), Ok(()));
    assert_eq!(write.check_offered(10000), Ok(()));
    // Only whole blocks are written, with an overflow residual.
    for offered in [0, 512] {
        assert_eq!(write.check_offered(offered), Ok(()));
    }
    for offered in [200, 1023] {
        let asc = write.check_offered(offered).unwrap_err().asc;
        assert_eq!(asc, Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    }
    assert_eq!(
        run(thick(), &cdb_10(0x28, 0, 0, 2)).check_offered(0),
        Ok(())
    );
    // VERIFY without data ignores any data-out.
    assert_eq!(
        run(thick(), &cdb_10(0x2F, 0, 0, 2)).check_offered(1024),
        Ok(())
    );
}

#[test]
fn blocks_of_4096_bytes_make_eight_times_the_bytes() {
    let op = medium(run(DiskShape::new(4096, 1 << 20), &cdb_10(0x28, 0, 3, 2)));
    let MediumOp::Read { extent, .. } = op else {
        panic!("{op:?}")
    };
    assert_eq!(
        (extent.offset_bytes(), extent.len_bytes()),
        (3 * 4096, 2 * 4096)
    );
}
