//! REPORT LUNS: the list, its order, and truncated replies.

use crate::fixture::*;
use crate::sense::Asc;
use crate::{Action, Lun};

fn report(select: u8, allocation_len: u32, luns: &[u32]) -> Vec<u8> {
    let mut cdb = vec![0xA0, 0, select, 0, 0, 0];
    cdb.extend(allocation_len.to_be_bytes());
    cdb.extend([0, 0]);
    let luns: Vec<_> = luns
        .iter()
        .map(|number| Lun::new(*number).unwrap())
        .collect();
    match run(thick(), &cdb) {
        Action::ReportLuns(request) => data(request.reply(&luns)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn luns_are_listed_in_order() {
    let mut expected = vec![0, 0, 0, 16, 0, 0, 0, 0];
    expected.extend([0; 8]);
    expected.extend([0x41, 0x2C, 0, 0, 0, 0, 0, 0]);
    assert_eq!(report(0, 512, &[0, 300]), expected);
    assert_eq!(report(2, 512, &[0, 300]), expected);
}

#[test]
fn a_short_reply_still_tells_the_whole_length() {
    assert_eq!(
        report(0, 16, &[0, 1, 2]),
        [0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(report(0, 0, &[0]), []);
}

#[test]
fn there_are_no_well_known_luns() {
    assert_eq!(report(1, 512, &[0]), [0; 8]);
}

#[test]
fn other_selections_are_refused() {
    let cdb = [0xA0, 0, 0x12, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    assert_eq!(sense(run(thick(), &cdb)).asc, Asc::INVALID_FIELD_IN_CDB);
}
