//! Files and devices that are not what one would assume, in the simulated world: sectors larger than the blocks that are
//! served, direct I/O that goes through the page cache, and files that become read-only.

use std::sync::atomic::AtomicU32;

use engine::{
    fs::FileState,
    sim::{Host, World, WorldConfig},
};

use super::*;
use crate::{announcer::Announcer, kinds::file::Caching};

const LEN: u64 = 64 << 10;

fn options(caching: Caching) -> FileOptions {
    FileOptions {
        path: "/disk".into(),
        len_bytes: None,
        caching,
        block_size_bytes: 512,
        read_only: false,
    }
}

fn with_disk(config: WorldConfig, test: impl AsyncFnOnce(&Host)) {
    let world = World::with_config(1, config);
    let host = world.host("disk");
    host.put_file("/disk", &[0xee; LEN as usize]);
    world.block_on(&host, async { test(&host).await });
}

#[test]
fn zeroes_reach_parts_of_the_sectors_of_a_device() {
    let mut config = WorldConfig::default();
    config.disk.sector_bytes = 4096;
    for caching in [Caching::Direct, Caching::WriteBack, Caching::WriteThrough] {
        with_disk(config.clone(), async |_| {
            let file = OpenFile::open(&options(caching)).await.expect("it opens");
            let disk = file.on_lane();
            for (lba, blocks) in [(1, 5), (0, 7), (3, 8), (5, 64), (8, 16), (7, 1)] {
                let before = Payload::from(Buf::copy_of(&[0xee; LEN as usize]));
                let filled = disk.write(0, before, Durability::Cached).await;
                filled.expect("room");
                let (at, len) = (lba * 512, blocks * 512);
                for may_discard in [false, true] {
                    let zeroed = disk
                        .write_zeroes(at, len, may_discard, Durability::Fua)
                        .await;
                    zeroed.expect("whatever the sectors");
                }
                let content = disk.read(0, LEN as usize).await.expect("a read").to_vec();
                let zeroes = at as usize..(at + len) as usize;
                let is_right = |(index, byte): (usize, &u8)| {
                    *byte == if zeroes.contains(&index) { 0 } else { 0xee }
                };
                assert!(
                    content.iter().enumerate().all(is_right),
                    "{caching:?} {lba} {blocks}"
                );
            }
        });
    }
}

#[test]
fn requests_are_ordered_unless_direct_io_is_confirmed() {
    for (caching, confirms_direct, is_ordered) in [
        (Caching::Direct, true, false),
        (Caching::Direct, false, true),
        (Caching::DirectSync, false, true),
        (Caching::WriteBack, true, true),
    ] {
        let mut config = WorldConfig::default();
        config.disk.confirms_direct = confirms_direct;
        config.disk.io_align_bytes = 512;
        with_disk(config, async |_| {
            let file = OpenFile::open(&options(caching)).await.expect("it opens");
            assert_eq!(file.excludes(), is_ordered, "{caching:?} {confirms_direct}");
            // A file may lose it later (chattr +j), and does not get it back.
            for is_direct in [false, true] {
                let is_read_only = false;
                file.follow_state(FileState {
                    is_direct,
                    is_read_only,
                });
                assert!(file.excludes());
            }
        });
    }
}

#[test]
fn a_file_that_becomes_read_only_protects_its_disk_until_it_is_writable_again() {
    with_disk(WorldConfig::default(), async |host| {
        let announcer = Announcer::default();
        let count = Arc::new(AtomicU32::new(0));
        let counted = count.clone();
        announcer.set(Some(Arc::new(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        })));
        let options = options(Caching::Direct);
        let file = OpenFile::open_making(&options, 1, &Arc::default(), announcer)
            .await
            .expect("it opens");
        let disk = file.on_lane();
        for (mode, is_read_only) in [(0o400, true), (0o600, false)] {
            host.set_mode("/disk", mode);
            let told = file.follow_state(file.state_now().expect("it says"));
            assert!(told.is_some_and(|told| told.starts_with("/disk ")));
            let again = file.follow_state(file.state_now().expect("it says"));
            assert_eq!(again, None, "once");
            let written = disk
                .write(0, Payload::zeroes(512), Durability::Cached)
                .await;
            let kind = written.err().map(|error| error.kind());
            assert_eq!(kind, is_read_only.then_some(ErrorKind::ReadOnly));
        }
        // A write that would be refused looks first.
        host.set_mode("/disk", 0o400);
        file.follow_state(file.state_now().expect("it says"));
        host.set_mode("/disk", 0o600);
        let written = disk.write(0, Payload::zeroes(512), Durability::Cached);
        written.await.expect("it is writable again");
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 4);
    });
}

#[test]
fn an_allocation_that_is_refused_is_not_a_failed_medium() {
    for number in [libc::EOPNOTSUPP, libc::EINVAL, libc::EPERM, libc::EREMOTEIO] {
        assert!(is_unable(&io::Error::from_raw_os_error(number)), "{number}");
    }
    for number in [libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::ENOLINK] {
        assert!(
            !is_unable(&io::Error::from_raw_os_error(number)),
            "{number}"
        );
    }
}
