//! LUN fields: encoding and decoding round-trip, and everything else is refused.

use super::*;
use proptest::prelude::*;

#[test]
fn each_size_of_number_has_its_method() {
    let encoded = |number| Lun::new(number).unwrap().encode();
    assert_eq!(encoded(0), [0; 8]);
    assert_eq!(encoded(255), [0, 255, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encoded(256), [0x41, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encoded(16383), [0x7F, 0xFF, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encoded(16384), [0xD2, 0, 0x40, 0, 0, 0, 0, 0]);
    assert_eq!(encoded(Lun::MAX), [0xD2, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0]);
}

#[test]
fn a_small_number_may_come_in_a_longer_method() {
    assert_eq!(
        Lun::decode([0x40, 5, 0, 0, 0, 0, 0, 0]).unwrap().number(),
        5
    );
    assert_eq!(
        Lun::decode([0xD2, 0, 0, 5, 0, 0, 0, 0]).unwrap().number(),
        5
    );
    assert_eq!(
        Lun::decode([0xE2, 0, 0, 0, 1, 5, 0, 0]).unwrap().number(),
        0x105
    );
}

#[test]
fn a_plain_number_in_the_first_two_bytes_is_that_lun() {
    for number in [0, 255, 256, 300, 16383] {
        let lun = Lun::new(number).unwrap();
        assert_eq!(Lun::decode(lun.encode_plain().unwrap()), Ok(lun));
    }
    assert_eq!(
        Lun::new(300).unwrap().encode_plain(),
        Some([0x01, 0x2C, 0, 0, 0, 0, 0, 0])
    );
    assert_eq!(Lun::new(65536).unwrap().encode_plain(), None);
}

#[test]
fn what_is_no_plain_logical_unit_is_refused() {
    for field in [
        [0x00, 5, 0, 1, 0, 0, 0, 0],    // a second level
        [0x40, 5, 0, 0, 0, 0, 0, 1],    // a fourth level
        [0x80, 5, 0, 0, 0, 0, 0, 0],    // logical unit addressing
        [0xC1, 0x01, 0, 0, 0, 0, 0, 0], // well-known: REPORT LUNS
        [0xD2, 0, 0, 5, 1, 0, 0, 0],    // extended flat with something behind it
        [0xE2, 0, 1, 0, 0, 5, 0, 0],    // a number of more than 24 bits
        [0xE2, 0, 0, 0, 0, 5, 0, 1],    // long extended flat with something behind it
        [0xFF; 8],                      // not specified
    ] {
        assert_eq!(
            Lun::decode(field),
            Err(LunError::Method(u64::from_be_bytes(field)))
        );
    }
    assert_eq!(
        Lun::new(Lun::MAX + 1),
        Err(LunError::TooLarge(Lun::MAX + 1))
    );
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(number in 0..=Lun::MAX) {
        let lun = Lun::new(number).unwrap();
        prop_assert_eq!(Lun::decode(lun.encode()), Ok(lun));
    }

    #[test]
    fn any_field_is_read_or_refused(field: [u8; 8]) {
        if let Ok(lun) = Lun::decode(field) {
            prop_assert!(lun.number() <= Lun::MAX);
        }
    }
}
