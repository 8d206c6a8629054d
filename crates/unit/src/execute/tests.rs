//! Operations in several steps that wait for a permit while a disk is stuck: what they may not do then.

use std::rc::Rc;

use engine::{
    Payload, spawn,
    task::{JoinHandle, yield_now},
};
use scsi::{Action, Status};

use crate::{
    CommandId, LaneUnits, Nexus,
    block::BlockError,
    testing::{enter, stick, stuck, unstick, with_units, within},
};

const RANGE: (u64, u64) = (0, 512);
const RESERVE_6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];

/// Discards at LUN 0, until the nexus may have no more operations in several steps.
async fn use_up_permits(
    units: &Rc<LaneUnits>,
    nexus: &Rc<Nexus>,
) -> [JoinHandle<Result<(), BlockError>>; 2] {
    let discards = [1, 2].map(|command| {
        let (units, nexus) = (units.clone(), nexus.clone());
        spawn(async move { units.discard(&nexus, (CommandId(command), 0), RANGE).await })
    });
    stuck(discards.len()).await;
    discards
}

/// Waits until an operation at LUN 1 has begun: it is at its first wait then.
async fn begun(nexus: &Nexus) {
    while nexus.running_at(1, |_| true).is_empty() {
        yield_now().await;
    }
}

#[test]
fn a_discard_that_waited_for_a_permit_is_refused_when_another_nexus_has_the_disk_reserved() {
    with_units(async |units, [one, two]| {
        let nexus = enter(units, &[(0, &one), (1, &two)]);
        let other = enter(units, &[(0, &two)]);
        stick("one");
        let discards = use_up_permits(units, &nexus).await;
        let waiting = {
            let (units, nexus) = (units.clone(), nexus.clone());
            spawn(async move { units.discard(&nexus, (CommandId(3), 1), RANGE).await })
        };
        within(begun(&nexus)).await;
        let reserved = two.logical.borrow_mut().begin(other.id, &RESERVE_6);
        assert!(matches!(reserved, Action::End(ending) if ending.status == Status::Good));
        unstick();
        for discard in discards {
            assert_eq!(within(discard).await, Ok(()));
        }
        assert_eq!(within(waiting).await, Err(BlockError::Conflict));
    });
}

#[test]
fn a_compare_and_write_that_waits_for_a_permit_keeps_nobody_from_its_blocks() {
    with_units(async |units, [one, two]| {
        let nexus = enter(units, &[(0, &one), (1, &two)]);
        let other = enter(units, &[(0, &two)]);
        stick("one");
        let discards = use_up_permits(units, &nexus).await;
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
        for discard in discards {
            assert_eq!(within(discard).await, Ok(()));
        }
        assert_eq!(within(waiting).await, Ok(true));
    });
}
