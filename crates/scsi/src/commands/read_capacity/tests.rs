//! READ CAPACITY (10) and (16): size, physical block and thin provisioning.

use crate::DiskShape;
use crate::fixture::*;

fn sixteen(shape: DiskShape, allocation_len: u32) -> Vec<u8> {
    data(run(shape, &cdb_16(0x9E, 0x10, 0, allocation_len)))
}

#[test]
fn ten_bytes_tell_the_last_block_and_its_size() {
    let cdb = cdb_10(0x25, 0, 0, 0);
    assert_eq!(data(run(thick(), &cdb)), [0, 0x1F, 0xFF, 0xFF, 0, 0, 2, 0]);
    assert_eq!(
        data(run(DiskShape::new(4096, 1), &cdb)),
        [0, 0, 0, 0, 0, 0, 0x10, 0]
    );
}

#[test]
fn ten_bytes_that_do_not_suffice_say_so() {
    let cdb = cdb_10(0x25, 0, 0, 0);
    assert_eq!(
        data(run(DiskShape::new(512, 1 << 32), &cdb))[..4],
        [0xFF; 4]
    );
    assert_eq!(
        data(run(DiskShape::new(512, 1 << 40), &cdb))[..4],
        [0xFF; 4]
    );
}

#[test]
fn sixteen_bytes_tell_64_bits_and_the_physical_block() {
    let reply = sixteen(DiskShape::new(512, 1 << 40), 32);
    assert_eq!(reply.len(), 32);
    assert_eq!(
        reply[..12],
        [0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 2, 0]
    );
    assert_eq!(reply[12..16], [0, 3, 0, 0]);
    assert_eq!(sixteen(DiskShape::new(4096, 1), 32)[13], 0);
}

#[test]
fn thin_disks_say_so_and_claim_zeroes_only_if_they_are_kept() {
    assert_eq!(sixteen(thin(), 32)[14], 0xC0);
    let mut shape = thin();
    shape.discard.as_mut().unwrap().zeroes_after_discard = false;
    assert_eq!(sixteen(shape, 32)[14], 0x80);
}

#[test]
fn a_small_allocation_length_cuts_the_reply() {
    for len in 0..40 {
        assert_eq!(sixteen(thick(), len).len(), len.min(32) as usize);
    }
}
