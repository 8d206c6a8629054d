//! INQUIRY: the standard data, and which pages and lengths are refused or cut.

use crate::fixture::*;
use crate::sense::Asc;

fn inquiry(flags: u8, page: u8, allocation_len: u16) -> Vec<u8> {
    let [high, low] = allocation_len.to_be_bytes();
    data(run(thick(), &[0x12, flags, page, high, low, 0]))
}

#[test]
fn standard_data_describe_a_disk_of_today() {
    let data = inquiry(0, 0, 260);
    assert_eq!(data.len(), 96);
    assert_eq!(data[..8], [0x00, 0x00, 0x06, 0x12, 91, 0x18, 0x10, 0x02]);
    assert_eq!(&data[8..36], b"SANSTONEdisk            0.1 ");
    assert_eq!(
        data[58..66],
        [0x00, 0xA0, 0x04, 0x60, 0x04, 0xC0, 0x09, 0x60]
    );
}

#[test]
fn the_allocation_length_has_16_bits_and_cuts_the_reply() {
    for len in [0, 5, 36, 95] {
        assert_eq!(inquiry(0, 0, len), inquiry(0, 0, 512)[..usize::from(len)]);
    }
    assert_eq!(inquiry(0, 0, 511), inquiry(0, 0, 512));
}

#[test]
fn a_page_without_evpd_an_unknown_page_and_cmddt_are_refused() {
    for (flags, page) in [(0, 1), (1, 0x7F), (2, 0), (3, 0)] {
        let action = run(thick(), &[0x12, flags, page, 1, 0, 0]);
        assert_eq!(sense(action).asc, Asc::INVALID_FIELD_IN_CDB);
    }
}
