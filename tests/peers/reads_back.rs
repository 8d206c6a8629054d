//! Our initiator reads back what it wrote, with 1 to 128 requests at a time, from a single block to 4 MiB each.

use engine::{Buf, Payload};
use harness::disk::{Disk, Target};
use harness::initiator::{at_url, in_flight, on_lane};
use harness::noise;
use volume::{Durability, IscsiDisk, Volume};

const DEPTHS: [usize; 4] = [1, 8, 32, 128];
const SIZES_BYTES: [usize; 8] = [
    512,
    4096,
    16 << 10,
    64 << 10,
    (64 << 10) + 512, // one block more than a usual burst
    256 << 10,
    1 << 20,
    4 << 20,
];

/// With requests of up to this many bytes.
fn reads_back_what_it_wrote(target: Target, longest_bytes: usize) {
    let longest_depth = DEPTHS[DEPTHS.len() - 1];
    let Some(disk) = Disk::on(target, (longest_bytes * longest_depth) as u64) else {
        return;
    };
    // Every request uses a different slice of the same noise.
    let bytes = noise(5, (4 << 20) + 4096 * 128);
    let source: Payload = Buf::copy_of(&bytes).into();
    on_lane(async {
        let disk = IscsiDisk::open(at_url(&disk.url)).await.expect("a login");
        let mut round = 0;
        for size in SIZES_BYTES
            .into_iter()
            .filter(|size| *size <= longest_bytes)
        {
            for depth in DEPTHS {
                round += 1;
                let count = depth.max(16);
                let begin = |i: usize| (i * 128 + round * 16) % 4096 * 128;
                in_flight(depth, count, |i| {
                    let data = source.slice(begin(i)..begin(i) + size);
                    let written = disk.write((i * size) as u64, data, Durability::Cached);
                    async move {
                        written.await.unwrap_or_else(|error| {
                            panic!("write {i} of {size} bytes at depth {depth}: {error}")
                        });
                    }
                })
                .await;
                let expected = |i: usize| &bytes[begin(i)..begin(i) + size];
                in_flight(depth, count, |i| {
                    let read = disk.read((i * size) as u64, size);
                    let expected = expected(i);
                    async move {
                        let read = read.await.unwrap_or_else(|error| {
                            panic!("read {i} of {size} bytes at depth {depth}: {error}")
                        });
                        let same = read.to_vec() == expected;
                        assert!(same, "read {i} of {size} bytes at depth {depth} differs");
                    }
                })
                .await;
            }
        }
        disk.flush().await.expect("a flush");
        disk.close().await;
    });
}

#[test]
fn on_tgt() {
    reads_back_what_it_wrote(Target::Tgt, 4 << 20);
}

#[test]
fn on_istgt() {
    reads_back_what_it_wrote(Target::Istgt, 4 << 20);
}

/// Every byte goes through an emulated machine.
#[test]
fn on_lio() {
    reads_back_what_it_wrote(Target::Lio, 256 << 10);
}

#[test]
fn on_our_own_target() {
    reads_back_what_it_wrote(Target::Sanstone, 4 << 20);
}
