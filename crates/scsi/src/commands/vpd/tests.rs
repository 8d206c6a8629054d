//! The vital product data pages: names, limits and provisioning.

use crate::fixture::*;
use crate::{DiskShape, Identity, LogicalUnit};

fn page_of(identity: Identity, shape: DiskShape, code: u8) -> Vec<u8> {
    let mut unit = LogicalUnit::new(identity, shape).unwrap();
    let page = data(unit.begin(NEXUS, &[0x12, 1, code, 4, 0, 0]));
    assert_eq!(page[..2], [0, code]);
    assert_eq!(
        usize::from(u16::from_be_bytes([page[2], page[3]])),
        page.len() - 4
    );
    page[4..].to_vec()
}

fn page(shape: DiskShape, code: u8) -> Vec<u8> {
    page_of(identity(), shape, code)
}

/// Association, code set, type and body of each designator of page 83h.
fn designators(mut page: &[u8]) -> Vec<(u8, u8, u8, Vec<u8>)> {
    let mut found = Vec::new();
    while let [first, second, _, len, rest @ ..] = page {
        let (body, rest) = rest.split_at(usize::from(*len));
        found.push((second >> 4 & 3, first & 0xF, second & 0xF, body.to_vec()));
        let of_transport = second >> 4 & 3 != 0;
        assert_eq!(second & 0x80 != 0, of_transport, "PIV");
        assert_eq!(first >> 4, if of_transport { 5 } else { 0 }, "iSCSI");
        page = rest;
    }
    assert!(page.is_empty());
    found
}

#[test]
fn the_list_of_pages_is_sorted_and_each_page_exists() {
    let codes = page(thick(), 0x00);
    assert_eq!(codes, [0x00, 0x80, 0x83, 0x86, 0x8F, 0xB0, 0xB1, 0xB2]);
    for code in codes {
        page(thick(), code);
    }
}

#[test]
fn the_serial_number_is_the_identitys() {
    assert_eq!(page(thick(), 0x80), b"0123456789abcdef");
    let long = Identity {
        serial: "x".repeat(100),
        ..identity()
    };
    assert_eq!(page_of(long, thick(), 0x80).len(), 64);
}

#[test]
fn designators_name_the_unit_its_port_and_its_target() {
    let found = designators(&page(thick(), 0x83));
    // NAA 6h, a locally administered company id, the UUID's last 100 bits.
    let naa = 0x6025_3534_5566_4788_99AA_BBCC_DDEE_FF00_u128.to_be_bytes();
    assert_eq!(found[0], (0, 1, 3, naa.to_vec()));
    assert_eq!(found[1], (0, 2, 1, b"SANSTONE0123456789abcdef".to_vec()));
    assert_eq!(found[2], (1, 1, 4, vec![0, 0, 0, 2]));
    assert_eq!(found[3], (1, 1, 5, vec![0, 0, 0, 3]));
    let port = b"iqn.2026-11.io.sanstone:t0,t,0x0001\0".to_vec();
    assert_eq!(found[4], (1, 3, 8, port));
    assert_eq!(
        found[5],
        (2, 3, 8, b"iqn.2026-11.io.sanstone:t0\0\0".to_vec())
    );
}

#[test]
fn names_of_any_length_end_in_a_zero_and_fit() {
    for len in 0..300 {
        let mut identity = identity();
        identity.port.target_name = "n".repeat(len);
        for (_, _, kind, body) in designators(&page_of(identity, thick(), 0x83)) {
            if kind == 8 {
                assert_eq!(body.len() % 4, 0);
                assert_eq!(body.last(), Some(&0));
            }
        }
    }
}

#[test]
fn block_limits_are_the_shapes() {
    let mut shape = thin();
    shape.transfer_blocks_granularity = 0x1234;
    shape.transfer_blocks_optimal = 0x0102_0304;
    let discard = shape.discard.as_mut().unwrap();
    (discard.granularity_blocks, discard.alignment_blocks) = (8, 5);
    let page = page(shape, 0xB0);
    assert_eq!(page.len(), 60);
    assert_eq!(page[..4], [1, 128, 0x12, 0x34]);
    assert_eq!(page[4..8], 8192_u32.to_be_bytes());
    assert_eq!(page[8..12], [1, 2, 3, 4]);
    assert_eq!(page[16..20], (1_u32 << 16).to_be_bytes());
    assert_eq!(page[20..24], 4_u32.to_be_bytes());
    assert_eq!(page[24..28], 8_u32.to_be_bytes());
    assert_eq!(page[28..32], [0x80, 0, 0, 5]);
    assert_eq!(page[32..40], (1_u64 << 15).to_be_bytes());
    assert_eq!(page[40..44], [0, 0, 0, 64]);
    assert_eq!(page[44..], [0; 16]);
    let mut in_units = thin();
    (in_units.atomic_blocks_max, in_units.atomic_blocks_unit) = (32, 16);
    let page = self::page(in_units, 0xB0);
    assert_eq!(page[40..52], [0, 0, 0, 32, 0, 0, 0, 16, 0, 0, 0, 16]);
}

#[test]
fn a_disk_without_discard_limits_none() {
    assert_eq!(page(thick(), 0xB0)[16..32], [0; 16]);
    assert_eq!(page(thick(), 0xB2), [0; 4]);
}

#[test]
fn a_thin_disk_says_how_it_discards() {
    assert_eq!(page(thin(), 0xB2), [0, 0xE4, 2, 0]);
    let mut shape = thin();
    shape.discard.as_mut().unwrap().zeroes_after_discard = false;
    assert_eq!(page(shape, 0xB2), [0, 0xE0, 2, 0]);
}

#[test]
fn the_disk_does_not_rotate() {
    let page = page(thick(), 0xB1);
    assert_eq!((page.len(), &page[..2]), (60, &[0, 1][..]));
}

#[test]
fn task_attributes_and_the_cache_are_told() {
    let mut shape = thick();
    assert_eq!(page(shape.clone(), 0x86)[..4], [0, 0x07, 0x01, 0]);
    shape.write_cache = false;
    let page = page(shape, 0x86);
    assert_eq!((page.len(), page[2]), (60, 0));
}

#[test]
fn the_copy_page_lists_what_the_table_of_commands_has() {
    let page = page(thick(), 0x8F);
    let mut rest = &page[..];
    let mut found = Vec::new();
    while let [a, b, c, d, following @ ..] = rest {
        let (body, following) = following.split_at(usize::from(u16::from_be_bytes([*c, *d])));
        assert_eq!(body.len() % 4, 0);
        found.push((u16::from_be_bytes([*a, *b]), body.to_vec()));
        rest = following;
    }
    let kinds: Vec<u16> = found.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [0x0001, 0x0004, 0x0008, 0x000C, 0x8001]);
    assert_eq!(found[0].1, [10, 0x83, 2, 0, 1, 0x84, 4, 0, 3, 4, 5, 0]);
    assert_eq!(
        (found[1].1.len(), &found[1].1[4..8]),
        (28, &[0, 16, 0, 16][..])
    );
    assert_eq!(found[2].1, [2, 0x02, 0xE4, 0]);
    assert_eq!(found[3].1, [0, 2, 0xFF, 0xFF]);
    assert_eq!((found[4].1.len(), found[4].1[12]), (32, 9));
}
