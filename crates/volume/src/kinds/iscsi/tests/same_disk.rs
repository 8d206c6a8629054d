//! A LUN that becomes another disk while the volume is open: nothing is written there.

use engine::{Buf, Payload, task::join_all};

use super::*;
use crate::{
    Claim,
    claim::{Others, Owner},
    member::Order,
};

const REPORTED_LUNS_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x3f, 0x0e];
const INQUIRY_DATA_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x3f, 0x03];
const I_T_NEXUS_LOSS: [u8; 3] = [UNIT_ATTENTION, 0x29, 0x07];

/// NAA 6h, of a logical unit, with this last byte.
pub(super) fn designators(last: u8) -> Vec<u8> {
    let mut designators = vec![1, 3, 0, 16, 0x60];
    designators.resize(19, 0);
    designators.push(last);
    designators
}

fn block(byte: u8) -> Payload {
    Buf::copy_of(&[byte; 512]).into()
}

fn named() -> Foreign {
    Foreign::new(Claims {
        designators: designators(1),
        ..Claims::default()
    })
}

/// Opens a disk, has the LUN become another one, with `attention` for the next command or with the loss of the session,
/// writes, and has it become the first one again.
fn becomes_another(attention: Option<[u8; 3]>) {
    let foreign = named();
    foreign.with(async |disk, foreign| {
        let write = |byte| disk.write(0, block(byte), Durability::Cached);
        write(1).await.expect("it is the disk");
        foreign.designators.replace(Some(designators(2)));
        match attention {
            None => foreign.drop_connections(),
            Some(sense) => foreign.answer(once(sense)),
        }
        for _ in 0..2 {
            let error = write(2).await.expect_err("it is another disk");
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
            for name in [
                "naa.60000000000000000000000000000001",
                "naa.60000000000000000000000000000002",
            ] {
                assert!(error.to_string().contains(name), "{error}");
            }
            disk.read(0, 512).await.expect_err("so are reads");
        }
        assert_eq!(foreign.first_byte(0), 1);
        foreign.designators.take();
        // The login is tried again a second later at most.
        time::sleep(Duration::from_secs(2)).await;
        write(3).await.expect("it is the disk again");
        assert_eq!(foreign.first_byte(0), 3);
    });
}

#[test]
fn a_lun_that_is_another_disk_at_a_later_login_is_not_written() {
    becomes_another(None);
}

#[test]
fn a_lun_that_becomes_another_disk_is_not_written_once_the_target_tells_of_it() {
    for attention in [REPORTED_LUNS_CHANGED, INQUIRY_DATA_CHANGED, I_T_NEXUS_LOSS] {
        becomes_another(Some(attention));
    }
}

/// The target tells of a change only once, to the first command.
#[test]
fn commands_in_flight_when_the_lun_became_another_disk_do_not_count() {
    let foreign = named();
    foreign.with(async |disk, foreign| {
        let write = |at: u64| disk.write(512 * at, block(1), Durability::Cached);
        write(0).await.expect("it is the disk");
        foreign.designators.replace(Some(designators(2)));
        foreign.answer(once(REPORTED_LUNS_CHANGED));
        for written in join_all((0..4).map(write).map(Box::pin)).await {
            let error = written.expect_err("it is another disk");
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        }
    });
}

#[test]
fn a_disk_that_stays_what_it_is_goes_on() {
    for attention in [REPORTED_LUNS_CHANGED, INQUIRY_DATA_CHANGED, I_T_NEXUS_LOSS] {
        let foreign = named();
        foreign.with(async |disk, foreign| {
            foreign.answer(once(attention));
            let written = disk.write(0, block(1), Durability::Cached).await;
            written.expect("it is sent again");
            disk.flush().await.expect("nothing is lost");
            assert_eq!(foreign.logins.get(), 1);
        });
    }
}

/// Runs `test` with a disk whose target is told the operation code of each command, with the number of those before,
/// and tells by its answers that the LUN is another disk.
fn told_by(
    instead: impl Fn(u8, u32) -> Option<Instead> + 'static,
    test: impl AsyncFnOnce(&Rc<IscsiDisk>, &Foreign),
) {
    let mut seen = std::collections::BTreeMap::new();
    named().with(async |disk, foreign| {
        foreign.designators.replace(Some(designators(2)));
        foreign.answer(move |cdb| {
            let before = seen.entry(cdb[0]).or_insert(0);
            *before += 1;
            instead(cdb[0], *before - 1)
        });
        test(disk, foreign).await;
        // The first disk is there again, and the login is tried again a second later at most.
        foreign.designators.take();
        foreign.answer(|_| None);
        time::sleep(Duration::from_secs(2)).await;
        let written = disk.write(0, block(3), Durability::Cached).await;
        written.expect("it is the disk again");
        assert_eq!(foreign.first_byte(0), 3);
    });
}

async fn is_another(disk: &IscsiDisk) {
    let error = disk.read(0, 512).await.expect_err("it is another disk");
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
}

#[test]
fn the_capacity_of_another_disk_is_not_taken_over() {
    const READ_10: u8 = 0x28;
    const READ_CAPACITY_16: u8 = 0x9e;
    const CAPACITY_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x09];
    let told = |code, before| match (code, before) {
        (READ_10, 0) => Some(Instead::Sense(CAPACITY_CHANGED)),
        (READ_CAPACITY_16, 0) => Some(Instead::Sense(REPORTED_LUNS_CHANGED)),
        _ => None,
    };
    told_by(told, async |disk, foreign| {
        let len_blocks = foreign.len_blocks.get();
        foreign.len_blocks.set(2 * len_blocks);
        is_another(disk).await;
        foreign.len_blocks.set(len_blocks);
        assert_eq!(disk.shape().len.bytes(), 512 * len_blocks);
    });
}

/// The target tells of the other disk when it is asked for the write cache, and is too busy to say at once which it is.
#[test]
fn the_write_cache_of_another_disk_is_not_taken_for_this_ones() {
    const INQUIRY: u8 = 0x12;
    const MODE_SENSE_6: u8 = 0x1a;
    const BUSY: u8 = 0x08;
    let site = Site::new(named());
    let foreign = site.foreign.clone();
    foreign.writes_through.set(true);
    site.run(async |disk, _| {
        let target = Rc::downgrade(&foreign);
        let (mut told, mut busy) = (once(REPORTED_LUNS_CHANGED), 2);
        foreign.answer(move |cdb| {
            let foreign = target.upgrade().expect("it serves");
            let is_another = !foreign.writes_through.get();
            match cdb[0] {
                MODE_SENSE_6 => {
                    foreign.designators.replace(Some(designators(2)));
                    foreign.writes_through.set(false);
                    told(cdb)
                }
                INQUIRY if is_another && busy > 0 => {
                    busy -= 1;
                    Some(Instead::Status(BUSY))
                }
                _ => None,
            }
        });
        foreign.drop_connections();
        is_another(disk).await;
        foreign.designators.take();
        foreign.writes_through.set(true);
        foreign.answer(|_| None);
        time::sleep(Duration::from_secs(2)).await;
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("it is the disk again, without a cache");
    });
}

/// The mark is read every second, and the first time that it is another disk's, the target tells of the change.
#[test]
fn a_claim_is_not_lost_to_the_owner_of_another_disk() {
    const READ_10: u8 = 0x28;
    const ILLEGAL_REQUEST: u8 = 0x05;
    let is_reservation = |cdb: &[u8]| matches!(cdb[0], 0x5e | 0x5f);
    let unsupported = || Instead::Sense([ILLEGAL_REQUEST, 0x20, 0x00]);
    named().with(async |disk, foreign| {
        foreign.answer(move |cdb| is_reservation(cdb).then(unsupported));
        let claim = Claim::single(&Owner::passing("a test"), Others::Refuse);
        disk.member(Order::Take(claim.clone()))
            .await
            .expect("nobody has it");
        foreign.designators.replace(Some(designators(2)));
        let mut told = once(REPORTED_LUNS_CHANGED);
        foreign.answer(move |cdb| match cdb[0] {
            _ if is_reservation(cdb) => Some(unsupported()),
            READ_10 => told(cdb).or(Some(Instead::Reply {
                status: 0,
                sense: Vec::new(),
                data: vec![0; 4096],
            })),
            _ => None,
        });
        time::sleep(Duration::from_secs(3)).await;
        foreign.designators.take();
        foreign.answer(move |cdb| is_reservation(cdb).then(unsupported));
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("it is the disk again, and this claim's");
        claim.check().expect("nobody else came");
    });
}

/// The target asks for a logout, and tells with the flush before it that the LUN is another disk. Then it restarts.
#[test]
fn a_flush_before_a_logout_that_may_have_reached_another_disk_does_not_count() {
    use scsi::opcode::{SYNCHRONIZE_CACHE_10, WRITE_10};
    named().with(async |disk, foreign| {
        let count = Rc::new(Cell::new(0));
        let counted = count.clone();
        foreign.answer(move |cdb| match cdb[0] {
            WRITE_10 => Some(Instead::AskForLogout),
            SYNCHRONIZE_CACHE_10 => {
                counted.set(counted.get() + 1);
                (counted.get() == 1).then_some(Instead::Sense(REPORTED_LUNS_CHANGED))
            }
            _ => None,
        });
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("a write");
        foreign.designators.replace(Some(designators(2)));
        while foreign.connected.get() > 0 {
            time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(count.get(), 1, "not to the other disk");
        foreign.designators.take();
        foreign.answer(once([UNIT_ATTENTION, 0x29, 0x01]));
        disk.read(0, 512).await.expect("over another session");
        let error = disk.flush().await.expect_err("the write may be lost");
        assert_eq!(error.kind(), ErrorKind::FlushFailed, "{error}");
    });
}

#[test]
fn a_target_that_does_not_say_which_disk_it_is_settles_nothing() {
    const ILLEGAL_REQUEST: u8 = 0x05;
    const INQUIRY: u8 = 0x12;
    named().with(async |disk, foreign| {
        let mut told = once(REPORTED_LUNS_CHANGED);
        foreign.answer(move |cdb| match cdb[0] {
            INQUIRY => Some(Instead::Sense([ILLEGAL_REQUEST, 0x25, 0x00])),
            _ => told(cdb),
        });
        let written = disk.write(0, block(1), Durability::Cached).await;
        let error = written.expect_err("which disk is it?");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert_eq!(foreign.first_byte(0), 0);
        foreign.answer(|_| None);
        let written = disk.write(0, block(1), Durability::Cached).await;
        written.expect("it is the disk");
    });
}

/// A target may have several unit attentions to tell.
#[test]
fn a_disk_that_waits_for_no_session_waits_for_the_answer_which_disk_it_is() {
    let site = Site::new(named());
    let config = IscsiConfig {
        reconnect_timeout: Duration::ZERO,
        ..site.config()
    };
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open(config).await.expect("a login");
        let mut told = [I_T_NEXUS_LOSS, REPORTED_LUNS_CHANGED, INQUIRY_DATA_CHANGED].into_iter();
        const READ_10: u8 = 0x28;
        site.foreign.answer(move |cdb| match cdb[0] {
            READ_10 => told.next().map(Instead::Sense),
            _ => None,
        });
        disk.read(0, 512).await.expect("all of them are heard");
        assert_eq!(site.foreign.logins.get(), 1);
        disk.close().await;
    });
}

/// The LUN of a disk that has a name becomes one that has none, or does not say.
#[test]
fn a_disk_that_no_longer_shows_its_name_is_neither_read_nor_written() {
    const INQUIRY: u8 = 0x12;
    for shown in ["nothing", "other data"] {
        named().with(async |disk, foreign| {
            let written = disk.write(0, block(1), Durability::Cached).await;
            written.expect("it is the disk");
            foreign.designators.replace(Some(Vec::new()));
            if shown == "other data" {
                let other = |cdb: &[u8]| cdb[0] == INQUIRY && cdb[1] == 1;
                foreign.answer(move |cdb| {
                    other(cdb).then(|| Instead::Reply {
                        status: 0,
                        sense: Vec::new(),
                        data: vec![0; 96],
                    })
                });
            }
            foreign.drop_connections();
            is_another(disk).await;
            let written = disk.write(0, block(2), Durability::Cached).await;
            written.expect_err("is it the disk?");
            assert_eq!(foreign.first_byte(0), 1, "{shown}");
            foreign.designators.take();
            foreign.answer(|_| None);
            time::sleep(Duration::from_secs(2)).await;
            disk.read(0, 512).await.expect("it is the disk again");
        });
    }
}
