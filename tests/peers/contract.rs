//! A disk of another target keeps the contract of a volume: random requests against a model, requests that must be
//! refused, overlapping requests in flight. None of these targets promises that a read concurrent with a write sees
//! whole blocks; they leave that to the page cache, which does not guarantee it.

use harness::directory::Directory;
use harness::disk::{Disk, Target};
use harness::initiator::{at_url, on_lane};
use harness::lio::{Backing, Lio};
use harness::tgt::Tgt;
use volume::{IscsiDisk, Volume, contract};

const DISK_BYTES: u64 = 8 << 20;

fn hold(url: &str, block_size_bytes: u32) {
    on_lane(async {
        let disk = IscsiDisk::open(at_url(url)).await.expect("a login");
        assert_eq!(disk.shape().block_size_bytes, block_size_bytes);
        assert_eq!(disk.shape().len_bytes(), DISK_BYTES);
        contract::hold_but_for_reads_beside_writes(disk.clone(), 7).await;
        disk.close().await;
    });
}

#[test]
fn on_tgt_with_blocks_of_512_and_of_4096_bytes() {
    let directory = Directory::new();
    for block_size_bytes in [512, 4096] {
        let mut tgt = Tgt::start();
        let file = directory.sparse("disk.img", DISK_BYTES);
        hold(
            &tgt.add_disk_of_blocks(&file, block_size_bytes),
            block_size_bytes,
        );
    }
}

#[test]
fn on_istgt() {
    if let Some(disk) = Disk::on(Target::Istgt, DISK_BYTES) {
        hold(&disk.url, 512);
    }
}

#[test]
fn on_lio_with_a_file_memory_and_a_device_behind_it() {
    for (backing, block_size_bytes) in [
        (Backing::File, 512),
        (Backing::File, 4096),
        (Backing::Ram, 512),
        (Backing::Device, 512),
        (Backing::Device, 4096),
    ] {
        let Some(lio) = Lio::serve(backing, DISK_BYTES, block_size_bytes) else {
            return;
        };
        hold(&lio.url(), block_size_bytes);
    }
}
