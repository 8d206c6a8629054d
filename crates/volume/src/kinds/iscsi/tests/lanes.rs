//! A disk that two lanes use, each over a session of its own.

use super::*;
use crate::{SharedVolume, kinds::iscsi::PathConfig};

/// Runs `test` with the disk on its home lane, and as the other lane reaches it.
fn with_two_lanes(test: impl AsyncFnOnce(&Rc<IscsiDisk>, &SharedVolume, &Foreign)) {
    let mut site = Site::new(Foreign::new(Claims::default()));
    site.client = site.world.host_with_lanes("client of two lanes", 2);
    let lanes = [site.client.lane(0), site.client.lane(1)];
    site.world.block_on(&site.client, async {
        let disk = IscsiDisk::open_on(two_sessions(&site, 0), &lanes).await;
        let disk = disk.expect("two logins");
        let branches = disk.from_branches().await.expect("the lanes run");
        let [other] = &branches[..] else {
            panic!("{} branches", branches.len());
        };
        // Its door opens when the home lane has looked.
        while disk.path_counts().beside_home == 0 {
            other.read(0, 512).await.expect("a read");
        }
        test(&disk, other, &site.foreign).await;
        disk.close().await;
    });
}

fn two_sessions(site: &Site, spare: usize) -> IscsiConfig {
    let second = PathConfig {
        address: site.host.addr(PORT),
        source: None,
        isid: Isid::random([1, 2, 3], 2),
    };
    IscsiConfig {
        multipath: Multipath {
            more: vec![second],
            spare,
            ..Multipath::default()
        },
        ..site.config()
    }
}

#[test]
fn a_flush_covers_what_another_lane_wrote() {
    with_two_lanes(async |disk, other, foreign| {
        const SYNCHRONIZE_CACHE: u8 = 0x35;
        disk.flush().await.expect("others may have written");
        let flushes = Rc::new(Cell::new(0));
        let count = flushes.clone();
        foreign.answer(move |cdb| {
            count.set(count.get() + u32::from(cdb[0] == SYNCHRONIZE_CACHE));
            None
        });
        disk.flush().await.expect("nothing is to be done");
        assert_eq!(flushes.get(), 0);
        for flushed_by in [disk.clone() as SharedVolume, other.clone()] {
            let before = (flushes.get(), disk.path_counts().beside_home);
            let write = other.write(0, Payload::zeroes(512), Durability::Cached);
            write.await.expect("a write");
            flushed_by.flush().await.expect("a flush");
            let after = (flushes.get(), disk.path_counts().beside_home);
            assert_eq!(after, (before.0 + 1, before.1 + 1));
        }
    });
}

#[test]
fn a_restart_told_on_any_lane_fails_the_flush_of_what_any_lane_wrote() {
    for (told_here, written_here) in [(true, false), (false, true), (false, false)] {
        with_two_lanes(async |disk, other, foreign| {
            let here: SharedVolume = disk.clone();
            let pick = |is_here: bool| if is_here { &here } else { other };
            let zeroes = Payload::zeroes(512);
            let write = pick(written_here).write(0, zeroes, Durability::Cached);
            write.await.expect("a write");
            foreign.answer(once([UNIT_ATTENTION, 0x29, 0x00]));
            let read = pick(told_here).read(0, 512).await;
            read.expect("it is sent again");
            for volume in [&here, other] {
                let error = volume.flush().await.expect_err("it may be lost");
                assert_eq!(error.kind(), ErrorKind::FlushFailed);
                let write = volume.write(0, Payload::zeroes(512), Durability::Cached);
                let error = write.await.expect_err("it would build on what is lost");
                assert_eq!(error.kind(), ErrorKind::FlushFailed);
            }
        });
    }
}

#[test]
fn a_lane_uses_its_session_again_when_what_was_told_on_it_is_seen_to() {
    with_two_lanes(async |disk, other, foreign| {
        const MODE_PARAMETERS_CHANGED: [u8; 3] = [UNIT_ATTENTION, 0x2a, 0x01];
        for round in 0..3 {
            foreign.answer(once(MODE_PARAMETERS_CHANGED));
            other.read(0, 512).await.expect("it is sent again");
            let before = disk.path_counts().beside_home;
            while disk.path_counts().beside_home == before {
                other.read(0, 512).await.expect("a read");
            }
            foreign.drop_connections();
            let write = other.write(0, Payload::zeroes(512), Durability::Cached);
            write
                .await
                .unwrap_or_else(|error| panic!("{round}: {error}"));
            let before = disk.path_counts().beside_home;
            while disk.path_counts().beside_home == before {
                other.read(0, 512).await.expect("a read");
                time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
}

#[test]
fn a_disk_that_is_closed_has_no_session_on_any_lane_and_has_them_again_when_it_is_used() {
    with_two_lanes(async |disk, other, _| {
        disk.close().await;
        assert_eq!(disk.live_paths(), 0);
        other.read(0, 512).await.expect("it logs in again");
        while disk.live_paths() < 2 {
            time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn a_target_that_takes_one_session_is_used_with_one_unless_more_are_asked_for() {
    for (spare, is_used) in [(1, true), (0, false)] {
        let mut site = Site::new(Foreign::new(Claims::default()));
        site.client = site.world.host_with_lanes("client of two lanes", 2);
        let lanes = [site.client.lane(0), site.client.lane(1)];
        let has_one = Cell::new(false);
        site.foreign.at_login(move |_| match has_one.replace(true) {
            false => AtLogin::LetIn,
            true => AtLogin::Refuse(iscsi::LoginStatus::AUTHORIZATION_FAILURE),
        });
        site.world.block_on(&site.client, async {
            match IscsiDisk::open_on(two_sessions(&site, spare), &lanes).await {
                Ok(disk) => {
                    assert!(is_used);
                    for other in disk.from_branches().await.expect("the lanes run") {
                        other.read(0, 512).await.expect("over the home lane");
                    }
                    let logins = site.foreign.logins.get();
                    time::sleep(Duration::from_secs(60)).await;
                    assert_eq!(site.foreign.logins.get(), logins, "it is not asked again");
                    disk.close().await;
                }
                Err(error) => assert!(!is_used, "{error}"),
            }
        });
    }
}
