//! EXTENDED COPY: valid and invalid lists, and the results reported afterwards.

use super::*;
use crate::CopyError;
use crate::fixture::{NEXUS, data, identity, run, sense, thick, unit};

fn cdb(len: usize) -> Vec<u8> {
    let mut cdb = vec![0x83];
    cdb.extend([0; 9]);
    cdb.extend((len as u32).to_be_bytes());
    cdb.extend([0, 0]);
    cdb
}

/// A list with `cscds` descriptors of the fixture's disk, and segments of 5 blocks between `indexes`.
fn list(cscds: usize, indexes: &[(u16, u16)]) -> Vec<u8> {
    let mut list = vec![0; 16];
    list[0] = 9;
    list[2..4].copy_from_slice(&((cscds * CSCD_LEN) as u16).to_be_bytes());
    list[8..12].copy_from_slice(&((indexes.len() * SEGMENT_LEN) as u32).to_be_bytes());
    for _ in 0..cscds {
        list.extend([IDENTIFICATION, 0, 0, 0, 1, 3, 0, 16]);
        list.extend(identity().naa());
        list.extend([0; 8]);
    }
    for (source, destination) in indexes {
        list.extend([BLOCK_TO_BLOCK, 0, 0, 24]);
        list.extend(source.to_be_bytes());
        list.extend(destination.to_be_bytes());
        list.extend([0, 0, 0, 5]);
        list.extend(100_u64.to_be_bytes());
        list.extend(200_u64.to_be_bytes());
    }
    list
}

fn copy(list: &[u8]) -> Action {
    crate::fixture::run_with(thick(), &cdb(list.len()), list)
}

/// The list that [`list`] makes, under a LID4 header with this identifier.
fn long_list(list: &[u8], list_id: u32) -> Vec<u8> {
    let mut long = vec![0; 48];
    long[0] = 1;
    long[3] = 0x20;
    long[16] = 0xFF;
    long[20..24].copy_from_slice(&list_id.to_be_bytes());
    long[42..44].copy_from_slice(&list[2..4]);
    long[44..46].copy_from_slice(&list[10..12]);
    long.extend(&list[16..]);
    long
}

fn long_copy(list: &[u8]) -> Action {
    let mut cdb = cdb(list.len());
    cdb[1] = 1;
    crate::fixture::run_with(thick(), &cdb, list)
}

#[test]
fn a_segment_says_what_goes_where() {
    let Action::Copy(copy) = copy(&list(1, &[(0, 0)])) else {
        panic!("no copy")
    };
    let naa = identity().naa();
    let expected = Segment {
        source: naa,
        source_lba: 100,
        destination: naa,
        destination_lba: 200,
        blocks: 5,
    };
    assert_eq!(copy.segments, [expected]);
    let Action::Copy(long) = long_copy(&long_list(&list(1, &[(0, 0)]), 0x0102_0304)) else {
        panic!("no copy")
    };
    assert_eq!(
        (long.list_id, long.segments),
        (Some(0x0102_0304), copy.segments)
    );
    // The addressed unit itself needs no descriptor.
    let Action::Copy(own) = self::copy(&list(0, &[(THIS_UNIT, THIS_UNIT)])) else {
        panic!("no copy")
    };
    assert_eq!(own.segments, [expected]);
    assert_eq!(run(thick(), &cdb(0)), crate::fixture::good());
}

#[test]
fn what_is_too_long_too_short_or_unknown_is_refused() {
    let asc = |list: &[u8]| sense(copy(list)).asc;
    assert_eq!(asc(&list(17, &[(0, 0)])), Asc::TOO_MANY_TARGET_DESCRIPTORS);
    assert_eq!(
        asc(&list(1, &[(0, 0); 17])),
        Asc::TOO_MANY_SEGMENT_DESCRIPTORS
    );
    assert_eq!(
        asc(&list(17, &[(0, 0); 17])),
        Asc::PARAMETER_LIST_LENGTH_ERROR
    );
    let right = list(1, &[(0, 0)]);
    for len in 16..right.len() {
        assert_eq!(
            asc(&right[..len]),
            Asc::PARAMETER_LIST_LENGTH_ERROR,
            "{len} bytes"
        );
    }
    let mut other = right.clone();
    other[16] = 0xE0;
    assert_eq!(asc(&other), Asc::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE);
    let mut other = right.clone();
    other[16 + CSCD_LEN] = 0x03;
    assert_eq!(asc(&other), Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE);
    assert_eq!(sense(copy(&list(1, &[(0, 1)]))).key, SenseKey::CopyAborted);
}

#[test]
fn the_header_of_a_long_list_is_checked() {
    let right = long_list(&list(1, &[(0, 0)]), 7);
    assert!(matches!(long_copy(&right), Action::Copy(_)));
    for (byte, value) in [(0, 0), (3, 0x1C), (15, 1), (16, 0xE4), (47, 1)] {
        let mut wrong = right.clone();
        wrong[byte] = value;
        let asc = sense(long_copy(&wrong)).asc;
        assert_eq!(asc, Asc::INVALID_FIELD_IN_PARAMETER_LIST, "byte {byte}");
    }
    for len in 48..right.len() {
        let asc = sense(long_copy(&right[..len])).asc;
        assert_eq!(asc, Asc::PARAMETER_LIST_LENGTH_ERROR, "{len} bytes");
    }
}

#[test]
fn a_list_without_an_identifier_leaves_no_result() {
    const NO_IDENTIFIER: u8 = 0x18;
    let mut short = list(1, &[(0, 0)]);
    let mut long = long_list(&short, 0);
    (short[1], long[1]) = (NO_IDENTIFIER, NO_IDENTIFIER);
    assert_eq!(
        sense(copy(&short)).asc,
        Asc::INVALID_FIELD_IN_PARAMETER_LIST,
        "it has one"
    );
    short[0] = 0;
    for action in [copy(&short), long_copy(&long)] {
        let Action::Copy(copy) = action else {
            panic!("no copy")
        };
        let mut unit = unit(thick());
        copy.ended(&unit, NEXUS, 1, &Ending::GOOD);
        assert_eq!(
            sense(unit.begin(NEXUS, &cdb_status(0))).asc,
            Asc::INVALID_FIELD_IN_CDB
        );
    }
}

#[test]
fn a_failure_is_told_in_all_three_forms() {
    let mut unit = unit(thick());
    let Action::Copy(copy) = long_copy(&long_list(&list(1, &[(0, 0), (0, 0)]), 0x0900)) else {
        panic!("no copy")
    };
    copy.ended(&unit, NEXUS, 1, &CopyError::Unreachable.ending());
    let mut cdb = cdb_16_results(5);
    cdb[4] = 9;
    let long = data(unit.begin(NEXUS, &cdb));
    assert_eq!(long[..8], [0, 0, 0, 46, 1, 2, 0, 1]);
    // CHECK CONDITION, 18 bytes of sense data, 5 blocks of one segment.
    assert_eq!(long[12..16], [2, 18, 18, 0xF1]);
    assert_eq!(long[16..26], [0, 0, 0, 0, 0, 0, 0, 5, 0, 1]);
    assert_eq!((long[32] & 0x7F, long[34]), (0x70, 0x0A));
    let Action::Copy(copy) = self::copy(&list(1, &[(0, 0)])) else {
        panic!("no copy")
    };
    copy.ended(&unit, NEXUS, 0, &CopyError::Failed.ending());
    assert_eq!(
        data(unit.begin(NEXUS, &cdb_status(9))),
        [0, 0, 0, 8, 2, 0, 0, 0xF1, 0, 0, 0, 0]
    );
    let mut cdb = cdb_16_results(4);
    cdb[2] = 9;
    let details = data(unit.begin(NEXUS, &cdb));
    assert_eq!((details[3], details[56], details[59]), (74, 2, 18));
    assert_eq!((details[60] & 0x7F, details[62]), (0x70, 0x0A));
    copy.ended(&unit, NEXUS, 1, &Ending::GOOD);
    assert_eq!(data(unit.begin(NEXUS, &cdb)), [0; 4]);
}

#[test]
fn results_are_told_for_a_list_that_was_copied() {
    let mut unit = unit(thick());
    let mut status = cdb_status(9);
    assert_eq!(
        sense(unit.begin(NEXUS, &status)).asc,
        Asc::INVALID_FIELD_IN_CDB
    );
    let Action::Copy(copy) = copy(&list(1, &[(0, 0)])) else {
        panic!("no copy")
    };
    copy.ended(&unit, NEXUS, 1, &Ending::GOOD);
    assert_eq!(
        data(unit.begin(NEXUS, &status)),
        [0, 0, 0, 8, 1, 0, 1, 0xF1, 0, 0, 0, 5]
    );
    status[2] = 8;
    assert_eq!(
        sense(unit.begin(NEXUS, &status)).asc,
        Asc::INVALID_FIELD_IN_CDB
    );
    let parameters = data(run(thick(), &cdb_16_results(3)));
    assert_eq!(parameters[8..12], [0, 16, 0, 16]);
}

fn cdb_status(list_id: u8) -> Vec<u8> {
    let mut cdb = cdb_16_results(0);
    cdb[2] = list_id;
    cdb
}

fn cdb_16_results(action: u8) -> Vec<u8> {
    let mut cdb = vec![0x84, action];
    cdb.extend([0; 8]);
    cdb.extend([0, 0, 4, 0, 0, 0]);
    cdb
}
