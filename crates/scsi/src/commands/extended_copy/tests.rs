//! EXTENDED COPY: right and wrong lists, and what is told of a copy afterwards.

use super::*;
use crate::fixture::{NEXUS, data, identity, run, sense, thick, unit};

fn cdb(len: usize) -> Vec<u8> {
    let mut cdb = vec![0x83];
    cdb.extend([0; 9]);
    cdb.extend((len as u32).to_be_bytes());
    cdb.extend([0, 0]);
    cdb
}

/// A list of `cscds` descriptors of the fixture's disk and segments of 5 blocks between `indexes`.
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
    copy.ended(&unit, NEXUS, 1);
    assert_eq!(data(unit.begin(NEXUS, &status))[3..7], [8, 1, 0, 1]);
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
