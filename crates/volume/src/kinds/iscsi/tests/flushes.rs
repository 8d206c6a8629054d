//! A flush that was not done: what was written stays to be flushed, and only a flush that the disk has tried, or a restart of
//! the target, loses it.

use super::*;
use crate::planted::{Bug, Planted};

const SYNCHRONIZE_CACHE: u8 = 0x35;
const RESERVATION_CONFLICT: u8 = 0x18;

/// Answers every flush with this.
fn flushes(instead: Instead) -> impl FnMut(&[u8]) -> Option<Instead> {
    move |cdb| (cdb[0] == SYNCHRONIZE_CACHE).then(|| instead.clone())
}

/// A write, and a flush that ends as `instead` has it. Returns the outcome of the next write and flush, when the target is
/// as before.
async fn after(
    disk: &IscsiDisk,
    foreign: &Foreign,
    instead: Instead,
) -> (crate::Result<()>, crate::Result<()>) {
    let write = || disk.write(0, Payload::zeroes(512), Durability::Cached);
    write().await.expect("a write");
    foreign.answer(flushes(instead));
    disk.flush().await.expect_err("it is not flushed");
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    foreign.answer(move |cdb| {
        counted.set(counted.get() + u32::from(cdb[0] == SYNCHRONIZE_CACHE));
        None
    });
    let flushed = disk.flush().await;
    if flushed.is_ok() {
        assert_eq!(count.get(), 1, "it was still to be flushed");
    }
    (write().await, flushed)
}

#[test]
fn a_flush_that_was_refused_loses_nothing() {
    let conflict = Instead::Status(RESERVATION_CONFLICT);
    let standby = Instead::Sense([0x02, 0x04, 0x0b]);
    let refused = Instead::Sense([0x05, 0x24, 0x00]);
    for instead in [conflict, standby, refused, Instead::Late] {
        Foreign::new(Claims::default()).with(async |disk, foreign| {
            let (written, flushed) = after(disk, foreign, instead.clone()).await;
            written.unwrap_or_else(|error| panic!("{instead:?}: {error}"));
            flushed.unwrap_or_else(|error| panic!("{instead:?}: {error}"));
        });
    }
}

#[test]
#[should_panic(expected = "may be lost")]
fn a_flush_that_was_refused_and_loses_is_found() {
    let _planted = Planted::new(Bug::RefusedFlushLoses);
    a_flush_that_was_refused_loses_nothing();
}

#[test]
fn a_flush_that_was_tried_and_has_failed_loses_what_was_written() {
    for sense in [[0x03, 0x0c, 0x00], [0x04, 0x44, 0x00], [0x07, 0x27, 0x07]] {
        Foreign::new(Claims::default()).with(async |disk, foreign| {
            let (written, flushed) = after(disk, foreign, Instead::Sense(sense)).await;
            for failed in [written, flushed] {
                let error = failed.expect_err("it may be lost");
                assert_eq!(error.kind(), ErrorKind::FlushFailed, "{sense:?}: {error}");
            }
        });
    }
}

#[test]
fn a_flush_while_the_target_is_away_loses_nothing_unless_it_has_restarted() {
    for (attention, loses) in [(0x07, false), (0x03, false), (0x01, true)] {
        Foreign::new(Claims::default()).with(async |disk, foreign| {
            let write = || disk.write(0, Payload::zeroes(512), Durability::Cached);
            write().await.expect("a write");
            foreign.at_login(|_| AtLogin::Refuse(iscsi::LoginStatus::SERVICE_UNAVAILABLE));
            foreign.drop_connections();
            disk.flush().await.expect_err("nobody is there");
            foreign.at_login(|_| AtLogin::LetIn);
            foreign.answer(once([UNIT_ATTENTION, 0x29, attention]));
            let done = [disk.flush().await, write().await];
            for done in done {
                assert_eq!(done.is_err(), loses, "29h/{attention:02x}h");
            }
        });
    }
}
