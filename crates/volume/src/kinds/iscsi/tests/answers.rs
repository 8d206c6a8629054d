//! A target that gives the same answer to everything: the request fails in time, after a bounded number of commands,
//! and the disk works again when the target does.

use super::*;

/// More than a request can send in its time: the immediate retries, and one after each pause.
const COMMANDS_MAX: u64 = 300;

/// Every command is answered with `instead`.
fn always(instead: &Instead) {
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        let answer = instead.clone();
        foreign.answer(move |_| Some(answer.clone()));
        let before = foreign.commands.get();
        let began = time::now();
        let error = disk.read(0, 512).await.expect_err("there is no answer");
        let took = time::now() - began;
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{instead:?}: {error}");
        assert!(took < 2 * RECONNECT, "{instead:?}: {took:?}");
        let commands = foreign.commands.get() - before;
        assert!(commands < COMMANDS_MAX, "{instead:?}: {commands}");

        foreign.answer(|_| None);
        let read = disk.read(0, 512).await;
        read.expect("the target answers again");
    });
}

#[test]
fn one_unit_attention_after_another_is_an_error_in_time() {
    const CAPACITY_DATA_HAS_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x09];
    const BUS_DEVICE_RESET: [u8; 3] = [UNIT_ATTENTION, 0x29, 0x03];
    for sense in [CAPACITY_DATA_HAS_CHANGED, BUS_DEVICE_RESET] {
        always(&Instead::Sense(sense));
    }
}

#[test]
fn a_target_that_stays_busy_is_an_error_in_time() {
    const BUSY: u8 = 0x08;
    const TASK_SET_FULL: u8 = 0x28;
    for status in [BUSY, TASK_SET_FULL] {
        always(&Instead::Status(status));
    }
}
