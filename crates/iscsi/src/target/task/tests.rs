//! Data-Out in order and out of order.

use super::*;

fn data_out(data_sn: u32, offset: u32, is_final: bool) -> DataOut {
    DataOut {
        flags: if is_final { FINAL } else { 0 },
        target_transfer_tag: RESERVED_TAG.into(),
        data_sn: data_sn.into(),
        buffer_offset: offset.into(),
        ..Default::default()
    }
}

fn write_of_1024() -> Task {
    Task::new(1, 0, false, Direction::Write, 0, 1024, 0, Some(1024))
}

#[test]
fn data_out_of_order_costs_the_task_and_is_told_once() {
    let mut task = write_of_1024();
    let first = task
        .data_out(&data_out(1, 0, false), 512)
        .expect("no violation");
    assert_eq!((first.len, first.is_fault), (0, true));
    assert!(!task.is_quiet(), "the rest of the data is still due");
    let second = task
        .data_out(&data_out(0, 512, true), 512)
        .expect("no violation");
    assert_eq!((second.len, second.is_fault), (0, false));
    task.grant(1024).expect("room");
    assert!(!task.take_complete() && task.is_quiet());
}

#[test]
fn data_in_order_is_complete() {
    let mut task = write_of_1024();
    for (sn, offset) in [(0, 0), (1, 512)] {
        let place = task
            .data_out(&data_out(sn, offset, sn == 1), 512)
            .expect("in order");
        assert_eq!((place.len, place.is_fault), (512, false));
    }
    task.grant(1024).expect("room");
    assert!(task.take_complete());
}
