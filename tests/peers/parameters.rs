//! A peer may choose any legal parameters: the smallest bursts and segments, no data before it is
//! asked for, digests. Our initiator keeps to them and the data arrive all the same.

use engine::Buf;
use harness::directory::Directory;
use harness::initiator::{at_url, in_flight, on_lane};
use harness::noise;
use harness::tgt::Tgt;
use volume::{Durability, IscsiDisk, Volume};

/// Keys of RFC 7143 §13 as tgt takes them.
const CHOICES: [&[(&str, &str)]; 4] = [
    &[
        ("MaxRecvDataSegmentLength", "512"),
        ("FirstBurstLength", "512"),
        ("MaxBurstLength", "512"),
    ],
    &[("InitialR2T", "Yes"), ("ImmediateData", "No")],
    &[
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("FirstBurstLength", "262144"),
        ("MaxBurstLength", "16776192"),
    ],
    &[("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")],
];

#[test]
fn what_was_written_is_read_back_whatever_tgt_has_chosen() {
    const SIZE_BYTES: usize = 96 << 10;
    const COUNT: usize = 64;
    let bytes = noise(11, SIZE_BYTES * COUNT);
    for choice in CHOICES {
        let directory = Directory::new();
        let mut tgt = Tgt::start();
        for (key, value) in choice {
            tgt.set(key, value);
        }
        let url = tgt.add_disk(&directory.sparse("disk.img", 16 << 20));
        on_lane(async {
            let disk = IscsiDisk::open(at_url(&url))
                .await
                .unwrap_or_else(|error| panic!("{choice:?}: {error}"));
            in_flight(16, COUNT, |i| {
                let data = Buf::copy_of(&bytes[i * SIZE_BYTES..][..SIZE_BYTES]).into();
                let written = disk.write((i * SIZE_BYTES) as u64, data, Durability::Cached);
                async move { written.await.unwrap_or_else(|e| panic!("{choice:?}: {e}")) }
            })
            .await;
            in_flight(16, COUNT, |i| {
                let read = disk.read((i * SIZE_BYTES) as u64, SIZE_BYTES);
                let expected = &bytes[i * SIZE_BYTES..][..SIZE_BYTES];
                async move {
                    let read = read.await.unwrap_or_else(|e| panic!("{choice:?}: {e}"));
                    assert!(read.to_vec() == expected, "{choice:?}: read {i} differs");
                }
            })
            .await;
            disk.close().await;
        });
    }
}
