//! PERSISTENT RESERVE OUT: service actions, keys and parameter lists.

use crate::fixture::*;
use crate::{Action, Asc, Denied, Ending, LogicalUnit, NexusId, Prepared, Sense, SharedUnit};

const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const WRITE: [u8; 10] = [0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const EXCLUSIVE_REGISTRANTS_ONLY: u8 = 6;
const APTPL: u8 = 0x01;

fn cdb(action: u8, kind: u8, len: u32) -> Vec<u8> {
    let mut cdb = vec![0x5F, action, kind, 0, 0];
    cdb.extend(len.to_be_bytes());
    cdb.push(0);
    cdb
}

fn list(key: u64, action_key: u64, flags: u8) -> Vec<u8> {
    let mut list = key.to_be_bytes().to_vec();
    list.extend(action_key.to_be_bytes());
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    list
}

fn out(unit: &mut LogicalUnit, nexus: NexusId, action: u8, keys: (u64, u64), flags: u8) -> Ending {
    let kind = EXCLUSIVE_REGISTRANTS_ONLY;
    settle(
        unit,
        nexus,
        &cdb(action, kind, 24),
        &list(keys.0, keys.1, flags),
    )
}

#[test]
fn a_reservation_made_on_one_lane_holds_on_another_at_once() {
    let (mut first, mut second) = two_views(thick());
    assert!(matches!(second.begin(OTHER, &WRITE), Action::Medium(_)));
    assert_eq!(out(&mut first, NEXUS, 6, (0, 1), 0), Ending::GOOD);
    assert_eq!(out(&mut first, NEXUS, 1, (1, 0), 0), Ending::GOOD);
    for cdb in [READ, WRITE] {
        assert_eq!(second.begin(OTHER, &cdb), Action::End(Ending::CONFLICT));
        assert!(matches!(first.begin(NEXUS, &cdb), Action::Medium(_)));
    }
    // A registrant may, as soon as it is registered.
    assert_eq!(out(&mut second, OTHER, 0, (0, 2), 0), Ending::GOOD);
    assert!(matches!(second.begin(OTHER, &WRITE), Action::Medium(_)));
}

#[test]
fn a_move_without_a_reservation_is_a_wrong_service_action() {
    let (mut unit, _) = two_views(thick());
    assert_eq!(out(&mut unit, NEXUS, 6, (0, 1), 0), Ending::GOOD);
    let port = b"iqn.x:y,i,0x000000000001\0\0\0\0";
    let mut list = [1u64.to_be_bytes(), 2u64.to_be_bytes()].concat();
    list.extend([0, 0, 0, 1, 0, 0, 0, 4 + port.len() as u8]);
    list.extend([0x45, 0, 0, port.len() as u8]);
    list.extend(port);
    let len = list.len() as u32;
    let ending = settle(&mut unit, NEXUS, &cdb(7, 0, len), &list);
    // SPC-4 5.13.8
    assert_eq!(ending, Ending::check(Sense::invalid_cdb_field(1, Some(4))));
}

#[test]
fn a_write_that_waited_for_its_data_is_fenced_off() {
    let (mut first, mut second) = two_views(thick());
    assert_eq!(out(&mut first, NEXUS, 6, (0, 1), 0), Ending::GOOD);
    assert_eq!(out(&mut second, OTHER, 6, (0, 2), 0), Ending::GOOD);
    assert_eq!(out(&mut first, NEXUS, 1, (1, 0), 0), Ending::GOOD);
    let waiting = medium(first.begin(NEXUS, &WRITE));
    assert_eq!(first.recheck(NEXUS, &waiting), Ok(()));
    // PREEMPT AND ABORT by the other.
    let Action::Parameters(parameters) = second.begin(OTHER, &cdb(5, 6, 24)) else {
        panic!("no parameter list");
    };
    let Action::Change(change) = second.resume(parameters, &list(2, 1, 0)) else {
        panic!("no change");
    };
    let changed = made(&second, &change).expect("it may");
    assert_eq!(
        changed.abort,
        [NEXUS],
        "its commands are to be ended everywhere"
    );
    assert_eq!(
        first.recheck(NEXUS, &waiting),
        Err(Denied::ReservationConflict)
    );
    assert_eq!(
        sense(first.begin(NEXUS, &[0; 6])).asc,
        Asc::REGISTRATIONS_PREEMPTED
    );
    assert_eq!(first.begin(NEXUS, &WRITE), Action::End(Ending::CONFLICT));
    assert_eq!(out(&mut first, NEXUS, 4, (1, 2), 0), Ending::CONFLICT);
}

#[test]
fn aptpl_registrations_survive_a_restart_and_meet_their_initiator_again() {
    let (mut first, mut second) = two_views(thick());
    assert_eq!(out(&mut first, NEXUS, 0, (0, 1), APTPL), Ending::GOOD);
    assert_eq!(out(&mut first, NEXUS, 1, (1, 0), 0), Ending::GOOD);
    assert_eq!(second.begin(OTHER, &WRITE), Action::End(Ending::CONFLICT));
    let kept = first.shared().save().expect("something to keep");

    let shared = SharedUnit::new();
    shared.restore(kept.parse().expect("as saved"));
    let mut after = LogicalUnit::sharing(identity(), thick(), shared).unwrap();
    after.establish(NexusId(100), "iqn.2026-11.test:a,i,0x000000000001");
    after.establish(NexusId(101), "iqn.2026-11.test:b,i,0x000000000001");
    for nexus in [NexusId(100), NexusId(101)] {
        sense(after.begin(nexus, &[0; 6]));
    }
    assert!(matches!(
        after.begin(NexusId(100), &WRITE),
        Action::Medium(_)
    ));
    assert_eq!(
        after.begin(NexusId(101), &WRITE),
        Action::End(Ending::CONFLICT)
    );
}

#[test]
fn spec_i_pt_registers_others_by_name() {
    let (mut first, mut second) = two_views(thick());
    let id = super::super::reserve_in::transport_id(&crate::nexus::NexusName {
        initiator_port: "iqn.2026-11.test:b,i,0x000000000001".into(),
        target_port: 0,
    });
    let mut data = list(0, 5, 0x08);
    data.extend((id.len() as u32).to_be_bytes());
    data.extend(&id);
    let cdb = cdb(0, 0, data.len() as u32);
    assert_eq!(settle(&mut first, NEXUS, &cdb, &data), Ending::GOOD);
    assert_eq!(out(&mut first, NEXUS, 1, (5, 0), 0), Ending::GOOD);
    assert!(matches!(second.begin(OTHER, &WRITE), Action::Medium(_)));
    // Garbage in place of the TransportIDs is refused.
    for end in 24..data.len() {
        let ending = settle(
            &mut first,
            NEXUS,
            &self::cdb(0, 0, end as u32),
            &data[..end],
        );
        assert!(ending.sense.is_some(), "{end} bytes");
    }
}

#[test]
fn a_name_that_no_initiator_port_can_have_is_refused() {
    let longest = "n".repeat(223);
    let cases = [
        (format!("{longest},i,0x0123456789ab"), true),
        (format!("{longest}n,i,0x0123456789ab"), false),
        (format!("{longest},i,0x0123456789abc"), false),
        ("iqn.a,i,0x1".to_owned(), true),
        ("iqn.a,i,0x".to_owned(), false),
        ("iqn.a,i,0xg".to_owned(), false),
        (",i,0x1".to_owned(), false),
        ("iqn.a\x1b[2J,i,0x1".to_owned(), false),
        ("iqn.a b,i,0x1".to_owned(), false),
        ("iqn.a".to_owned(), false),
    ];
    for (name, is_name) in cases {
        let mut unit = unit(thick());
        let name = crate::nexus::NexusName {
            initiator_port: name.into(),
            target_port: 0,
        };
        let id = super::super::reserve_in::transport_id(&name);
        let mut data = list(0, 5, SPEC_I_PT);
        data.extend((id.len() as u32).to_be_bytes());
        data.extend(&id);
        let cdb = cdb(0, 0, data.len() as u32);
        let ending = settle(&mut unit, NEXUS, &cdb, &data);
        let expected = match is_name {
            true => Ending::GOOD,
            false => invalid_parameter(24),
        };
        assert_eq!(ending, expected, "{name:?}");
    }
}

/// REGISTER with these keys and flags plus SPEC_I_PT, naming the ports of these initiators.
fn register_also(
    unit: &mut LogicalUnit,
    keys: (u64, u64),
    flags: u8,
    initiators: &[&str],
) -> Ending {
    let ids = initiators.iter().map(|initiator| {
        super::super::reserve_in::transport_id(&crate::nexus::NexusName {
            initiator_port: format!("iqn.2026-11.test:{initiator},i,0x000000000001").into(),
            target_port: 0,
        })
    });
    let ids = ids.collect::<Vec<_>>().concat();
    let mut data = list(keys.0, keys.1, flags | SPEC_I_PT);
    data.extend((ids.len() as u32).to_be_bytes());
    data.extend(&ids);
    let cdb = cdb(0, 0, data.len() as u32);
    settle(unit, NEXUS, &cdb, &data)
}

const SPEC_I_PT: u8 = 0x08;
const ALL_TG_PT: u8 = 0x04;

fn invalid_parameter(byte: u16) -> Ending {
    Ending::check(Sense::invalid_parameter(byte, None))
}

#[test]
fn spec_i_pt_registers_nobody_when_one_that_it_names_is_registered() {
    let (mut first, mut second) = two_views(thick());
    assert_eq!(out(&mut second, OTHER, 0, (0, 2), 0), Ending::GOOD);
    let before = first.shared().look().reservations.clone();
    for flags in [0, ALL_TG_PT, APTPL] {
        let ending = register_also(&mut first, (0, 5), flags, &["c", "b"]);
        assert_eq!(ending, invalid_parameter(24));
        assert_eq!(first.shared().look().reservations, before);
    }
    // The other nexus keeps its own key, and the unregistered ports stay unregistered.
    assert_eq!(out(&mut second, OTHER, 1, (2, 0), 0), Ending::GOOD);
    let free = register_also(&mut first, (0, 5), 0, &["c", "a", "c"]);
    assert_eq!(free, Ending::GOOD);
    assert_eq!(first.shared().look().reservations.registrations().len(), 3);
    // SPEC_I_PT is an error from a registered nexus, but a wrong key is reported first.
    let again = register_also(&mut first, (5, 6), 0, &["d"]);
    assert_eq!(again, invalid_parameter(20));
    let wrong = register_also(&mut first, (7, 6), 0, &["d"]);
    assert_eq!(wrong, Ending::CONFLICT);
}

#[test]
fn spec_i_pt_registers_all_that_it_names_or_none() {
    let mut unit = unit(thick());
    let initiators: Vec<String> = (0..120).map(|n| n.to_string()).collect();
    let named: Vec<&str> = initiators.iter().map(String::as_str).collect();
    unit.shared().change(|state| state.ports.extend(1..10));
    let ending = register_also(&mut unit, (0, 5), ALL_TG_PT, &named);
    let asc = ending.sense.map(|sense| sense.asc);
    assert_eq!(asc, Some(Asc::INSUFFICIENT_REGISTRATION_RESOURCES));
    let state = unit.shared().look();
    assert!(state.reservations.registrations().is_empty());
}

#[test]
fn all_tg_pt_changes_no_key_that_is_not_given() {
    let (mut first, _) = two_views(thick());
    let mut elsewhere = identity();
    elsewhere.port.relative_port += 1;
    let shared = first.shared().clone();
    let mut elsewhere = LogicalUnit::sharing(elsewhere, thick(), shared).unwrap();
    elsewhere.establish(OTHER, "iqn.2026-11.test:a,i,0x000000000001");
    assert_eq!(out(&mut elsewhere, OTHER, 0, (0, 2), 0), Ending::GOOD);
    // Treated as if the same initiator port had asked at its other target port, where its key is 2.
    let ending = out(&mut first, NEXUS, 0, (0, 5), ALL_TG_PT);
    assert_eq!(ending, Ending::CONFLICT);
    assert_eq!(first.shared().look().reservations.registrations().len(), 1);
    assert_eq!(out(&mut first, NEXUS, 6, (0, 5), ALL_TG_PT), Ending::GOOD);
    let state = first.shared().look();
    let keys = state.reservations.registrations().iter();
    assert_eq!(keys.map(|(_, r)| r.key).collect::<Vec<_>>(), [5, 5]);
}

/// A PERSISTENT RESERVE OUT that is ready to be persisted.
fn prepared(unit: &mut LogicalUnit, action: u8, keys: (u64, u64), flags: u8) -> Prepared {
    let Action::Parameters(parameters) = unit.begin(NEXUS, &cdb(action, 6, 24)) else {
        panic!("no parameter list");
    };
    let Action::Change(change) = unit.resume(parameters, &list(keys.0, keys.1, flags)) else {
        panic!("no change");
    };
    change.prepare(unit).expect("it may")
}

#[test]
fn what_could_not_be_kept_has_changed_nothing() {
    let (mut first, mut second) = two_views(thick());
    assert_eq!(out(&mut second, OTHER, 0, (0, 2), APTPL), Ending::GOOD);
    assert_eq!(out(&mut first, NEXUS, 0, (0, 1), APTPL), Ending::GOOD);
    assert_eq!(out(&mut second, OTHER, 1, (2, 0), 0), Ending::GOOD);
    let before = first.shared().save();
    for (action, keys) in [(0, (1, 0)), (3, (1, 0)), (4, (1, 2)), (5, (1, 2))] {
        let change = prepared(&mut first, action, keys, APTPL);
        let to_keep = change.to_keep().expect("something to keep");
        assert_ne!(to_keep, before, "action {action}");
        drop(change);
        assert_eq!(first.shared().save(), before, "action {action}");
        assert_eq!(second.begin(OTHER, &[0; 6]), good(), "nobody hears of it");
        assert!(matches!(second.begin(OTHER, &WRITE), Action::Medium(_)));
    }
}

#[test]
fn a_reserve_6_while_it_is_kept_is_a_conflict() {
    let (mut first, mut second) = two_views(thick());
    let change = prepared(&mut first, 0, (0, 1), APTPL);
    assert_eq!(second.begin(OTHER, &[0x16, 0, 0, 0, 0, 0]), good());
    assert_eq!(change.commit(&first), Err(Ending::CONFLICT));
    assert_eq!(first.shared().save(), None);
}

#[test]
fn reserve_6_is_for_one_until_it_is_gone() {
    let (mut first, mut second) = two_views(thick());
    let (reserve, release) = ([0x16, 0, 0, 0, 0, 0], [0x17, 0, 0, 0, 0, 0]);
    assert_eq!(first.begin(NEXUS, &reserve), good());
    assert_eq!(first.begin(NEXUS, &reserve), good());
    for cdb in [&READ[..], &WRITE, &[0; 6], &reserve] {
        assert_eq!(second.begin(OTHER, cdb), Action::End(Ending::CONFLICT));
    }
    assert_eq!(out(&mut second, OTHER, 6, (0, 2), 0), Ending::CONFLICT);
    assert_eq!(second.begin(OTHER, &release), good());
    assert_eq!(second.begin(OTHER, &READ), Action::End(Ending::CONFLICT));
    first.forget(NEXUS);
    assert_eq!(second.begin(OTHER, &reserve), good());
}
