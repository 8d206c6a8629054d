//! Shapes of disks: which are valid, and where an extent may end.

use super::*;
use crate::fixture::{LEN_BLOCKS, thick, thin};

#[test]
fn usual_shapes_are_accepted() {
    for shape in [
        thick(),
        thin(),
        DiskShape::new(4096, 1),
        DiskShape::new(512, 1 << 54),
    ] {
        assert_eq!(shape.check(), Ok(()));
    }
}

#[test]
fn impossible_shapes_are_refused_by_name() {
    let refusal = |change: fn(&mut DiskShape)| {
        let mut shape = thin();
        change(&mut shape);
        shape.check().unwrap_err().to_string()
    };
    assert!(refusal(|s| s.block_size_bytes = 520).contains("520"));
    assert!(refusal(|s| s.block_size_bytes = 0).contains("512 or 4096"));
    assert!(refusal(|s| s.physical_block_bytes = 1536).contains("1536"));
    assert!(refusal(|s| s.physical_block_bytes = 256).contains("256"));
    assert!(refusal(|s| s.len_blocks = 0).contains("0 blocks"));
    assert!(refusal(|s| s.len_blocks = (1 << 54) + 1).contains("2^63"));
    assert!(refusal(|s| s.transfer_blocks_max = 0).contains("transfer_blocks_max"));
    assert!(refusal(|s| s.write_same_blocks_max = 0).contains("write_same_blocks_max"));
    assert!(refusal(|s| s.discard.as_mut().unwrap().alignment_blocks = 8).contains("0 to 7"));
    assert!(refusal(|s| s.discard.as_mut().unwrap().unmap_ranges_max = 4096).contains("4095"));
}

#[test]
fn an_extent_ends_with_the_medium() {
    let shape = thick();
    assert!(shape.extent(0, LEN_BLOCKS).is_ok());
    assert!(shape.extent(LEN_BLOCKS - 1, 1).is_ok());
    for (lba, blocks) in [
        (LEN_BLOCKS - 1, 2),
        (LEN_BLOCKS, 0),
        (u64::MAX, 1),
        (1, u64::MAX),
    ] {
        let sense = shape.extent(lba, blocks).unwrap_err();
        assert_eq!(sense.asc, Asc::LBA_OUT_OF_RANGE);
        // The first block that does not exist.
        assert_eq!(sense.information, Some(lba.max(LEN_BLOCKS)));
    }
}

#[test]
fn no_blocks_can_mean_the_rest() {
    let shape = thick();
    assert_eq!(shape.extent_or_rest(10, 0).unwrap().blocks, LEN_BLOCKS - 10);
    assert_eq!(shape.extent_or_rest(10, 5).unwrap().blocks, 5);
    assert!(shape.extent_or_rest(LEN_BLOCKS, 0).is_err());
    assert!(shape.extent_or_rest(u64::MAX, 0).is_err());
}
