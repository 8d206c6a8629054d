//! The times of a file whose lanes and clocks the test plays.

use super::*;

const LEN_BYTES: u64 = 1 << 20;

/// The lanes' clock and the time of day, each in seconds.
fn at(lane: u64, day: i64) -> Now {
    Now {
        lane: Instant::from_ns(lane * SECOND_NS as u64),
        day: Timestamp::new(day, 0),
    }
}

/// Two lanes; attached at second 1000.
fn changes() -> Changes {
    let attached = Timestamp::new(1000, 0);
    Changes {
        lanes: [LaneMark::default(), LaneMark::default()].into(),
        told: Mutex::new(Announced {
            marks: [0, 0].into(),
            len_bytes: LEN_BYTES,
            asked: attached,
            times: FileTimes {
                accessed: attached,
                modified: attached,
                changed: attached,
            },
        }),
    }
}

impl Changes {
    /// As [`Changes::mark`], by a clock of the test.
    fn mark_at(&self, lane: usize, second: u64) {
        let ns = second * SECOND_NS as u64;
        self.lanes[lane].0.store(ns, Ordering::Release);
    }

    fn asked(&self, now: Now) -> FileTimes {
        self.times_at(now, LEN_BYTES, None)
    }
}

#[test]
fn a_change_has_the_time_at_which_it_was_made_whenever_somebody_asks() {
    let changes = changes();
    let before = changes.asked(at(10, 1010));
    assert_eq!(before.modified, Timestamp::new(1000, 0));
    changes.mark_at(1, 15);
    let after = changes.asked(at(20, 1020));
    assert_eq!(after.modified, Timestamp::new(1015, 0));
    assert_eq!(after.changed, after.modified);
    assert_eq!(after.accessed, before.accessed);
    // Whatever the time of day becomes.
    assert_eq!(changes.asked(at(30, 5000)), after);
    assert_eq!(changes.asked(at(30, 10)), after);
}

#[test]
fn a_change_by_a_lane_is_not_hidden_by_a_newer_one_of_another() {
    let changes = changes();
    changes.mark_at(0, 30);
    let first = changes.asked(at(40, 1040));
    // Its clock is a little behind.
    changes.mark_at(1, 29);
    let second = changes.asked(at(50, 1050));
    assert!(second.modified > first.modified && second.changed > first.changed);
    // Nobody had seen it when they asked last.
    assert!(second.modified > Timestamp::new(1040, 0));
}

#[test]
fn a_change_is_later_than_all_that_was_told_before_even_if_the_clock_is_set_back() {
    let changes = changes();
    let mut last = changes.asked(at(10, 10_000));
    for (second, day) in [(20, 4000), (21, 4001), (22, 4002), (23, 20_000)] {
        changes.mark_at(0, second);
        let now = changes.asked(at(second, day));
        // In whole seconds, too.
        assert!(now.modified.parts().0 > last.modified.parts().0, "{day}");
        assert!(now.modified > Timestamp::new(10_000, 0), "{day}");
        last = now;
    }
    assert_eq!(last.modified, Timestamp::new(20_000, 0));
}

#[test]
fn a_file_that_has_grown_has_changed() {
    let changes = changes();
    let grown = changes.times_at(at(5, 1005), LEN_BYTES + 512, None);
    assert_eq!(grown.modified, Timestamp::new(1005, 0));
}

#[test]
fn times_that_are_set_stay_until_the_next_change() {
    let changes = changes();
    let old = Timestamp::new(-5, 7);
    let set = SetTimes {
        accessed: Some(SetTime::Now),
        modified: Some(SetTime::To(old)),
    };
    changes.mark_at(0, 3);
    let given = changes.times_at(at(5, 1005), LEN_BYTES, Some(set));
    assert_eq!(given.modified, old);
    assert_eq!(given.accessed, Timestamp::new(1005, 0));
    assert!(given.changed >= Timestamp::new(1005, 0), "that is a change");
    assert_eq!(changes.asked(at(6, 1006)), given);
    changes.mark_at(0, 7);
    let written = changes.asked(at(8, 1008));
    assert_eq!(written.modified, Timestamp::new(1007, 0));
    // A time to come does not hide changes, either.
    let to_come = SetTimes {
        accessed: None,
        modified: Some(SetTime::To(Timestamp::new(i64::MAX, 0))),
    };
    let given = changes.times_at(at(9, 1009), LEN_BYTES, Some(to_come));
    assert!(given.modified > Timestamp::new(9_000_000_000, 0));
    changes.mark_at(1, 10);
    let written = changes.asked(at(11, 1011));
    assert_eq!(written.modified, Timestamp::new(1010, 0));
}

#[test]
fn a_time_before_1970_has_its_parts() {
    for (seconds, nanoseconds) in [(-1, 999_999_999), (-2, 0), (0, 0), (7, 8)] {
        let time = Timestamp::new(seconds, nanoseconds);
        assert_eq!(time.parts(), (seconds, nanoseconds));
    }
    // What is too early or too late is cut off.
    assert!(Timestamp::new(i64::MIN, 5) < Timestamp::new(-9_000_000_000, 0));
}
