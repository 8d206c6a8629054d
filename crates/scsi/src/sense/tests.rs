//! Sense data in both formats, byte by byte.

use super::*;

const INVALID: Sense = Sense::invalid_cdb_field(8, Some(2));

#[test]
fn fixed_format_points_at_the_invalid_field() {
    let data = INVALID.encode(SenseFormat::Fixed);
    assert_eq!(
        data,
        [
            0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xCA, 0, 8
        ]
    );
}

#[test]
fn fixed_format_marks_information_valid_only_when_it_fits() {
    let read_error = Sense::new(SenseKey::MediumError, Asc::UNRECOVERED_READ_ERROR);
    let data = read_error
        .with_information(0x1234_5678)
        .encode(SenseFormat::Fixed);
    assert_eq!(data[0], 0xF0);
    assert_eq!(data[3..7], [0x12, 0x34, 0x56, 0x78]);
    let data = read_error
        .with_information(1 << 32)
        .encode(SenseFormat::Fixed);
    assert_eq!(data[0], 0x70);
    assert_eq!(data[3..7], [0; 4]);
}

#[test]
fn descriptor_format_holds_64_bits_and_the_field() {
    let data = INVALID
        .with_information(1 << 40)
        .encode(SenseFormat::Descriptor);
    assert_eq!(data[..8], [0x72, 5, 0x24, 0, 0, 0, 0, 20]);
    assert_eq!(data[8..20], [0, 10, 0x80, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(data[20..], [2, 6, 0, 0, 0xCA, 0, 8, 0]);
}

#[test]
fn a_parameter_list_field_is_not_a_cdb_field() {
    let data = Sense::invalid_parameter(0x102, None).encode(SenseFormat::Fixed);
    assert_eq!(data[12..], [0x26, 0, 0, 0x80, 1, 2]);
}

#[test]
fn progress_is_told_in_65536ths() {
    let mut sense = Sense::new(SenseKey::NotReady, Asc::CAUSE_NOT_REPORTABLE);
    sense.specific = Some(KeySpecific::Progress(0x8000));
    assert_eq!(sense.encode(SenseFormat::Fixed)[15..], [0x80, 0x80, 0]);
}
