//! The checker itself: what it permits, and what it must not.

use super::*;

/// One sector, and its reads in short.
struct One(Model);

impl One {
    fn new() -> One {
        One(Model::new(SECTOR_BYTES as u64, false))
    }

    fn begin(&mut self) -> Write {
        self.0.begin_write(0..1, false).0
    }

    fn write(&mut self, ending: Ending) -> u64 {
        let write = self.begin();
        let version = write.version;
        self.0.end_write(write, ending);
        version
    }

    /// Whether a read now may find `version`.
    fn permits(&mut self, version: u64) -> bool {
        let mut trial = Model {
            sectors: self.0.sectors.clone(),
            ..Model::new(0, self.0.cached)
        };
        (trial.tick, trial.version) = (self.0.tick, self.0.version);
        One(trial).read(version).is_ok()
    }

    fn read(&mut self, version: u64) -> Result<(), String> {
        let read = self.0.begin_read(0..1);
        self.find(read, version)
    }

    fn find(&mut self, read: Read, version: u64) -> Result<(), String> {
        let mut bytes = Vec::new();
        content::append(0, version, &mut bytes);
        self.0.end_read(read, &bytes)
    }

    fn flush(&mut self) {
        let flush = self.0.begin_flush();
        self.0.end_flush(&flush, true).expect("it is good");
    }

    fn crash(&mut self) {
        self.0.crashed(|_| true);
    }
}

use Ending::{Acknowledged, Durable, Failed};

#[test]
fn a_write_is_seen_from_its_acknowledgement_on() {
    let mut one = One::new();
    let first = one.write(Acknowledged);
    assert!(one.permits(first) && !one.permits(ZEROES));
    let second = one.begin();
    let version = second.version;
    assert!(one.permits(first) && one.permits(version));
    one.0.end_write(second, Acknowledged);
    assert!(one.permits(version) && !one.permits(first) && !one.permits(99));
}

#[test]
fn a_read_in_flight_may_find_what_was_there_at_any_moment_of_it() {
    let mut one = One::new();
    let first = one.write(Acknowledged);
    for found in [first, first + 1, first + 2] {
        let mut one = One(Model {
            sectors: one.0.sectors.clone(),
            ..Model::new(0, false)
        });
        (one.0.tick, one.0.version) = (10, first);
        let read = one.0.begin_read(0..1);
        one.write(Acknowledged);
        one.write(Acknowledged);
        one.find(read, found).expect("it was there");
        assert!(one.permits(first + 2));
        assert!(!one.permits(first) && !one.permits(first + 1));
    }
}

#[test]
fn what_was_seen_is_not_unseen() {
    let mut one = One::new();
    let first = one.write(Acknowledged);
    let pending = one.begin();
    one.read(pending.version).expect("it may be there already");
    assert!(!one.permits(first));
}

#[test]
fn a_failed_write_may_have_happened_but_does_not_happen_later() {
    let mut one = One::new();
    let first = one.write(Acknowledged);
    let failed = one.write(Failed);
    assert!(one.permits(first) && one.permits(failed));
    one.read(first).expect("it has not happened");
    assert!(!one.permits(failed));
    let failed = one.write(Failed);
    one.write(Acknowledged);
    assert!(!one.permits(failed), "overtaken by the past");
}

#[test]
fn a_crash_brings_back_what_was_not_durable_and_no_more() {
    let mut one = One::new();
    let durable = one.write(Durable);
    let lost = one.write(Acknowledged);
    one.crash();
    assert!(one.permits(durable) && one.permits(lost) && !one.permits(ZEROES));
    one.read(durable).expect("the cache is gone");
    assert!(!one.permits(lost), "what the crash left stays");

    let kept = one.write(Acknowledged);
    one.flush();
    one.crash();
    assert!(one.permits(kept) && !one.permits(durable) && !one.permits(lost));
}

#[test]
fn a_cache_may_know_what_a_crash_has_lost_until_the_volume_is_opened_again() {
    let mut one = One(Model::new(SECTOR_BYTES as u64, true));
    let lost = one.write(Acknowledged);
    one.crash();
    one.read(lost).expect("the cache knows it");
    assert!(one.permits(ZEROES), "and has let go of it");
    one.0.reopened();
    one.read(ZEROES).expect("it was lost");
    assert!(!one.permits(lost));
}

#[test]
fn a_flush_covers_only_what_had_ended_before_it_began() {
    let mut one = One::new();
    let flush = one.0.begin_flush();
    let late = one.write(Acknowledged);
    one.0.end_flush(&flush, true).expect("it is good");
    one.crash();
    assert!(one.permits(late) && one.permits(ZEROES));
}

#[test]
fn an_answer_that_was_on_its_way_while_the_target_crashed_promises_nothing_until_a_flush() {
    let mut one = One::new();
    let write = one.begin();
    let version = write.version;
    one.crash();
    one.0.end_write(write, Acknowledged);
    assert!(one.permits(version) && one.permits(ZEROES));
    one.flush();
    assert!(one.permits(version) && !one.permits(ZEROES));
}

#[test]
fn a_failed_flush_is_sticky_and_its_writes_are_never_promised() {
    let mut one = One::new();
    let unsure = one.write(Failed);
    let flush = one.0.begin_flush();
    one.0.end_flush(&flush, false).expect("it is told");
    let flush = one.0.begin_flush();
    one.0.end_flush(&flush, true).expect_err("sticky");
    one.0.reopened();
    one.flush();
    one.crash();
    one.0.reopened();
    assert!(one.permits(unsure) && one.permits(ZEROES), "nobody knew");
    one.read(unsure).expect("it was kept");
    one.flush();
    one.crash();
    assert!(!one.permits(ZEROES), "it was seen, and flushed");
}

#[test]
fn what_a_relieved_server_had_in_flight_does_not_happen_later() {
    let mut one = One::new();
    let before = one.write(Durable);
    let write = one.begin();
    let version = write.version;
    one.0.relieved();
    assert!(one.permits(before) && one.permits(version));
    one.read(before).expect("it has not happened");
    assert!(!one.permits(version), "it has happened later");
    one.0.end_write(write, Durable);
    assert!(!one.permits(before), "it was lost, but acknowledged");
}

#[test]
fn a_write_of_a_relieved_server_may_be_answered_after_it_was_overwritten() {
    let mut one = One::new();
    let write = one.begin();
    one.0.relieved();
    let newer = one.write(Durable);
    one.0.end_write(write, Durable);
    assert!(one.permits(newer));
}
