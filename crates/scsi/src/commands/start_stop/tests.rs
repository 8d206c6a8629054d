//! START STOP UNIT: stopping flushes; a removable medium can be ejected.

use crate::fixture::*;
use crate::sense::Asc;
use crate::{Action, DiskShape, Eject, Ending, LogicalUnit, MediumOp};

#[test]
fn stopping_flushes_the_whole_disk_unless_told_not_to() {
    let op = medium(run(thick(), &[0x1B, 0, 0, 0, 0x00, 0]));
    let MediumOp::Flush { extent } = op else {
        panic!("{op:?}")
    };
    assert_eq!((extent.lba, extent.blocks), (0, LEN_BLOCKS));
    for byte in [0x04, 0x01, 0x10, 0x30] {
        assert_eq!(run(thick(), &[0x1B, 0, 0, 0, byte, 0]), good());
    }
}

#[test]
fn a_disk_that_is_not_removable_does_not_eject() {
    for byte in [0x02, 0x03, 0x06] {
        assert_eq!(
            sense(run(thick(), &[0x1B, 0, 0, 0, byte, 0])).asc,
            Asc::INVALID_FIELD_IN_CDB
        );
    }
}

/// With NO_FLUSH.
const EJECT: [u8; 6] = [0x1B, 0, 0, 0, 0x06, 0];
const FLUSH_AND_EJECT: [u8; 6] = [0x1B, 0, 0, 0, 0x02, 0];
const LOAD: [u8; 6] = [0x1B, 0, 0, 0, 0x03, 0];
const PREVENT: [u8; 6] = [0x1E, 0, 0, 0, 1, 0];
const ALLOW: [u8; 6] = [0x1E, 0, 0, 0, 0, 0];

fn removable() -> DiskShape {
    DiskShape {
        removable: true,
        ..thick()
    }
}

#[test]
fn a_removable_medium_goes_and_comes_back_unless_someone_prevents_it() {
    let (mut first, mut second) = two_views(removable());
    assert_eq!(second.begin(OTHER, &PREVENT), good());
    assert_eq!(
        sense(first.begin(NEXUS, &EJECT)).asc,
        Asc::MEDIUM_REMOVAL_PREVENTED
    );
    assert_eq!(second.begin(OTHER, &ALLOW), good());
    assert_eq!(first.begin(NEXUS, &EJECT), good());
    for cdb in [vec![0; 6], cdb_10(0x28, 0, 0, 1), cdb_10(0x25, 0, 0, 0)] {
        assert_eq!(
            sense(second.begin(OTHER, &cdb)).asc,
            Asc::MEDIUM_NOT_PRESENT
        );
    }
    assert_eq!(first.begin(NEXUS, &LOAD), good());
    assert_eq!(first.begin(NEXUS, &[0; 6]), good());
    assert_eq!(
        sense(second.begin(OTHER, &[0; 6])).asc,
        Asc::MEDIUM_MAY_HAVE_CHANGED
    );
    assert_eq!(second.begin(OTHER, &PREVENT), good());
    second.forget(OTHER);
    assert_eq!(first.begin(NEXUS, &EJECT), good());
}

fn flush_and_eject(unit: &mut LogicalUnit) -> Eject {
    let action = unit.begin(NEXUS, &FLUSH_AND_EJECT);
    let Action::Eject(eject) = action else {
        panic!("{action:?} does not flush")
    };
    let MediumOp::Flush { extent } = &eject.flush else {
        panic!("{eject:?}")
    };
    assert_eq!((extent.lba, extent.blocks), (0, LEN_BLOCKS));
    eject
}

#[test]
fn an_eject_flushes_first_and_fails_if_that_fails() {
    let (mut first, mut second) = two_views(removable());
    // The flush fails: nothing else is done.
    flush_and_eject(&mut first);
    assert_eq!(second.begin(OTHER, &[0; 6]), good());
    // During the flush the medium is still present, and its removal can be prevented.
    let eject = flush_and_eject(&mut first);
    assert_eq!(second.begin(OTHER, &PREVENT), good());
    let ending = eject.flushed(&first);
    let prevented = Asc::MEDIUM_REMOVAL_PREVENTED;
    assert_eq!(ending.sense.expect("a refusal").asc, prevented);
    assert_eq!(
        sense(first.begin(NEXUS, &FLUSH_AND_EJECT)).asc,
        prevented,
        "it is told before the flush"
    );
    assert_eq!(second.begin(OTHER, &ALLOW), good());
    let ending = flush_and_eject(&mut first).flushed(&first);
    assert_eq!(ending, Ending::GOOD);
    assert_eq!(
        sense(second.begin(OTHER, &[0; 6])).asc,
        Asc::MEDIUM_NOT_PRESENT
    );
}

#[test]
fn a_port_that_shows_a_fixed_disk_goes_on_while_another_has_ejected_it() {
    let (mut first, _) = two_views(removable());
    let mut fixed = LogicalUnit::sharing(identity(), thick(), first.shared().clone()).unwrap();
    assert_eq!(first.begin(NEXUS, &EJECT), good());
    let read = medium(fixed.begin(OTHER, &cdb_10(0x28, 0, 0, 1)));
    assert_eq!(fixed.recheck(OTHER, &read), Ok(()));
    assert_eq!(first.begin(NEXUS, &LOAD), good());
    assert_eq!(fixed.begin(OTHER, &[0; 6]), good(), "nothing has changed");
}
