//! MODE SELECT: what can change, what is persisted, and lists that are refused as a whole.

use crate::fixture::*;
use crate::{Action, Asc, Ending, QueueError, SenseFormat};

const CONTROL: [u8; 12] = [0x0A, 0x0A, 0x02, 0x10, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0];

fn select(save: u8, len: u8) -> [u8; 6] {
    [0x15, 0x10 | save, 0, 0, len, 0]
}

fn control(d_sense: bool, swp: bool) -> Vec<u8> {
    let mut list = vec![0; 4];
    list.extend(CONTROL);
    list[6] |= if d_sense { 0x04 } else { 0 };
    list[8] |= if swp { 0x08 } else { 0 };
    list
}

#[test]
fn what_is_set_holds_for_all_and_the_others_are_told() {
    let (mut first, mut second) = two_views(thick());
    let write = cdb_10(0x2A, 0, 0, 1);
    let list = control(true, true);
    let ending = settle(&mut first, NEXUS, &select(0, 16), &list);
    assert_eq!(ending, Ending::GOOD);
    let told = sense(second.begin(OTHER, &write));
    assert_eq!(told.asc, Asc::MODE_PARAMETERS_CHANGED);
    assert!(write_protected(second.begin(OTHER, &write)));
    assert!(
        write_protected(first.begin(NEXUS, &write)),
        "who set it was not told"
    );
    assert_eq!(second.sense_format(), SenseFormat::Descriptor);
    // Values that were not saved are lost in a reset.
    first.post(crate::Attention::BusDeviceReset, None);
    sense(second.begin(OTHER, &[0; 6]));
    medium(second.begin(OTHER, &write));
    assert_eq!(first.shared().save(), None);
}

#[test]
fn what_becomes_of_aborted_commands_can_be_chosen() {
    let (mut first, mut second) = two_views(thick());
    assert_eq!(second.queue_error(), QueueError::GoOn);
    for (code, meaning) in [
        (0x02, QueueError::AbortAll),
        (0x06, QueueError::AbortOwn),
        (0x00, QueueError::GoOn),
    ] {
        let mut list = control(false, false);
        list[7] |= code;
        list[9] |= 0x40;
        settle(&mut first, NEXUS, &select(0, 16), &list);
        assert_eq!(second.queue_error(), meaning);
        assert!(second.tells_aborted());
        let page = data(first.begin(NEXUS, &[0x1A, 0x08, 0x0A, 0, 255, 0]));
        assert_eq!((page[7], page[9]), (0x10 | code, 0x40));
    }
}

#[test]
fn saved_values_survive() {
    let (mut first, _) = two_views(thick());
    settle(&mut first, NEXUS, &select(1, 16), &control(false, true));
    let kept = first.shared().save().expect("something to keep");
    let shared = crate::SharedUnit::new();
    shared.restore(kept.parse().expect("as saved"));
    let mut after = crate::LogicalUnit::sharing(identity(), thick(), shared).unwrap();
    sense(after.begin(NEXUS, &[0; 6]));
    assert!(write_protected(after.begin(NEXUS, &cdb_10(0x2A, 0, 0, 1))));
}

#[test]
fn a_list_that_changes_anything_else_changes_nothing() {
    let asc = |list: &[u8]| {
        let (mut unit, _) = two_views(thick());
        let ending = settle(&mut unit, NEXUS, &select(0, list.len() as u8), list);
        medium(unit.begin(NEXUS, &cdb_10(0x2A, 0, 0, 1)));
        ending.sense.map(|sense| sense.asc)
    };
    let right = control(false, true);
    for (at, bit) in [
        (4, 0x01),
        (5, 0x01),
        (7, 0x80),
        (7, 0x04),
        (9, 0x01),
        (12, 0x01),
    ] {
        let mut wrong = right.clone();
        wrong[at] ^= bit;
        assert_eq!(
            asc(&wrong),
            Some(Asc::INVALID_FIELD_IN_PARAMETER_LIST),
            "byte {at}"
        );
    }
    for len in [1, 3, 5, 15] {
        assert!(asc(&right[..len]).is_some(), "{len} bytes");
    }
    let mut other_size = vec![0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0x10, 0];
    other_size.extend(CONTROL);
    assert_eq!(asc(&other_size), Some(Asc::INVALID_FIELD_IN_PARAMETER_LIST));
}

#[test]
fn each_command_that_saves_has_it_kept_also_the_second_of_the_same() {
    let mut unit = unit(thick());
    // An initiator retries if the first attempt ended with Prepared::not_kept.
    for (save, times) in [(1, 2), (0, 1)] {
        for _ in 0..times {
            let Action::Parameters(parameters) = unit.begin(NEXUS, &select(save, 16)) else {
                panic!("no parameter list");
            };
            let action = unit.resume(parameters, &control(true, false));
            let Action::Change(change) = action else {
                panic!("{action:?}");
            };
            let prepared = change.prepare(&unit).expect("it may be made");
            assert_eq!(prepared.to_keep().is_some(), save == 1);
            prepared.commit(&unit).expect("nothing comes between");
        }
    }
}
