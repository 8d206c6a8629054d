//! Operations in several steps that wait for a permit while a disk is stuck: what they may not do then.

use std::rc::Rc;

use engine::{
    Payload, spawn,
    task::{JoinHandle, yield_now},
};
use scsi::{Action, Status};

use crate::{
    CommandId, LaneUnits, Nexus,
    error::IoError,
    testing::{enter, stick, stuck, unstick, with_one_in_steps, with_units, within},
};

const RANGE: (u64, u64) = (0, 512);
const RESERVE_6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];

/// Discards at LUN 0, and has the lane's only permit for operations in several steps.
async fn use_up_permits(
    units: &Rc<LaneUnits>,
    nexus: &Rc<Nexus>,
) -> JoinHandle<Result<(), IoError>> {
    let discard = discard(units, nexus, (CommandId(1), 0));
    stuck(1).await;
    discard
}

fn discard(
    units: &Rc<LaneUnits>,
    nexus: &Rc<Nexus>,
    operation: (CommandId, u32),
) -> JoinHandle<Result<(), IoError>> {
    let (units, nexus) = (units.clone(), nexus.clone());
    spawn(async move { units.discard(&nexus, operation, RANGE).await })
}

/// Waits until an operation at LUN 1 has begun: it is at its first wait then.
async fn begun(nexus: &Nexus) {
    while nexus.running_at(1, |_| true).is_empty() {
        yield_now().await;
    }
}

#[test]
fn a_discard_that_waited_for_a_permit_is_refused_when_another_nexus_has_the_disk_reserved() {
    with_one_in_steps(async |units, [one, two]| {
        let nexus = enter(units, &[(0, &one), (1, &two)]);
        let other = enter(units, &[(0, &two)]);
        stick("one");
        let first = use_up_permits(units, &nexus).await;
        let waiting = discard(units, &nexus, (CommandId(3), 1));
        within(begun(&nexus)).await;
        let reserved = two.logical.borrow_mut().begin(other.id, &RESERVE_6);
        assert!(matches!(reserved, Action::End(ending) if ending.status == Status::Good));
        unstick();
        assert_eq!(within(first).await, Ok(()));
        assert_eq!(within(waiting).await, Err(IoError::ReservationConflict));
    });
}

#[test]
fn a_compare_and_write_that_waits_for_a_permit_keeps_nobody_from_its_blocks() {
    with_one_in_steps(async |units, [one, two]| {
        let nexus = enter(units, &[(0, &one), (1, &two)]);
        let other = enter(units, &[(0, &two)]);
        stick("one");
        let first = use_up_permits(units, &nexus).await;
        let waiting = {
            let (units, nexus) = (units.clone(), nexus.clone());
            let change = (Payload::zeroes(512), Payload::zeroes(512));
            let operation = (CommandId(3), 1);
            spawn(async move {
                units
                    .compare_and_write(&nexus, operation, 0, change, false)
                    .await
            })
        };
        within(begun(&nexus)).await;
        let write = units.write(&other, (CommandId(1), 0), 0, Payload::zeroes(512), false);
        assert_eq!(within(write).await, Ok(()));
        unstick();
        assert_eq!(within(first).await, Ok(()));
        assert_eq!(within(waiting).await, Ok(true));
    });
}

#[test]
fn a_disk_that_hangs_leaves_operations_in_several_steps_to_others() {
    with_units(async |units, [one, two]| {
        stick("one");
        let mut hang = Vec::new();
        // Also where its nexuses reach the other disk.
        let nexuses = [(); 8].map(|()| enter(units, &[(0, &one), (1, &two)]));
        for nexus in &nexuses {
            for number in 0..4 {
                hang.push(discard(units, nexus, (CommandId(number), 0)));
            }
        }
        while units.memory.steps.waiting() == 0 {
            yield_now().await;
        }
        for nexus in &nexuses {
            let done = discard(units, nexus, (CommandId(9), 1));
            assert_eq!(within(done).await, Ok(()));
        }
        unstick();
        for discard in hang {
            assert_eq!(within(discard).await, Ok(()));
        }
    });
}
