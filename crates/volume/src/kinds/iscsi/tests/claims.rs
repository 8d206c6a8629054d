//! A claim that may have ended: nothing is sent before it is re-established, whoever asks.

use engine::{LaneFuture, task::join_all};

use super::*;
use crate::{
    Claim,
    claim::{LABEL_AT, Others, Owner},
    kinds::iscsi::session::RESERVATION_CONFLICT,
    member::Order,
};

const ILLEGAL_REQUEST: u8 = 0x05;
const MEDIUM_ERROR: u8 = 0x03;
const READ_16: u8 = 0x88;

/// What a command asks for, as far as these tests care.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Reservation,
    Mark,
    Data,
    Else,
}

impl Asked {
    fn of(cdb: &[u8]) -> Asked {
        let lba = match cdb[0] {
            0x5e | 0x5f => return Asked::Reservation,
            0x28 => u64::from(cdb[5]) | u64::from(cdb[4]) << 8,
            READ_16 => u64::from(cdb[9]) | u64::from(cdb[8]) << 8,
            _ => return Asked::Else,
        };
        match lba == LABEL_AT / 512 {
            true => Asked::Mark,
            false => Asked::Data,
        }
    }
}

/// A target without persistent reservations, except where `instead` decides.
fn unfenced(
    mut instead: impl FnMut(Asked) -> Option<Instead> + 'static,
) -> impl FnMut(&[u8]) -> Option<Instead> {
    move |cdb| match Asked::of(cdb) {
        Asked::Reservation => Some(Instead::Sense([ILLEGAL_REQUEST, 0x20, 0x00])),
        asked => instead(asked),
    }
}

async fn claim(disk: &Rc<IscsiDisk>) -> Claim {
    let claim = Claim::single(&Owner::passing("a test"), Others::Refuse);
    disk.member(Order::Take(claim.clone()))
        .await
        .expect("nobody has it");
    claim
}

#[test]
fn nothing_is_sent_until_the_claim_was_established_again_with_success() {
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        foreign.answer(unfenced(|_| None));
        let _claim = claim(disk).await;
        // A reset, and a mark that cannot be read.
        let sent = Rc::new(Cell::new(0));
        let counted = sent.clone();
        foreign.answer(unfenced(move |asked| match asked {
            Asked::Mark => Some(Instead::Sense([MEDIUM_ERROR, 0x11, 0x00])),
            Asked::Data => {
                counted.set(counted.get() + 1);
                Some(Instead::Sense([UNIT_ATTENTION, 0x29, 0x00])).filter(|_| counted.get() == 1)
            }
            _ => None,
        }));
        for _ in 0..3 {
            let error = disk.read(0, 512).await.expect_err("whose is it?");
            assert_eq!(error.kind(), ErrorKind::Medium, "{error}");
        }
        assert_eq!(sent.get(), 1, "only the one that told of the reset");
        foreign.answer(unfenced(|_| None));
        disk.read(0, 512).await.expect("it is ours");
    });
}

#[test]
fn whoever_asks_while_the_claim_is_established_again_waits() {
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        foreign.answer(unfenced(|_| None));
        let _claim = claim(disk).await;
        // A reset, and a read of the mark that is never answered.
        let sent = Rc::new(Cell::new(0));
        let counted = sent.clone();
        foreign.answer(unfenced(move |asked| match asked {
            Asked::Mark => Some(Instead::Late),
            Asked::Data => {
                counted.set(counted.get() + 1);
                Some(Instead::Sense([UNIT_ATTENTION, 0x29, 0x00])).filter(|_| counted.get() == 1)
            }
            _ => None,
        }));
        let reads = (0..3).map(|reader| async move {
            time::sleep(Duration::from_millis(20 * reader)).await;
            disk.read(0, 512).await.expect("it is ours");
        });
        let ends = async {
            time::sleep(Duration::from_millis(200)).await;
            assert_eq!(sent.get(), 1, "only the one that told of the reset");
            foreign.answer(unfenced(|_| None));
            foreign.drop_connections();
        };
        let reads = async { drop(join_all(reads.map(Box::pin)).await) };
        let both: [LaneFuture<'_, ()>; 2] = [LaneFuture::new(reads), LaneFuture::new(ends)];
        join_all(both).await;
    });
}

#[test]
fn a_reservation_of_another_initiator_is_a_kind_of_its_own() {
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        foreign.answer(|_| Some(Instead::Status(RESERVATION_CONFLICT)));
        let error = disk.read(0, 512).await.expect_err("it is reserved");
        assert_eq!(error.kind(), ErrorKind::ReservationConflict, "{error}");
        foreign.answer(|_| None);
        disk.read(0, 512).await.expect("it was released");
    });
}

#[test]
fn an_owner_that_was_preempted_is_told_so_for_good() {
    const REGISTRATIONS_PREEMPTED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x05];
    Foreign::new(Claims::default()).with(async |disk, foreign| {
        foreign.answer(unfenced(|_| None));
        let _claim = claim(disk).await;
        let other = Claim::single(&Owner::passing("another"), Others::Refuse);
        let mark = other.block();
        let marked = disk.write(LABEL_AT, mark, Durability::Fua).await;
        marked.expect("a write");
        let mut told = once(REGISTRATIONS_PREEMPTED);
        foreign.answer(unfenced(move |asked| match asked {
            Asked::Data => told(&[]),
            _ => None,
        }));
        for _ in 0..3 {
            let error = disk.read(0, 512).await.expect_err("it is another's");
            assert_eq!(error.kind(), ErrorKind::Preempted, "{error}");
        }
    });
}

#[test]
fn a_fence_with_another_registration_in_it_or_that_cannot_be_looked_at_is_none() {
    const OTHER: [u8; 16] = [0, 0, 0, 1, 0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
    let good = |data: &[u8]| Instead::Reply {
        status: 0,
        sense: Vec::new(),
        data: data.to_vec(),
    };
    let refusal = Instead::Sense([ILLEGAL_REQUEST, 0x24, 0x00]);
    let cases = [
        (good(&OTHER), ErrorKind::Claimed),
        (refusal, ErrorKind::Protocol),
    ];
    for (keys, kind) in cases {
        Foreign::new(Claims::default()).with(async |disk, foreign| {
            let claim = Claim::single(&Owner::passing("a test"), Others::Refuse);
            let mut held = vec![0, 0, 0, 1, 0, 0, 0, 16];
            held.extend(claim.key().to_be_bytes());
            held.extend([0, 0, 0, 0, 0, 6, 0, 0]);
            let mut is_reserved = false;
            foreign.answer(move |cdb| {
                is_reserved |= cdb[..2] == [0x5f, 1];
                match cdb[..2] {
                    [0x5e, 0] => Some(keys.clone()),
                    [0x5e, 1] if is_reserved => Some(good(&held)),
                    [0x5e, _] => Some(good(&[0; 8])),
                    _ => None,
                }
            });
            let refused = disk
                .member(Order::Take(claim.clone()))
                .await
                .expect_err("it is no fence");
            assert_eq!(refused.kind(), kind, "{refused}");
        });
    }
}

/// A disk with a registrants-only reservation that refuses others every command but `open_to_all`.
fn tells_registrants_only(open_to_all: &'static [u8]) {
    const REGISTER: u8 = 0;
    const REGISTER_AND_IGNORE_EXISTING_KEY: u8 = 6;
    const MODE_SENSE_6: u8 = 0x1a;
    let site = Site::new(Foreign::new(Claims::default()));
    let registered = Rc::new(Cell::new(false));
    let registrations = Rc::new(Cell::new(0));
    let (is_registered, count) = (registered.clone(), registrations.clone());
    site.foreign.answer(move |cdb| match (cdb[0], cdb[1]) {
        (0x5f, REGISTER_AND_IGNORE_EXISTING_KEY) => {
            is_registered.set(true);
            count.set(count.get() + 1);
            None
        }
        (0x5f, REGISTER) => {
            is_registered.set(false);
            None
        }
        (code, _) if open_to_all.contains(&code) => None,
        _ if !is_registered.get() => Some(Instead::Status(RESERVATION_CONFLICT)),
        // A header, and the caching page without WCE.
        (MODE_SENSE_6, _) => Some(Instead::Reply {
            status: 0,
            sense: Vec::new(),
            data: vec![6, 0, 0, 0, 0x08, 1, 0],
        }),
        _ => None,
    });
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(site.config()).await.expect("it is there");
        assert_eq!((registered.get(), registrations.get()), (false, 1));
        assert!(!disk.shape().volatile_cache, "it has told that it has none");
        let error = disk.read(0, 512).await.expect_err("it is reserved");
        assert_eq!(error.kind(), ErrorKind::ReservationConflict, "{error}");
        disk.close().await;
    });
}

/// As LIO, which hides even the capacity from others, and as our target, which hides only the mode pages.
#[test]
fn a_disk_that_tells_registrants_only_is_opened_as_one_for_a_moment() {
    const TEST_UNIT_READY: u8 = 0x00;
    const INQUIRY: u8 = 0x12;
    const READ_CAPACITY_16: u8 = 0x9e;
    tells_registrants_only(&[TEST_UNIT_READY, INQUIRY]);
    tells_registrants_only(&[TEST_UNIT_READY, INQUIRY, READ_CAPACITY_16]);
}
