//! PERSISTENT RESERVE OUT: service actions, keys and parameter lists.

use crate::fixture::*;
use crate::{Action, Asc, Ending, LogicalUnit, NexusId, SharedUnit};

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
    // A registrant may, from its registration on.
    assert_eq!(out(&mut second, OTHER, 0, (0, 2), 0), Ending::GOOD);
    assert!(matches!(second.begin(OTHER, &WRITE), Action::Medium(_)));
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
    let Action::Changed(changed) = second.resume(parameters, &list(2, 1, 0)) else {
        panic!("no change");
    };
    assert_eq!(
        changed.abort,
        [NEXUS],
        "its commands are to be ended everywhere"
    );
    assert_eq!(first.recheck(NEXUS, &waiting), Err(Ending::CONFLICT));
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
    shared.restore(&kept);
    let mut after = LogicalUnit::sharing(identity(), thick(), shared).unwrap();
    after.introduce(NexusId(100), "iqn.2026-11.test:a,i,0x000000000001");
    after.introduce(NexusId(101), "iqn.2026-11.test:b,i,0x000000000001");
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
    let id = super::super::reserve_in::transport_id(&crate::reservations::NexusName {
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
    // Garbage where the names should be is refused, whatever it is.
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
