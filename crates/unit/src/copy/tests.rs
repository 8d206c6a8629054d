//! EXTENDED COPY while LUNs come and go and others abort: what it reaches, and who waits for it.

use std::rc::Rc;

use engine::{Buf, Payload, spawn, task::JoinHandle};
use scsi::{Action, Asc, Copy, Ending};

use super::Copying;
use crate::{
    CommandId, LaneUnits, Luns, Mark, Nexus, Unit,
    testing::{enter, luns, stick, stuck, unstick, with_units, within},
};

const OWN: CommandId = CommandId(1);
const BLOCKS: u8 = 8;
const LEN: u32 = BLOCKS as u32 * 512;

/// A copy of the first blocks of `first` within it, then to the first blocks of `second`.
fn plan(nexus: &Nexus, first: &Unit, second: &Unit) -> Copy {
    let mut list = vec![0; 16];
    (list[0], list[3], list[11]) = (9, 64, 56);
    for unit in [first, second] {
        list.extend([0xE4, 0, 0, 0, 1, 3, 0, 16]);
        list.extend(super::naa(unit));
        list.extend([0; 8]);
    }
    for (to, lba) in [(0, BLOCKS), (1, 0)] {
        list.extend([2, 0, 0, 24, 0, 0, 0, to, 0, 0, 0, BLOCKS]);
        list.extend([0; 8]);
        list.extend(u64::from(lba).to_be_bytes());
    }
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x83, list.len() as u8);
    let mut logical = first.logical.borrow_mut();
    let Action::Parameters(wanted) = logical.begin(nexus.id, &cdb) else {
        panic!("it takes a list")
    };
    match logical.resume(wanted, &list) {
        Action::Copy(plan) => plan,
        other => panic!("{other:?}"),
    }
}

/// Begins a copy from the disk at LUN 0 to itself, where it waits until [`unstick`], and to `second`.
async fn begin(units: &Rc<LaneUnits>, nexus: &Rc<Nexus>, second: &Unit) -> JoinHandle<Ending> {
    let one = nexus.unit(0).expect("it has one");
    let data = Payload::from(Buf::copy_of(&[1; LEN as usize]));
    let written = units.write(nexus, (CommandId(9), 0), 0, data, false);
    assert_eq!(within(written).await, Ok(()));
    stick("one");
    let copying = Copying::begin(nexus, OWN, (0, &one), plan(nexus, &one, second));
    let units = units.clone();
    let copying = spawn(async move { units.copy(copying, || true).await });
    stuck(1).await;
    copying
}

/// Whether the first blocks at `lun` are what the copy writes.
async fn is_copied(units: &LaneUnits, nexus: &Rc<Nexus>, lun: u32) -> bool {
    let read = units.read(nexus, (CommandId(9), lun), (0, LEN)).await;
    let data = read.expect("it reads").0.to_vec();
    assert!(data == [1; LEN as usize] || data == [0; LEN as usize]);
    data[0] == 1
}

fn change(units: &LaneUnits, nexus: &Rc<Nexus>, now: &Rc<Luns>) -> JoinHandle<()> {
    spawn(units.show(nexus, now, "initiator", &mut |_, _| ()))
}

#[test]
fn a_copy_does_not_reach_a_disk_that_came_after_it_had_begun() {
    with_units(async |units, [one, two]| {
        let nexus = enter(units, &[(0, &one)]);
        let copying = begin(units, &nexus, &two).await;
        within(change(units, &nexus, &luns(&[(0, &one), (1, &two)]))).await;
        nexus.take_attention(1);
        // No fence of that disk knows of the copy, so it may not write there.
        assert_eq!(nexus.running_at(1, |_| true), []);
        unstick();
        let ended = within(copying).await.sense.expect("it was stopped");
        assert_eq!(ended.asc, Asc::UNREACHABLE_COPY_TARGET);
        assert!(!is_copied(units, &nexus, 1).await);
    });
}

#[test]
fn an_abort_waits_for_a_copy_at_each_disk_that_it_names_also_where_one_was_taken_away() {
    for is_removed in [false, true] {
        with_units(async move |units, [one, two]| {
            let nexus = enter(units, &[(0, &one), (1, &two)]);
            let other = enter(units, &[(0, &two)]);
            let copying = begin(units, &nexus, &two).await;
            let now = match is_removed {
                true => luns(&[(0, &one)]),
                false => nexus.luns(),
            };
            let changing = change(units, &nexus, &now);
            let clearing = {
                let (units, nexus, other) = (units.clone(), nexus.clone(), other.clone());
                spawn(async move {
                    units.clear_task_set(&other, 0, Mark::default()).await;
                    nexus.is_running()
                })
            };
            let watch = enter(units, &[]);
            for _ in 0..2 {
                within(units.clear_task_set(&watch, 0, Mark::default())).await;
            }
            assert!(!clearing.is_finished(), "removed: {is_removed}");
            assert_eq!(changing.is_finished(), !is_removed);
            unstick();
            assert_eq!(within(copying).await, Ending::GOOD);
            assert!(!within(clearing).await, "it still runs");
            within(changing).await;
            assert!(is_copied(units, &other, 0).await);
        });
    }
}
