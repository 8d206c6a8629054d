//! A disk of another target keeps the contract of a volume: random requests against a model, what
//! must be refused, overlapping requests in flight.

use harness::directory::Directory;
use harness::disk::{Disk, Target};
use harness::initiator::{at_url, on_lane};
use harness::tgt::Tgt;
use volume::{IscsiDisk, Volume, contract};

const DISK_BYTES: u64 = 8 << 20;

fn hold(url: &str, block_size_bytes: u32) {
    on_lane(async {
        let disk = IscsiDisk::open(at_url(url)).await.expect("a login");
        assert_eq!(disk.shape().block_size_bytes, block_size_bytes);
        assert_eq!(disk.shape().len_bytes(), DISK_BYTES);
        contract::hold(disk.clone(), 7).await;
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
    match Disk::on(Target::Istgt, DISK_BYTES) {
        Some(disk) => hold(&disk.url, 512),
        None => harness::skip("istgt is not installed here"),
    }
}
