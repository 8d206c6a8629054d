//! Reservations: who holds what, and which commands of other nexuses conflict.

use super::*;
use crate::Kept;

fn name(n: u16) -> NexusName {
    NexusName {
        initiator_port: format!("iqn.2026-11.test:{n},i,0x000000000001").into(),
        target_port: 1,
    }
}

/// Nexuses 1 to 3, each registered with its own number as the key.
fn three() -> Reservations {
    let mut reservations = Reservations::default();
    for n in 1..=3 {
        reservations
            .register(&[name(n)], Some(0), n.into(), false, true)
            .expect("a registration");
    }
    reservations
}

#[test]
fn a_key_is_changed_only_by_who_knows_it() {
    let mut reservations = three();
    let mut register =
        |existing, key| reservations.register(&[name(1)], existing, key, false, false);
    assert_eq!(register(Some(7), 8), Err(ReservationRefusal::Conflict));
    assert_eq!(register(Some(0), 8), Err(ReservationRefusal::Conflict));
    assert!(register(Some(1), 8).is_ok());
    assert!(register(None, 9).is_ok());
    assert_eq!(reservations.key_of(&name(1)), Some(9));
    assert_eq!(reservations.generation(), 5);
}

#[test]
fn each_type_lets_in_whom_it_should() {
    for kind in ReservationType::ALL {
        let mut reservations = three();
        reservations
            .reserve(&name(1), 1, kind)
            .expect("a reservation");
        assert!(reservations.exempts(&name(1)), "{kind:?}: the holder");
        assert_eq!(
            reservations.exempts(&name(2)),
            kind.exempts_registrants(),
            "{kind:?}"
        );
        assert!(!reservations.exempts(&name(9)), "{kind:?}: a stranger");
    }
}

#[test]
fn the_reservation_goes_with_its_holder_but_all_registrants_keep_theirs() {
    for kind in ReservationType::ALL {
        let mut reservations = three();
        reservations
            .reserve(&name(1), 1, kind)
            .expect("a reservation");
        let effects = reservations
            .register(&[name(1)], Some(1), 0, false, true)
            .expect("gone");
        assert_eq!(
            reservations.held().is_some(),
            kind.is_all_registrants(),
            "{kind:?}"
        );
        let told = kind.exempts_registrants() && !kind.is_all_registrants();
        assert_eq!(!effects.reservations_released.is_empty(), told, "{kind:?}");
    }
}

#[test]
fn a_release_needs_holder_and_type() {
    let mut reservations = three();
    let kind = ReservationType::WriteExclusive;
    reservations
        .reserve(&name(1), 1, kind)
        .expect("a reservation");
    assert_eq!(
        reservations.reserve(&name(2), 2, kind),
        Err(ReservationRefusal::Conflict)
    );
    assert!(reservations.release(&name(2), 2, kind).is_ok());
    assert_eq!(reservations.held(), Some(kind), "not its to release");
    let wrong = reservations.release(&name(1), 1, ReservationType::ExclusiveAccess);
    assert_eq!(wrong, Err(ReservationRefusal::WrongRelease));
    assert!(reservations.release(&name(1), 1, kind).is_ok());
    assert_eq!(reservations.held(), None);
}

#[test]
fn a_preempt_takes_over_and_fences() {
    let mut reservations = three();
    let kind = ReservationType::ExclusiveAccessRegistrantsOnly;
    reservations
        .reserve(&name(1), 1, kind)
        .expect("a reservation");
    let effects = reservations
        .preempt(&name(2), 2, 1, Some(kind))
        .expect("taken over");
    assert_eq!(effects.registrations_preempted, [name(1)].into());
    assert!(reservations.is_holder(&name(2)) && !reservations.exempts(&name(1)));
    assert!(reservations.exempts(&name(3)));
    // The former holder can no longer act on the reservation.
    assert_eq!(
        reservations.preempt(&name(1), 1, 2, Some(kind)),
        Err(ReservationRefusal::Conflict)
    );
    // If there is no reservation to preempt, PREEMPT only removes the registration.
    assert!(reservations.preempt(&name(2), 2, 3, Some(kind)).is_ok());
    assert_eq!(reservations.registrations().len(), 1);
    assert_eq!(
        reservations.preempt(&name(2), 2, 7, Some(kind)),
        Err(ReservationRefusal::Conflict)
    );
    assert_eq!(
        reservations.preempt(&name(2), 2, 0, Some(kind)),
        Err(ReservationRefusal::Parameter(8))
    );
}

#[test]
fn a_preempt_of_all_registrants_with_key_zero_leaves_one() {
    let mut reservations = three();
    let kind = ReservationType::WriteExclusiveAllRegistrants;
    reservations
        .reserve(&name(1), 1, kind)
        .expect("a reservation");
    reservations
        .preempt(&name(3), 3, 0, Some(ReservationType::ExclusiveAccess))
        .expect("taken over");
    assert_eq!(reservations.registrations().len(), 1);
    assert_eq!(reservations.held(), Some(ReservationType::ExclusiveAccess));
}

#[test]
fn a_clear_leaves_nothing() {
    let mut reservations = three();
    let effects = reservations.clear(&name(2), 2).expect("cleared");
    assert_eq!(effects.reservations_preempted.len(), 3);
    assert_eq!(
        (
            reservations.registrations().len(),
            reservations.generation()
        ),
        (0, 4)
    );
}

#[test]
fn a_move_gives_the_reservation_to_another_port() {
    let mut reservations = three();
    let kind = ReservationType::ExclusiveAccess;
    reservations
        .reserve(&name(1), 1, kind)
        .expect("a reservation");
    reservations
        .move_to(&name(1), 1, &name(9), 99, true, true)
        .expect("moved");
    assert!(reservations.is_holder(&name(9)) && reservations.key_of(&name(1)).is_none());
}

#[test]
fn a_move_is_the_holders_and_needs_a_reservation() {
    let mut reservations = three();
    let moved = |reservations: &mut Reservations, from: u16, key| {
        let moved = reservations.move_to(&name(from), key, &name(9), 99, true, true);
        moved.expect_err("nothing moves")
    };
    assert_eq!(
        moved(&mut reservations, 1, 1),
        ReservationRefusal::NothingToMove
    );
    assert_eq!(
        moved(&mut reservations, 1, 2),
        ReservationRefusal::Conflict,
        "its key"
    );
    reservations
        .reserve(&name(1), 1, ReservationType::ExclusiveAccess)
        .expect("a reservation");
    assert_eq!(moved(&mut reservations, 2, 2), ReservationRefusal::Conflict);
}

#[test]
fn aptpl_decides_what_a_restart_leaves() {
    let mut reservations = three();
    reservations
        .reserve(&name(2), 2, ReservationType::ExclusiveAccessRegistrantsOnly)
        .expect("a reservation");
    let kept: Kept = reservations.save().parse().expect("as saved");
    let after = kept.reservations;
    assert_eq!(after.registrations(), reservations.registrations());
    assert!(after.is_holder(&name(2)) && after.is_aptpl());
    reservations
        .register(&[name(1)], Some(1), 1, false, false)
        .expect("registered");
    assert_eq!(reservations.save(), "");
}

#[test]
fn who_made_an_all_registrants_reservation_is_fenced_off_with_its_registration() {
    for kind in ReservationType::ALL
        .into_iter()
        .filter(|kind| kind.is_all_registrants())
    {
        let preempted = {
            let mut reservations = three();
            reservations
                .reserve(&name(1), 1, kind)
                .expect("a reservation");
            reservations
                .preempt(&name(2), 2, 1, Some(kind))
                .expect("a preempt");
            reservations
        };
        let unregistered = {
            let mut reservations = three();
            reservations
                .reserve(&name(1), 1, kind)
                .expect("a reservation");
            reservations
                .register(&[name(1)], Some(1), 0, false, false)
                .expect("an end of a registration");
            reservations
        };
        for reservations in [preempted, unregistered] {
            assert_eq!(reservations.held(), Some(kind));
            assert!(!reservations.exempts(&name(1)), "{kind:?}");
            assert!(!reservations.is_holder(&name(1)), "{kind:?}");
            assert!(reservations.exempts(&name(2)) && reservations.is_holder(&name(2)));
        }
    }
}

#[test]
fn a_stranger_that_registers_no_key_changes_nothing() {
    for existing in [Some(0), None] {
        let mut reservations = three();
        reservations
            .register(&[name(9)], existing, 0, false, false)
            .expect("nothing to do");
        assert_eq!(reservations, three());
    }
}
