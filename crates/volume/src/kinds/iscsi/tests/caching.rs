//! A volatile write cache that appears while the volume is open, which needs flushes that nobody sends.

use engine::{Buf, Payload, task::join_all};

use super::*;
use crate::member::Order;

fn block() -> Payload {
    Buf::copy_of(&[1; 512]).into()
}

/// Opens a disk whose target says `writes_through`, runs `change`, and reads. Returns the outcome of a write and of a
/// flush.
fn after(
    writes_through: bool,
    change: impl FnOnce(&Foreign),
) -> (crate::Result<()>, crate::Result<()>) {
    let foreign = Foreign::new(Claims::default());
    foreign.writes_through.set(writes_through);
    let mut outcome = None;
    foreign.with(async |disk, foreign| {
        assert_eq!(disk.shape().volatile_cache, !writes_through);
        let written = disk.write(0, block(), Durability::Cached).await;
        written.expect("a write");
        change(foreign);
        disk.read(0, 512).await.expect("reads go on");
        let written = disk.write(0, block(), Durability::Cached).await;
        outcome = Some((written, disk.flush().await));
    });
    outcome.expect("the test has run")
}

const MODE_PARAMETERS_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x01];
const I_T_NEXUS_LOSS: [u8; 3] = [UNIT_ATTENTION, 0x29, 0x07];

#[test]
fn a_cache_that_a_later_session_finds_fails_writes_and_flushes() {
    let (written, flushed) = after(true, |foreign| {
        foreign.writes_through.set(false);
        foreign.drop_connections();
    });
    for failed in [written, flushed] {
        let error = failed.expect_err("nothing flushes the cache");
        assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
        let said = "open the volume again";
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn a_cache_that_a_unit_attention_tells_of_fails_writes_and_flushes() {
    for attention in [MODE_PARAMETERS_CHANGED, I_T_NEXUS_LOSS] {
        let (written, flushed) = after(true, |foreign| {
            foreign.writes_through.set(false);
            foreign.answer(once(attention));
        });
        for failed in [written, flushed] {
            let error = failed.expect_err("nothing flushes the cache");
            assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
        }
    }
}

/// What a mirror does before it takes a copy back, which it fills then.
#[test]
fn a_cache_that_has_gone_again_fails_nothing_once_the_owner_looks_at_the_disk_anew() {
    let foreign = Foreign::new(Claims::default());
    foreign.writes_through.set(true);
    foreign.with(async |disk, foreign| {
        let fails = async || disk.write(0, block(), Durability::Fua).await.is_err();
        let renew = async || disk.member(Order::Renew).await.expect("it answers");
        foreign.writes_through.set(false);
        foreign.answer(once(MODE_PARAMETERS_CHANGED));
        disk.read(0, 512).await.expect("reads go on");
        assert!(fails().await, "nothing flushes the cache");
        renew().await;
        assert!(fails().await, "it is still there");
        foreign.writes_through.set(true);
        assert!(fails().await, "nobody knows what was lost");
        renew().await;
        assert!(!fails().await, "it is gone");
        foreign.writes_through.set(false);
        foreign.drop_connections();
        disk.read(0, 512).await.expect("reads go on");
        assert!(fails().await, "it is there again");
    });
}

#[test]
fn a_cache_that_stays_as_it_was_or_goes_fails_nothing() {
    for (writes_through, later) in [(true, true), (false, false), (false, true)] {
        for attention in [None, Some(MODE_PARAMETERS_CHANGED)] {
            let (written, flushed) = after(writes_through, |foreign| {
                foreign.writes_through.set(later);
                match attention {
                    None => foreign.drop_connections(),
                    Some(attention) => foreign.answer(once(attention)),
                }
            });
            written.expect("it is written as before");
            flushed.expect("it is flushed as before");
        }
    }
}

/// The target tells of the cache only once, to the first command.
#[test]
fn writes_in_flight_when_a_cache_appeared_do_not_count() {
    let foreign = Foreign::new(Claims::default());
    foreign.writes_through.set(true);
    foreign.with(async |disk, foreign| {
        disk.read(0, 512).await.expect("a read");
        foreign.writes_through.set(false);
        foreign.answer(once(MODE_PARAMETERS_CHANGED));
        let write = |at: u64| disk.write(512 * at, block(), Durability::Fua);
        for written in join_all((0..4).map(write)).await {
            let error = written.expect_err("nothing flushes the cache");
            assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
        }
    });
}

#[test]
fn no_flush_is_done_while_others_keep_the_target_from_telling_of_a_cache() {
    const RESERVATION_CONFLICT: u8 = 0x18;
    const MODE_SENSE_6: u8 = 0x1a;
    let foreign = Foreign::new(Claims::default());
    foreign.writes_through.set(true);
    foreign.with(async |disk, foreign| {
        let mut told = once(MODE_PARAMETERS_CHANGED);
        foreign.answer(move |cdb| match cdb[0] {
            MODE_SENSE_6 => Some(Instead::Status(RESERVATION_CONFLICT)),
            _ => told(cdb),
        });
        let written = disk.write(0, block(), Durability::Cached).await;
        written.expect("the target takes it");
        let error = disk.flush().await.expect_err("it may be in a cache");
        assert_eq!(error.kind(), ErrorKind::ReservationConflict, "{error}");
        foreign.answer(|_| None);
        disk.flush().await.expect("there is no cache");
        foreign.writes_through.set(false);
        foreign.answer(once(MODE_PARAMETERS_CHANGED));
        disk.read(0, 512).await.expect("reads go on");
        let error = disk.flush().await.expect_err("nothing flushes the cache");
        assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
    });
}

/// The target answers MODE SENSE with `instead` for a while after a login, and then says that there is a cache. Returns
/// the outcome of a write and a read before that, and of a write after it.
fn not_told_at_a_login(instead: Instead) -> [crate::Result<()>; 3] {
    const MODE_SENSE_6: u8 = 0x1a;
    let foreign = Foreign::new(Claims::default());
    foreign.writes_through.set(true);
    let mut outcome = None;
    foreign.with(async |disk, foreign| {
        foreign.answer(move |cdb| (cdb[0] == MODE_SENSE_6).then(|| instead.clone()));
        foreign.drop_connections();
        let written = disk.write(0, block(), Durability::Cached).await;
        let read = disk.read(0, 512).await.map(drop);
        foreign.writes_through.set(false);
        foreign.answer(|_| None);
        let later = disk.write(0, block(), Durability::Cached).await;
        assert_eq!(foreign.logins.get(), 2);
        outcome = Some([written, read, later]);
    });
    outcome.expect("the test has run")
}

#[test]
fn a_disk_that_others_have_reserved_at_a_login_is_not_lost_and_its_cache_is_found_later() {
    const RESERVATION_CONFLICT: u8 = 0x18;
    let [written, read, later] = not_told_at_a_login(Instead::Status(RESERVATION_CONFLICT));
    written.expect("the target takes it");
    read.expect("the target takes it");
    let error = later.expect_err("nothing flushes the cache");
    assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
}

#[test]
fn a_target_that_no_longer_says_whether_there_is_a_cache_is_used_as_before() {
    const ILLEGAL_REQUEST: u8 = 0x05;
    let done = not_told_at_a_login(Instead::Sense([ILLEGAL_REQUEST, 0x20, 0x00]));
    for done in done {
        done.expect("nothing says that there is a cache");
    }
}

#[test]
fn a_disk_whose_protection_was_lifted_takes_the_next_write_though_nobody_reads() {
    let foreign = Foreign::new(Claims::default());
    foreign.is_protected.set(true);
    foreign.with(async |disk, foreign| {
        let write = || disk.write(0, block(), Durability::Cached);
        let zero = || disk.write_zeroes(512, 512, false, Durability::Cached);
        for _ in 0..2 {
            for refused in [write().await, zero().await, disk.discard(0, 512).await] {
                let error = refused.expect_err("it is protected");
                assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
            }
        }
        // It tells of it with the answer to a command.
        foreign.is_protected.set(false);
        write().await.expect("it asks first");
        assert!(!disk.shape().read_only.is_on());
        assert_eq!(foreign.first_byte(0), 1);
    });
}
