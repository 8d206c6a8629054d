//! MODE SENSE (6) and (10): headers, the caching page, and unsupported pages.

use crate::DiskShape;
use crate::fixture::*;
use crate::sense::Asc;

const DBD: u8 = 0x08;
const LLBAA: u8 = 0x10;
const CHANGEABLE: u8 = 0x40;

fn six(shape: DiskShape, flags: u8, page: u8) -> Vec<u8> {
    data(run(shape, &[0x1A, flags, page, 0, 255, 0]))
}

fn ten(shape: DiskShape, flags: u8, page: u8) -> Vec<u8> {
    data(run(shape, &[0x5A, flags, page, 0, 0, 0, 0, 1, 0, 0]))
}

#[test]
fn the_header_states_the_length_that_follows_it() {
    for flags in [0, DBD] {
        for page in [0x08, 0x0A, 0x3F] {
            let reply = six(thick(), flags, page);
            assert_eq!(usize::from(reply[0]), reply.len() - 1);
            let reply = ten(thick(), flags, page);
            assert_eq!(reply[..2], (reply.len() as u16 - 2).to_be_bytes());
        }
    }
    assert_eq!(six(thick(), 0, 0x3F).len(), 4 + 8 + 20 + 12);
    assert_eq!(six(thick(), DBD, 0x3F).len(), 4 + 20 + 12);
}

#[test]
fn the_device_parameter_says_fua_works_and_whether_writes_do() {
    assert_eq!(six(thick(), 0, 0x3F)[2], 0x10);
    assert_eq!(ten(thick(), 0, 0x3F)[3], 0x10);
    let read_only = DiskShape {
        read_only: true,
        ..thick()
    };
    assert_eq!(six(read_only.clone(), 0, 0x3F)[2], 0x90);
    assert_eq!(ten(read_only, 0, 0x3F)[3], 0x90);
}

#[test]
fn write_cache_enable_is_the_volumes() {
    let caching = |write_cache| {
        six(
            DiskShape {
                write_cache,
                ..thick()
            },
            DBD,
            0x08,
        )[4..]
            .to_vec()
    };
    assert_eq!(caching(true)[..3], [0x08, 0x12, 0x04]);
    assert_eq!(caching(false)[..3], [0x08, 0x12, 0x00]);
}

#[test]
fn four_fields_are_changeable_and_the_control_page_can_be_saved() {
    let reply = six(thick(), DBD, CHANGEABLE | 0x3F);
    let mut expected = vec![0; 32];
    expected[..2].copy_from_slice(&[0x08, 0x12]);
    expected[20..26].copy_from_slice(&[0x8A, 0x0A, 0x04, 0x06, 0x08, 0x40]);
    assert_eq!(reply[4..], expected);
    for values in [0x80, 0xC0] {
        assert_eq!(six(thick(), 0, values | 0x3F), six(thick(), 0, 0x3F));
    }
}

#[test]
fn commands_aborted_by_others_are_answered_unless_that_is_switched_off() {
    let reply = six(thick(), DBD, 0x0A);
    assert_eq!(reply[4..10], [0x8A, 0x0A, 0x02, 0x10, 0, 0x40]);
}

#[test]
fn a_page_alone_is_the_page_among_all() {
    let all = six(thick(), DBD, 0x3F);
    assert_eq!(six(thick(), DBD, 0x08)[4..], all[4..24]);
    assert_eq!(six(thick(), DBD, 0x0A)[4..], all[24..]);
}

#[test]
fn block_descriptors_come_short_long_or_not_at_all() {
    let reply = ten(thick(), 0, 0x08);
    assert_eq!(reply[4..8], [0, 0, 0, 8]);
    assert_eq!(reply[8..16], [0, 0x20, 0, 0, 0, 0, 2, 0]);
    let reply = ten(DiskShape::new(4096, 1 << 33), LLBAA, 0x08);
    assert_eq!(reply[4..8], [1, 0, 0, 16]);
    assert_eq!(
        reply[8..24],
        [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]
    );
    assert_eq!(ten(thick(), LLBAA | DBD, 0x08)[4..8], [0; 4]);
    // A number of blocks that does not fit into 32 bits.
    assert_eq!(six(DiskShape::new(512, 1 << 33), 0, 0x08)[4..8], [0xFF; 4]);
}

#[test]
fn unknown_pages_are_refused_and_all_subpages_are_the_pages() {
    for cdb in [[0x1A, 0, 0x1C, 0, 255, 0], [0x1A, 0, 0x0A, 1, 255, 0]] {
        assert_eq!(sense(run(thick(), &cdb)).asc, Asc::INVALID_FIELD_IN_CDB);
    }
    let all = data(run(thick(), &[0x1A, 0, 0x3F, 0xFF, 255, 0]));
    assert_eq!(all, six(thick(), 0, 0x3F));
}

#[test]
fn the_allocation_length_cuts_the_reply() {
    assert_eq!(data(run(thick(), &[0x1A, 0, 0x3F, 0, 4, 0])).len(), 4);
}
