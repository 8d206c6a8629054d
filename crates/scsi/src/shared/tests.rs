//! When views make their extracts of the state anew: after each change that one of them shows, and after no other.

use super::*;
use crate::fixture::{NEXUS, OTHER, good, two_views, unit};
use crate::{Action, LogicalUnit};

fn version(unit: &LogicalUnit) -> u64 {
    unit.shared().version.load(Ordering::Acquire)
}

/// Runs a PERSISTENT RESERVE OUT with these keys.
fn reserve_out(unit: &mut LogicalUnit, nexus: NexusId, action: u8, keys: (u64, u64)) {
    let mut list = [keys.0.to_be_bytes(), keys.1.to_be_bytes()].concat();
    list.extend([0; 8]);
    let Action::Parameters(parameters) =
        unit.begin(nexus, &[0x5F, action, 7, 0, 0, 0, 0, 0, 24, 0])
    else {
        panic!("no parameter list");
    };
    let Action::Change(change) = unit.resume(parameters, &list) else {
        panic!("no change");
    };
    let prepared = change.prepare(unit).expect("it may");
    prepared.commit(unit).expect("nobody is in its way");
}

const RESERVE_6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE_6: [u8; 6] = [0x17, 0, 0, 0, 0, 0];
const PREVENT: [u8; 6] = [0x1E, 0, 0, 0, 1, 0];

#[test]
fn what_changes_nothing_leaves_every_extract_as_it_is() {
    let (mut unit, _) = two_views(crate::fixture::thick());
    assert_eq!(unit.begin(NEXUS, &RESERVE_6), good());
    let before = version(&unit);
    for cdb in [RESERVE_6, PREVENT, PREVENT] {
        assert_eq!(unit.begin(NEXUS, &cdb), good());
        assert_eq!(version(&unit), before, "{cdb:x?}");
    }
    assert_eq!(unit.begin(NEXUS, &RELEASE_6), good());
    reserve_out(&mut unit, NEXUS, 0, (0, 5));
    reserve_out(&mut unit, NEXUS, 1, (5, 0));
    let before = version(&unit);
    // The same key, another key, the reservation that it holds, a release by one who holds nothing.
    for (action, keys) in [(0, (5, 5)), (0, (5, 6)), (6, (0, 5)), (1, (5, 0))] {
        reserve_out(&mut unit, NEXUS, action, keys);
        assert_eq!(version(&unit), before, "service action {action}");
    }
    for cdb in [RESERVE_6, RELEASE_6] {
        assert_eq!(unit.begin(NEXUS, &cdb), good());
        assert_eq!(version(&unit), before, "{cdb:x?} of a registrant");
    }
    unit.post(Attention::BusDeviceReset, None);
    let posted = version(&unit);
    assert_ne!(posted, before);
    unit.post(Attention::BusDeviceReset, None);
    assert_eq!(version(&unit), posted, "all of them wait for it already");
}

#[test]
fn every_change_that_an_extract_shows_reaches_all_views() {
    let (mut first, second) = two_views(crate::fixture::thick());
    let mut before = version(&second);
    let mut changed = |what: &str| {
        let now = version(&second);
        assert_ne!(now, before, "{what}");
        before = now;
    };
    assert_eq!(first.begin(NEXUS, &RESERVE_6), good());
    changed("RESERVE");
    assert_eq!(first.begin(NEXUS, &RELEASE_6), good());
    changed("RELEASE");
    reserve_out(&mut first, NEXUS, 0, (0, 5));
    changed("REGISTER");
    reserve_out(&mut first, NEXUS, 1, (5, 0));
    changed("a persistent RESERVE");
    reserve_out(&mut first, NEXUS, 2, (5, 0));
    changed("a persistent RELEASE");
    reserve_out(&mut first, NEXUS, 3, (5, 0));
    changed("CLEAR");
    first.tell(OTHER, Attention::ReportedLunsChanged);
    changed("a unit attention");
    first.establish(NexusId(99), "iqn.2026-11.test:c,i,0x1");
    changed("a nexus");
    first.forget(NexusId(99));
    changed("its end");
    first.shared().change(|state| state.ejected = true);
    changed("an eject");
    first
        .shared()
        .change(|state| state.mode.current.write_protect = true);
    changed("a mode parameter");
    first.shared().change(|state| state.len_blocks = Some(8));
    changed("the length");
}

#[test]
fn who_may_pass_is_worked_out_once_for_all_views() {
    let (mut first, mut second) = two_views(crate::fixture::thick());
    reserve_out(&mut first, NEXUS, 0, (0, 5));
    reserve_out(&mut first, NEXUS, 1, (5, 0));
    for view in [&mut first, &mut second] {
        view.take_work();
        view.begin(OTHER, &[0; 6]);
    }
    assert!(first.take_work() > 0);
    assert_eq!(second.take_work(), 0, "the other view's is the same");
}

#[test]
fn what_a_command_visits_is_told() {
    let mut unit = unit(crate::fixture::thick());
    let read_full_status = [0x5E, 3, 0, 0, 0, 0, 0, 0, 8, 0];
    unit.begin(NEXUS, &read_full_status);
    let few = unit.take_work();
    unit.shared().change(|state| {
        for n in 0..1000 {
            let name = NexusName {
                initiator_port: format!("iqn.2026-11.test:{n},i,0x1").into(),
                target_port: 1,
            };
            let registered = state.reservations.register(&[name], None, 7, false, false);
            registered.expect("there is room");
        }
    });
    unit.begin(NEXUS, &read_full_status);
    assert!(unit.take_work() >= few + 1000);
    assert_eq!(unit.take_work(), 0, "once");
}
