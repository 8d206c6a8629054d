//! SANITIZE: which commands it blocks, how it ends, and what it refuses.

use super::*;
use crate::fixture::*;
use crate::sense::{Asc, KeySpecific};

fn cdb(action: u8, len: u16) -> Vec<u8> {
    let [high, low] = len.to_be_bytes();
    vec![0x48, action, 0, 0, 0, 0, 0, high, low, 0]
}

fn list(first: u8, pattern: &[u8]) -> Vec<u8> {
    let [high, low] = (pattern.len() as u16).to_be_bytes();
    let mut list = vec![first, 0, high, low];
    list.extend(pattern);
    list
}

fn begin(unit: &mut LogicalUnit, list: &[u8]) -> Action {
    match unit.begin(NEXUS, &cdb(1, list.len() as u16)) {
        Action::Parameters(parameters) => unit.resume(parameters, list),
        other => other,
    }
}

#[test]
fn while_it_runs_the_unit_serves_nothing_else_on_any_lane() {
    let (mut first, mut second) = two_views(thick());
    let Action::Overwrite(overwrite) = begin(&mut first, &list(0x82, &[1, 2, 3, 4])) else {
        panic!("no overwrite")
    };
    assert_eq!(overwrite.block(1)[..5], [1, 2, 3, 4, 1]);
    assert_eq!(overwrite.block(0)[..5], [0xFE, 0xFD, 0xFC, 0xFB, 0xFE]);
    overwrite.progress(first.shared(), 1, 2);
    let told = sense(second.begin(OTHER, &cdb_10(0x28, 0, 0, 1)));
    assert_eq!(told.asc, Asc::SANITIZE_IN_PROGRESS);
    assert_eq!(told.specific, Some(KeySpecific::Progress(0x7FFF)));
    // A reset does not stop it, and a read accepted before it is not performed.
    first.post(crate::Attention::BusDeviceReset, None);
    sense(second.begin(OTHER, &[0; 6]));
    assert_eq!(
        sense(second.begin(OTHER, &[0; 6])).asc,
        Asc::SANITIZE_IN_PROGRESS
    );
    let op = crate::MediumOp::Flush {
        extent: thick().extent(0, 1).unwrap(),
    };
    assert!(second.recheck(OTHER, &op).is_err());
    assert!(matches!(
        second.begin(OTHER, &[0x12, 0, 0, 0, 96, 0]),
        Action::Reply(_)
    ));
    assert_eq!(overwrite.ended(first.shared(), true), Ending::GOOD);
    assert_eq!(second.begin(OTHER, &[0; 6]), good());
}

#[test]
fn none_begins_on_a_unit_that_is_about_to_be_removed() {
    let mut unit = unit(thick());
    let shared = unit.shared().clone();
    assert!(shared.bar_sanitize());
    assert_eq!(
        begin(&mut unit, &list(1, &[0; 4])),
        Action::End(Ending::BUSY)
    );
    assert_eq!(unit.begin(NEXUS, &[0; 6]), good());
    shared.admit_sanitize();
    let begun = begin(&mut unit, &list(1, &[0; 4]));
    assert!(matches!(begun, Action::Overwrite(_)));
    assert!(!shared.bar_sanitize(), "one is running");
}

#[test]
fn a_failure_stays_until_it_may_be_left_also_over_a_restart() {
    let mut unit = unit(thick());
    let Action::Overwrite(overwrite) = begin(&mut unit, &list(1, &[0; 4])) else {
        panic!("no overwrite")
    };
    let kept = unit.shared().save().expect("it runs");
    overwrite.ended(unit.shared(), false);
    assert_eq!(
        sense(unit.begin(NEXUS, &[0; 6])).asc,
        Asc::SANITIZE_COMMAND_FAILED
    );
    let left = settle(&mut unit, NEXUS, &cdb(0x1F, 0), &[]);
    let asc = left.sense.map(|sense| sense.asc);
    assert_eq!(asc, Some(Asc::SANITIZE_COMMAND_FAILED));
    unit.shared().restore(kept.parse().expect("as saved"));
    assert_eq!(
        sense(unit.begin(NEXUS, &[0; 6])).asc,
        Asc::SANITIZE_COMMAND_FAILED
    );
    let Action::Overwrite(again) = begin(&mut unit, &list(1, &[0; 4])) else {
        panic!("another one is what helps")
    };
    again.ended(unit.shared(), true);
    assert_eq!(unit.begin(NEXUS, &[0; 6]), good());
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    for wrong in [
        list(0, &[1; 4]),
        list(1, &[]),
        vec![1, 0, 0, 5, 1],
        list(1, &[1; 513]),
    ] {
        sense(begin(&mut unit(thick()), &wrong));
    }
    for cdb in [
        vec![0x48, 0x41, 0, 0, 0, 0, 0, 0, 8, 0],
        vec![0x48, 0x01, 0, 0, 1, 0, 0, 0, 8, 0],
        cdb(0x1F, 8),
        cdb(0x02, 0),
    ] {
        assert_eq!(sense(run(thick(), &cdb)).asc, Asc::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn that_a_failure_was_left_is_kept() {
    let mut unit = unit(thick());
    let list = list(1, &[0; 4]);
    const AUSE: u8 = 0x20;
    let Action::Parameters(parameters) = unit.begin(NEXUS, &cdb(AUSE | 1, list.len() as u16))
    else {
        panic!("no parameter list")
    };
    let Action::Overwrite(overwrite) = unit.resume(parameters, &list) else {
        panic!("no overwrite")
    };
    overwrite.ended(unit.shared(), false);
    // Twice, as by an initiator that retries when the first attempt ended with Prepared::not_kept.
    for _ in 0..2 {
        let Action::Change(leave) = unit.begin(NEXUS, &cdb(0x1F, 0)) else {
            panic!("nothing to keep")
        };
        let left = leave.prepare(&unit).expect("it may be left");
        assert_eq!(left.to_keep(), Some(None));
        assert_eq!(left.commit(&unit), Ok(crate::Changed::default()));
        assert_eq!(unit.shared().save(), None);
    }
    assert_eq!(unit.begin(NEXUS, &[0; 6]), good());
}
