//! UNMAP: its parameter list, complete or malformed, and its limits.

use crate::fixture::*;
use crate::medium::MediumOp;
use crate::sense::Asc;
use crate::{Action, DiskShape};

fn cdb(list_len: usize) -> Vec<u8> {
    cdb_10(0x42, 0, 0, list_len as u16)
}

fn list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let descriptors_len = ranges.len() as u16 * 16;
    let mut list = (descriptors_len + 6).to_be_bytes().to_vec();
    list.extend(descriptors_len.to_be_bytes());
    list.extend([0; 4]);
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

fn unmap(ranges: &[(u64, u32)]) -> Action {
    let list = list(ranges);
    run_with(thin(), &cdb(list.len()), &list)
}

#[test]
fn ranges_keep_their_order_and_empty_ones_fall_out() {
    let op = medium(unmap(&[
        (8, 4),
        (LEN_BLOCKS, 0),
        (0, 2),
        (LEN_BLOCKS - 1, 1),
    ]));
    let MediumOp::Unmap { extents } = op else {
        panic!("{op:?}")
    };
    let ranges: Vec<_> = extents
        .iter()
        .map(|extent| (extent.lba, extent.blocks))
        .collect();
    assert_eq!(ranges, [(8, 4), (0, 2), (LEN_BLOCKS - 1, 1)]);
}

#[test]
fn nothing_to_unmap_is_no_error() {
    assert_eq!(run(thin(), &cdb(0)), good());
    assert_eq!(unmap(&[]), good());
    assert_eq!(unmap(&[(LEN_BLOCKS, 0)]), good());
}

#[test]
fn one_range_outside_refuses_them_all() {
    assert!(out_of_range(unmap(&[(0, 1), (LEN_BLOCKS, 1)])));
    assert!(out_of_range(unmap(&[(0, 1), (LEN_BLOCKS - 1, 2)])));
    assert!(out_of_range(unmap(&[(u64::MAX, 1)])));
}

#[test]
fn limits_of_ranges_and_blocks_hold() {
    let most = 1 << 16;
    assert!(matches!(unmap(&[(0, most - 1), (0, 1)]), Action::Medium(_)));
    assert_eq!(
        sense(unmap(&[(0, most), (0, 1)])).asc,
        Asc::INVALID_FIELD_IN_PARAMETER_LIST
    );
    assert!(matches!(unmap(&[(0, 1); 4]), Action::Medium(_)));
    assert_eq!(
        sense(unmap(&[(0, 1); 5])).asc,
        Asc::INVALID_FIELD_IN_PARAMETER_LIST
    );
}

#[test]
fn a_list_that_is_cut_off_is_refused() {
    let whole = list(&[(0, 1), (1, 1)]);
    for len in [1, 7, 8, 39] {
        let action = match unit(thin()).begin(NEXUS, &cdb(len)) {
            Action::Parameters(list) => unit(thin()).resume(list, &whole[..len]),
            action => action,
        };
        assert_eq!(
            sense(action).asc,
            Asc::PARAMETER_LIST_LENGTH_ERROR,
            "{len} bytes"
        );
    }
    // Also with fewer bytes than the CDB says.
    let Action::Parameters(list) = run(thin(), &cdb(whole.len())) else {
        panic!()
    };
    assert_eq!(
        list.check_offered(39).unwrap_err().asc,
        Asc::PARAMETER_LIST_LENGTH_ERROR
    );
    assert_eq!(list.check_offered(4096), Ok(()));
}

#[test]
fn the_rest_of_a_broken_descriptor_is_ignored() {
    let mut list = list(&[(3, 1)]);
    list[3] += 10;
    list.extend([0xFF; 10]);
    let op = medium(run_with(thin(), &cdb(list.len()), &list));
    let MediumOp::Unmap { extents } = op else {
        panic!("{op:?}")
    };
    assert_eq!(extents.len(), 1);
}

#[test]
fn only_a_writable_disk_with_discard_unmaps() {
    let list = cdb(24);
    assert_eq!(
        sense(run(thick(), &list)).asc,
        Asc::INVALID_COMMAND_OPERATION_CODE
    );
    assert!(write_protected(run(
        DiskShape {
            read_only: true,
            ..thin()
        },
        &list
    )));
    assert_eq!(
        sense(run(thin(), &cdb_10(0x42, 1, 0, 24))).asc,
        Asc::INVALID_FIELD_IN_CDB
    );
}
