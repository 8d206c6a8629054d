//! COMPARE AND WRITE: the disk compares, and no command that it may have executed is sent to it again.

use std::cell::RefCell;

use super::*;
use crate::CompareOutcome;

const COMPARE_AND_WRITE: u8 = 0x89;
const READ_10: u8 = 0x28;
const TASK_ABORTED: u8 = 0x40;
const BUSY: u8 = 0x08;
const CONFLICT: u8 = 0x18;

/// A block of `old`, then one of `new`.
fn change(old: u8, new: u8) -> Payload {
    engine::Buf::copy_of(&[[old; 512], [new; 512]].concat()).into()
}

async fn exchange(disk: &IscsiDisk, old: u8, new: u8) -> Result<CompareOutcome, ErrorKind> {
    let compared = disk.compare_and_write(512, change(old, new), Durability::Cached);
    compared.await.map_err(|error| error.kind())
}

/// Has these things happen to the first COMPARE AND WRITEs, in order; counts all of them.
fn happens(foreign: &Foreign, instead: &[Instead]) -> Rc<Cell<u32>> {
    let sent = Rc::new(Cell::new(0));
    let (count, left) = (sent.clone(), RefCell::new(instead.to_vec()));
    foreign.answer(move |cdb| {
        if cdb[0] != COMPARE_AND_WRITE {
            return None;
        }
        count.set(count.get() + 1);
        let mut left = left.borrow_mut();
        (!left.is_empty()).then(|| left.remove(0))
    });
    sent
}

#[test]
fn the_disk_compares_and_says_where_it_differs() {
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        assert_eq!(disk.shape().compare_and_write_max_bytes, 512);
        let sent = happens(foreign, &[]);
        assert_eq!(exchange(disk, 0, 1).await, Ok(CompareOutcome::Written));
        let differs = CompareOutcome::Differs { offset_bytes: 0 };
        assert_eq!(exchange(disk, 0, 2).await, Ok(differs));
        let mut expected = [[1; 512], [3; 512]].concat();
        expected[17] = 9;
        let data = engine::Buf::copy_of(&expected).into();
        let compared = disk.compare_and_write(512, data, Durability::Fua).await;
        let differs = CompareOutcome::Differs { offset_bytes: 17 };
        assert_eq!(compared.expect("it compares"), differs);
        assert_eq!((foreign.first_byte(1), sent.get()), (1, 3));
    });
}

#[test]
fn a_disk_that_has_no_such_command_is_not_sent_any() {
    let claims = Claims {
        compare_max_blocks: 0,
        ..Claims::default()
    };
    Foreign::new(claims).with(async |disk, foreign| {
        let sent = happens(foreign, &[]);
        assert_eq!(disk.shape().compare_and_write_max_bytes, 0);
        assert_eq!(exchange(disk, 0, 1).await, Err(ErrorKind::Misaligned));
        assert_eq!((foreign.first_byte(1), sent.get()), (0, 0));
    });
}

#[test]
fn what_was_not_tried_is_sent_again() {
    let refusals = [
        Instead::Sense([UNIT_ATTENTION, 0x2a, 0x01]),
        Instead::Sense([0x02, 0x04, 0x01]),
        Instead::Status(BUSY),
    ];
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        let sent = happens(foreign, &refusals);
        assert_eq!(exchange(disk, 0, 1).await, Ok(CompareOutcome::Written));
        assert_eq!((foreign.first_byte(1), sent.get()), (1, 4));
    });
}

#[test]
fn what_the_disk_may_have_done_is_not_sent_again() {
    // Not executed; executed and not answered; not said.
    for (instead, leaves) in [
        (Instead::Drop, 0),
        (Instead::Slow(3 * RECONNECT), 1),
        (Instead::Status(TASK_ABORTED), 0),
        (Instead::Sense([0x0b, 0x00, 0x00]), 0),
    ] {
        Foreign::new(Claims::default()).with(async |disk, foreign| {
            let sent = happens(foreign, std::slice::from_ref(&instead));
            let compared = exchange(disk, 0, 1).await;
            assert_eq!(compared, Err(ErrorKind::OutcomeUnknown), "{instead:?}");
            assert_eq!(sent.get(), 1, "{instead:?}");
            disk.read(512, 512).await.expect("the disk is back");
            assert_eq!(foreign.first_byte(1), leaves, "{instead:?}");
        });
    }
}

#[test]
fn reading_nothing_tells_of_a_fence() {
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        disk.read_nothing().await.expect("nobody is fenced");
        assert_eq!(foreign.transferred.take(), [0]);
        foreign.answer(|cdb| (cdb[0] == READ_10).then_some(Instead::Status(CONFLICT)));
        let fenced = disk.read_nothing().await.expect_err("it is fenced");
        assert_eq!(fenced.kind(), ErrorKind::ReservationConflict);
    });
}
