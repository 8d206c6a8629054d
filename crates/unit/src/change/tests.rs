//! I/O at a LUN that is removed or becomes another disk's: who waits for it, and who does not.

use std::rc::Rc;

use engine::{Payload, spawn, task::JoinHandle};

use crate::{
    CommandId, LaneUnits, Luns, Mark, Nexus, Unit,
    error::IoError,
    testing::{enter, luns, show, stick, stuck, unstick, with_units, within},
};

/// A nexus that has the disk `one` at LUN 0, where a write of it waits until [`unstick`].
async fn enter_and_write(
    units: &Rc<LaneUnits>,
    one: &Rc<Unit>,
) -> (Rc<Nexus>, JoinHandle<Result<(), IoError>>) {
    let nexus = enter(units, &[(0, one)]);
    stick("one");
    let writing = spawn({
        let (units, nexus) = (units.clone(), nexus.clone());
        let data = Payload::zeroes(512);
        async move { units.write(&nexus, (CommandId(1), 0), 0, data, false).await }
    });
    stuck(1).await;
    (nexus, writing)
}

/// Makes a nexus reach `now`; ends with the I/O at the LUNs that it loses.
fn change(units: &LaneUnits, nexus: &Rc<Nexus>, now: &Rc<Luns>) -> JoinHandle<()> {
    spawn(units.show(nexus, now, "initiator", &mut |_, _| ()))
}

/// Resets the unit at LUN 0 of `by`; returns whether I/O of `of` was running when the reset was over.
fn reset(units: &Rc<LaneUnits>, by: &Rc<Nexus>, of: &Rc<Nexus>) -> JoinHandle<bool> {
    let (units, by, of) = (units.clone(), by.clone(), of.clone());
    spawn(async move {
        units.reset(&by, 0, Mark::default()).await;
        of.is_running()
    })
}

#[test]
fn a_reset_waits_for_the_io_at_a_lun_that_was_removed_or_moved() {
    for is_moved in [false, true] {
        with_units(async move |units, [one, two]| {
            let (nexus, writing) = enter_and_write(units, &one).await;
            let other = enter(units, &[(0, &one), (1, &two)]);
            let now = match is_moved {
                false => luns(&[]),
                true => luns(&[(5, &one), (0, &two)]),
            };
            let changing = change(units, &nexus, &now);
            let resetting = reset(units, &other, &nexus);
            // A lane answers in turn: a reset that does not wait is over when these are.
            within(units.clear_task_set(&other, 1, Mark::default())).await;
            within(units.clear_task_set(&other, 1, Mark::default())).await;
            unstick();
            let was_running = within(resetting).await;
            assert!(!was_running, "the reset waits, moved: {is_moved}");
            assert_eq!(within(writing).await, Ok(()));
            within(changing).await;
            assert_eq!(nexus.has_to_do_with(&one.disk.shared), is_moved);
        });
    }
}

#[test]
fn a_target_reset_waits_for_the_io_at_luns_that_the_target_shows_no_more() {
    const TARGET: &str = "iqn.2026-11.io.sanstone:unit";
    for (is_own, target) in [
        (true, TARGET),
        (false, TARGET),
        (false, "iqn.2026-11.io.sanstone:other"),
    ] {
        with_units(async move |units, [one, two]| {
            let (nexus, writing) = enter_and_write(units, &one).await;
            let other = enter(units, &[(0, &two)]);
            let changing = change(units, &nexus, &luns(&[]));
            assert_eq!(nexus.running_on_lost_at(0).len(), 1);
            let resetting = spawn({
                let by = if is_own { &nexus } else { &other };
                let (units, by, of) = (units.clone(), by.clone(), nexus.clone());
                async move {
                    units.reset_target(&by, target, Mark::default()).await;
                    of.is_running()
                }
            });
            for _ in 0..2 {
                within(units.clear_task_set(&other, 0, Mark::default())).await;
            }
            assert_eq!(resetting.is_finished(), target != TARGET, "own: {is_own}");
            unstick();
            let was_running = within(resetting).await;
            assert_eq!(was_running, target != TARGET);
            assert_eq!(within(writing).await, Ok(()));
            within(changing).await;
            assert_eq!(nexus.running_on_lost_at(0), []);
        });
    }
}

#[test]
fn a_reset_does_not_wait_for_the_io_of_a_disk_that_had_its_lun() {
    with_units(async |units, [one, two]| {
        let (nexus, writing) = enter_and_write(units, &one).await;
        let other = enter(units, &[(0, &two)]);
        let changing = change(units, &nexus, &luns(&[(0, &two)]));
        let was_running = within(reset(units, &other, &nexus)).await;
        assert!(was_running, "it is not the disk that is reset");
        assert_eq!(nexus.running_at(0, |_| true), []);
        // Nor is it the business of a disk that has the LUN after that one.
        let again = change(units, &nexus, &luns(&[(1, &one)]));
        assert_eq!(nexus.running_at(1, |_| true).len(), 1);
        within(again).await;
        assert!(nexus.has_to_do_with(&one.disk.shared));
        assert!(!nexus.has_to_do_with(&two.disk.shared));
        unstick();
        assert_eq!(within(writing).await, Ok(()));
        within(changing).await;
    });
}

#[test]
fn io_counts_at_the_lun_that_its_disk_has_now() {
    with_units(async |units, [one, _]| {
        let (nexus, writing) = enter_and_write(units, &one).await;
        assert_eq!(nexus.at_work(), [(CommandId(1), 0)]);
        let changing = change(units, &nexus, &luns(&[(5, &one)]));
        assert_eq!(nexus.at_work(), [(CommandId(1), 5)]);
        unstick();
        assert_eq!(within(writing).await, Ok(()));
        within(changing).await;
    });
}

#[test]
fn io_that_hangs_is_named_after_the_disk_that_it_is_on() {
    with_units(async |units, [one, two]| {
        let (nexus, writing) = enter_and_write(units, &one).await;
        let on_one = || [((0, "one".to_owned()), 1)].into();
        assert_eq!(nexus.running_by_volume(), on_one());
        let changing = change(units, &nexus, &luns(&[(0, &two)]));
        assert_eq!(nexus.running_by_volume(), on_one());
        unstick();
        assert_eq!(within(writing).await, Ok(()));
        within(changing).await;
    });
}

#[test]
fn a_nexus_is_known_to_a_disk_that_it_lost_and_got_again() {
    with_units(async |units, [one, _]| {
        let (nexus, writing) = enter_and_write(units, &one).await;
        let removing = change(units, &nexus, &luns(&[]));
        let adding = change(units, &nexus, &luns(&[(0, &one)]));
        within(adding).await;
        nexus.take_attention(0);
        unstick();
        assert_eq!(within(writing).await, Ok(()));
        within(removing).await;
        assert_eq!(nexus.take_attention(0), None, "it is not a new one");
    });
}

#[test]
fn a_lun_means_one_disk_as_long_as_its_nexus_lasts() {
    with_units(async |units, [one, two]| {
        let nexus = enter(units, &[(0, &one)]);
        let reached = |shown: &[(u32, &Rc<Unit>)]| {
            let reached = nexus.without_replaced(&luns(shown));
            reached.keys().copied().collect::<Vec<_>>()
        };
        assert_eq!(reached(&[(0, &one), (1, &two)]), [0, 1]);
        assert_eq!(reached(&[(0, &two), (1, &one)]), [1]);
        // Nor does it later mean another one.
        within(change(units, &nexus, &luns(&[(1, &two)]))).await;
        assert_eq!(reached(&[(0, &two), (1, &two)]), [1]);
        assert_eq!(reached(&[(0, &one), (1, &one)]), [0]);
        // The same disk in another way is no other disk.
        let again = show(units, "one");
        assert_eq!(reached(&[(0, &again)]), [0]);
    });
}
