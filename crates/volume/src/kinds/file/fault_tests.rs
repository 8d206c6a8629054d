//! Durable writes that fail, on the disks of the simulated world: which errors concern only the write itself, and
//! which mean that other writes may be lost.

use std::path::Path;

use engine::{
    sim::{FaultKind, Host, InjectedFault, World, seeds},
    store,
    task::join_all,
};

use super::*;
use crate::kinds::file::Caching;

const LEN: u64 = 64 << 10;
const PAGE: usize = 4096;
const MODES: [Caching; 2] = [Caching::Direct, Caching::WriteBack];

async fn opened(caching: Caching) -> FileVolume<BackingFile> {
    let options = FileOptions {
        path: "/disk".into(),
        len_bytes: None,
        caching,
        block_size_bytes: 512,
        read_only: false,
    };
    let file = OpenFile::open(&options).await.expect("it is there");
    file.on_lane()
}

fn page(byte: u8) -> Payload {
    let mut buf = Buf::new(PAGE);
    buf.fill(byte);
    buf.into()
}

async fn write(disk: &impl Volume, index: u64, byte: u8, durability: Durability) -> Result<()> {
    let at = index * PAGE as u64;
    disk.write(at, page(byte), durability).await
}

async fn expect_page(disk: &impl Volume, index: u64, byte: u8) {
    let read = disk.read(index * PAGE as u64, PAGE).await.expect("a read");
    assert!(read.to_vec().iter().all(|found| *found == byte), "{index}");
}

/// A disk whose page 1 is written and volatile, on a machine where the sync of the next durable write will fail.
async fn opened_before_a_failing_sync(host: &Host, caching: Caching) -> FileVolume<BackingFile> {
    let disk = opened_with_a_volatile_page(caching).await;
    fail_next_sync(host);
    disk
}

async fn opened_with_a_volatile_page(caching: Caching) -> FileVolume<BackingFile> {
    let disk = opened(caching).await;
    disk.flush().await.expect("it flushes");
    write(&disk, 1, 1, Durability::Cached).await.expect("room");
    disk
}

fn fail_next_sync(host: &Host) {
    host.add_fault(InjectedFault {
        times: Some(1),
        ..InjectedFault::new(FaultKind::OwnSync, libc::EIO)
    });
}

/// A machine with a file.
fn machine(seed: u64) -> (World, Host) {
    let world = World::new(seed);
    let host = world.host("one");
    host.put_file("/disk", &vec![0; LEN as usize]);
    (world, host)
}

/// Runs each mode on a machine of its own, under several seeds.
fn on_a_machine<F: Future<Output = ()>>(test: impl Fn(Host, Caching) -> F) {
    for caching in MODES {
        seeds(20, |seed| {
            let (world, host) = machine(seed);
            world.block_on(&host, test(host.clone(), caching));
        });
    }
}

#[test]
fn a_durable_write_that_meets_a_bad_sector_is_an_error_of_that_write_only() {
    on_a_machine(async |host, caching| {
        let disk = opened_with_a_volatile_page(caching).await;
        host.add_fault(InjectedFault {
            range: 512..1024,
            ..InjectedFault::new(FaultKind::Write, libc::EIO)
        });
        let error = write(&disk, 0, 2, Durability::Fua).await;
        assert_eq!(error.expect_err("it is bad").kind(), ErrorKind::Medium);
        write(&disk, 2, 3, Durability::Fua)
            .await
            .expect("it is good");
        write(&disk, 3, 4, Durability::Cached)
            .await
            .expect("it is good");
        disk.flush().await.expect("all that was written");
        for (index, byte) in [(1, 1), (2, 3), (3, 4)] {
            expect_page(&disk, index, byte).await;
        }
    });
}

#[test]
fn a_durable_write_that_could_not_be_synced_fails_the_flush_of_what_may_be_lost() {
    on_a_machine(async |host, caching| {
        let disk = opened_before_a_failing_sync(&host, caching).await;
        let error = write(&disk, 0, 2, Durability::Fua).await;
        assert_eq!(error.expect_err("no sync").kind(), ErrorKind::Medium);
        for _ in 0..2 {
            let error = disk.flush().await.expect_err("page 1 may be lost");
            assert_eq!(error.kind(), ErrorKind::FlushFailed);
        }
        let error = write(&disk, 2, 3, Durability::Cached).await;
        assert_eq!(error.expect_err("refused").kind(), ErrorKind::FlushFailed);
    });
}

#[test]
fn a_flush_beside_a_durable_write_that_could_not_be_synced_hides_no_loss() {
    on_a_machine(async |host, caching| {
        let disk = opened_before_a_failing_sync(&host, caching).await;
        let durable = disk.write(0, page(2), Durability::Fua);
        let ended = join_all(vec![durable, disk.flush()]).await;
        ended[0].as_ref().expect_err("no sync");
        for _ in 0..2 {
            let error = disk.flush().await.expect_err("page 1 may be lost");
            assert_eq!(error.kind(), ErrorKind::FlushFailed);
        }
    });
}

#[test]
fn a_flush_is_not_good_while_it_is_judged_whether_the_disk_lost_its_cache() {
    for caching in MODES {
        seeds(50, |seed| {
            let (world, host) = machine(seed);
            let is_good = world.block_on(&host, async {
                let disk = opened_before_a_failing_sync(&host, caching).await;
                let durable = disk.write(0, page(2), Durability::Fua);
                let ended = join_all(vec![durable, disk.flush()]).await;
                host.power_cut();
                ended[1].is_ok()
            });
            host.restart();
            let left = host.read_file("/disk").expect("it is there");
            let is_kept = left[PAGE..2 * PAGE].iter().all(|found| *found == 1);
            assert!(is_kept || !is_good, "flushed and lost");
        });
    }
}

#[test]
fn a_durable_write_that_could_not_be_synced_while_nothing_is_volatile_is_its_own_error() {
    for caching in MODES {
        seeds(20, |seed| {
            let (world, host) = machine(seed);
            world.block_on(&host, async {
                let disk = opened(caching).await;
                write(&disk, 1, 1, Durability::Cached).await.expect("room");
                disk.flush().await.expect("it flushes");
                fail_next_sync(&host);
                let error = write(&disk, 0, 2, Durability::Fua).await;
                error.expect_err("no sync");
                disk.flush().await.expect("nothing that it covers is lost");
                write(&disk, 2, 3, Durability::Cached).await.expect("room");
                disk.flush().await.expect("it flushes");
                host.power_cut();
            });
            host.restart();
            let left = host.read_file("/disk").expect("it is there");
            for (index, byte) in [(1, 1), (2, 3)] {
                let page = &left[index * PAGE..][..PAGE];
                assert!(page.iter().all(|found| *found == byte), "{index}");
            }
        });
    }
}

/// Whether the file still has the mark of its opener after this has failed.
fn is_marked_after(test: impl AsyncFn(&Host, &FileVolume<BackingFile>), caching: Caching) -> bool {
    let (world, host) = machine(1);
    world.block_on(&host, async {
        let path = Path::new("/disk");
        store::set_opener(path, b"opener").expect("room");
        let disk = opened_with_a_volatile_page(caching).await;
        test(&host, &disk).await;
        store::opener(path).expect("it is there").is_some()
    })
}

#[test]
fn a_loss_that_is_reported_outlives_the_process_by_the_mark_that_the_file_loses() {
    let fail = |host: &Host, kind, errno| {
        host.add_fault(InjectedFault {
            times: Some(1),
            ..InjectedFault::new(kind, errno)
        });
    };
    for caching in MODES {
        let flushes = async |_: &Host, disk: &FileVolume<_>| disk.flush().await.expect("it works");
        assert!(is_marked_after(flushes, caching), "nothing has failed");
        for errno in [libc::EIO, libc::ENOSPC] {
            let flush = async |host: &Host, disk: &FileVolume<_>| {
                fail(host, FaultKind::Sync, errno);
                disk.flush().await.expect_err("it fails");
            };
            assert!(!is_marked_after(flush, caching));
            for kind in [FaultKind::OwnSync, FaultKind::Write] {
                let write = async |host: &Host, disk: &FileVolume<_>| {
                    fail(host, kind, errno);
                    let written = write(disk, 0, 2, Durability::Fua).await;
                    written.expect_err("it fails");
                };
                assert!(!is_marked_after(write, caching), "{kind:?} {errno}");
            }
        }
        let write = async |host: &Host, disk: &FileVolume<_>| {
            disk.flush().await.expect("it works");
            fail(host, FaultKind::OwnSync, libc::EIO);
            let written = write(disk, 0, 2, Durability::Fua).await;
            written.expect_err("it fails");
        };
        assert!(is_marked_after(write, caching), "nothing else is volatile");
    }
}
