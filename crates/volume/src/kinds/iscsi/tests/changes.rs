//! What a disk says about itself may change while it is open: write protection, FUA and length are asked for again whenever
//! that may be, and whoever serves the disk is told.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use engine::{Buf, Payload};

use super::*;
use crate::announcer::Announcer;

const MODE_SENSE_6: u8 = 0x1a;
const WRITE_10: u8 = 0x2a;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
const MODE_PARAMETERS_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x01];
const WRITE_PROTECTED: [u8; 3] = [0x07, 0x27, 0x00];

fn block() -> Payload {
    Buf::copy_of(&[1; 512]).into()
}

/// How often the disk has announced a change from now on.
fn announced(disk: &IscsiDisk) -> Arc<AtomicU32> {
    let (announcer, count) = (Announcer::default(), Arc::new(AtomicU32::new(0)));
    let counted = count.clone();
    announcer.set(Some(Arc::new(move || {
        counted.fetch_add(1, Relaxed);
    })));
    disk.unit.announce_to(announcer);
    count
}

#[test]
fn write_protection_follows_the_target() {
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        let count = announced(disk);
        assert!(!disk.shape().read_only.is_on());
        for (is_protected, announcements) in [(true, 1), (false, 2)] {
            foreign.is_protected.set(is_protected);
            foreign.answer(once(MODE_PARAMETERS_CHANGED));
            disk.read(0, 512).await.expect("reads go on");
            assert_eq!(disk.shape().read_only.is_on(), is_protected);
            assert_eq!(count.load(Relaxed), announcements);
            let written = disk.write(0, block(), Durability::Cached).await;
            let kind = written.err().map(|error| error.kind());
            assert_eq!(kind, is_protected.then_some(ErrorKind::ReadOnly));
        }
    });
}

#[test]
fn a_refused_write_makes_the_disk_ask_for_its_write_protection() {
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        let count = announced(disk);
        foreign.is_protected.set(true);
        foreign.answer(|cdb| (cdb[0] == WRITE_10).then_some(Instead::Sense(WRITE_PROTECTED)));
        let written = disk.write(0, block(), Durability::Cached).await;
        let error = written.expect_err("it is protected");
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        disk.read(0, 512).await.expect("reads go on");
        assert!(disk.shape().read_only.is_on());
        assert_eq!(count.load(Relaxed), 1);
    });
}

#[test]
fn a_disk_without_a_caching_page_is_asked_whether_it_is_protected() {
    let foreign = Foreign::new(Claims::default());
    foreign.is_protected.set(true);
    foreign.answer(|cdb| match (cdb[0], cdb[2] & 0x3f) {
        (MODE_SENSE_6, 0x08) => Some(Instead::Sense([0x05, 0x24, 0x00])),
        (MODE_SENSE_6, _) => Some(Instead::Reply {
            status: 0,
            sense: Vec::new(),
            data: vec![3, 0, 0x80, 0],
        }),
        _ => None,
    });
    foreign.with(async |disk, _| {
        assert!(disk.shape().read_only.is_on() && disk.shape().volatile_cache);
    });
}

/// The commands for a durable write.
async fn durable_write(disk: &IscsiDisk, foreign: &Foreign) -> Vec<(u8, bool)> {
    let sent = Rc::new(std::cell::RefCell::new(Vec::new()));
    let log = sent.clone();
    foreign.answer(move |cdb| {
        if [WRITE_10, SYNCHRONIZE_CACHE_10].contains(&cdb[0]) {
            log.borrow_mut()
                .push((cdb[0], cdb[0] == WRITE_10 && cdb[1] & 0x08 != 0));
        }
        None
    });
    let written = disk.write(0, block(), Durability::Fua).await;
    written.expect("it is written");
    sent.take()
}

#[test]
fn a_durable_write_is_flushed_where_the_disk_does_not_take_fua() {
    let by_fua = [(WRITE_10, true)];
    let by_flush = [(WRITE_10, false), (SYNCHRONIZE_CACHE_10, false)];
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        assert_eq!(durable_write(disk, foreign).await, by_fua);
        foreign.ignores_fua.set(true);
        foreign.answer(once(MODE_PARAMETERS_CHANGED));
        disk.read(0, 512).await.expect("a read");
        assert_eq!(durable_write(disk, foreign).await, by_flush);
    });
    let foreign = Foreign::new(Claims::default());
    foreign.ignores_fua.set(true);
    foreign.with(async |disk, foreign| {
        assert_eq!(durable_write(disk, foreign).await, by_flush);
    });
}

#[test]
fn a_disk_that_says_nothing_is_asked_for_its_length_on_request_and_at_each_login() {
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        let count = announced(disk);
        let len = || disk.shape().len_bytes();
        let before = len();
        assert_eq!(disk.look_again().await, None);
        foreign.len_blocks.set(2 * before / 512);
        foreign.is_protected.set(true);
        let told = disk.look_again().await.expect("it has changed");
        assert!(told.ends_with("write-protected"), "{told}");
        assert_eq!((len(), count.load(Relaxed)), (2 * before, 2));
        foreign.len_blocks.set(4 * before / 512);
        disk.read(0, 512).await.expect("a read");
        assert_eq!(len(), 2 * before, "nobody has asked");
        foreign.drop_connections();
        disk.read(0, 512).await.expect("over another session");
        disk.read(0, 512).await.expect("a read");
        assert_eq!((len(), count.load(Relaxed)), (4 * before, 3));
    });
}

#[test]
fn zeroes_are_written_to_a_disk_that_refuses_the_write_same_it_says_it_has() {
    const WRITE_SAME_16: u8 = 0x93;
    let foreign = Foreign::new(Claims::default());
    foreign.with(async |disk, foreign| {
        let filled = disk
            .write(0, Buf::copy_of(&[1; 8192]).into(), Durability::Cached)
            .await;
        filled.expect("room");
        let refused = Rc::new(Cell::new(0));
        let count = refused.clone();
        foreign.answer(move |cdb| {
            let is_same = cdb[0] == WRITE_SAME_16;
            count.set(count.get() + u32::from(is_same));
            is_same.then_some(Instead::Sense([0x05, 0x24, 0x00]))
        });
        let zeroed = disk
            .write_zeroes(512, 4096, false, Durability::Cached)
            .await;
        zeroed.expect("by other commands");
        assert_eq!(refused.get(), 1);
        let content = disk.read(0, 8192).await.expect("a read").to_vec();
        let is_right = |(at, byte): (usize, &u8)| *byte == u8::from(!(512..4608).contains(&at));
        assert!(content.iter().enumerate().all(is_right));
    });
}

const READ_CAPACITY_16: u8 = 0x9e;

/// The answer to READ CAPACITY (16) of a disk with blocks of 4096 bytes.
fn has_blocks_of_4096() -> Instead {
    Instead::Changed {
        len: 32,
        at: 8,
        bytes: 4096u32.to_be_bytes().to_vec(),
    }
}

#[test]
fn a_disk_whose_blocks_have_another_size_is_neither_read_nor_written() {
    const CAPACITY_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x09];
    for attention in [None, Some(CAPACITY_CHANGED)] {
        Foreign::new(Claims::default()).with(async |disk, foreign| {
            let mut told = attention.map(once);
            foreign.answer(move |cdb| match cdb[0] {
                READ_CAPACITY_16 => Some(has_blocks_of_4096()),
                _ => told.as_mut().and_then(|told| told(cdb)),
            });
            if attention.is_none() {
                foreign.drop_connections();
            }
            foreign.transferred.take();
            for _ in 0..2 {
                let read = disk.read(4096, 512).await.map(drop);
                let written = disk.write(4096, block(), Durability::Cached).await;
                for done in [read, written] {
                    let error = done.expect_err("its blocks are elsewhere");
                    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
                }
            }
            assert_eq!(foreign.transferred.take(), [], "nothing was sent");
            foreign.answer(|_| None);
            disk.read(4096, 512).await.expect("it is as before");
        });
    }
}

#[test]
fn a_disk_that_no_longer_says_how_long_its_blocks_are_is_not_written() {
    let refused = Instead::Sense([0x05, 0x20, 0x00]);
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        let is_asked = |code| [READ_CAPACITY_16, 0x25].contains(&code);
        foreign.answer(move |cdb| is_asked(cdb[0]).then(|| refused.clone()));
        foreign.drop_connections();
        foreign.transferred.take();
        let written = disk.write(0, block(), Durability::Cached).await;
        let error = written.expect_err("where would it go?");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert_eq!(foreign.transferred.take(), []);
        foreign.answer(|_| None);
        let written = disk.write(0, block(), Durability::Cached).await;
        written.expect("it says so again");
    });
}
