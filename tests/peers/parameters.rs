//! A peer may choose any legal parameters: the smallest bursts and segments, no unsolicited data, digests. Our
//! initiator must comply, and the data must arrive intact.

use engine::Buf;
use harness::directory::Directory;
use harness::disk::{Disk, Target};
use harness::initiator::{at_url, in_flight, on_lane};
use harness::lio::{Backing, Lio};
use harness::noise;
use harness::tgt::Tgt;
use volume::{
    Durability, IscsiConfig, IscsiDisk, Volume,
    layers::{Watch, watched},
};

const DISK_BYTES: u64 = 16 << 20;

/// Keys of RFC 7143 §13, in the targets' own syntax.
const CHOICES: [&[(&str, &str)]; 5] = [
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
    // Several R2Ts of each write are outstanding at a time.
    &[
        ("InitialR2T", "Yes"),
        ("ImmediateData", "No"),
        ("MaxBurstLength", "4096"),
        ("MaxOutstandingR2T", "4"),
    ],
    &[("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")],
];

fn reads_back_what_it_wrote(url: &str, choice: &[(&str, &str)]) {
    const SIZE_BYTES: usize = 96 << 10;
    const COUNT: usize = 64;
    let bytes = noise(11, SIZE_BYTES * COUNT);
    on_lane(async {
        let disk = IscsiDisk::open(at_url(url))
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

#[test]
fn what_was_written_is_read_back_whatever_tgt_has_chosen() {
    for choice in CHOICES {
        let directory = Directory::new();
        let mut tgt = Tgt::start();
        for (key, value) in choice {
            tgt.set(key, value);
        }
        let url = tgt.add_disk(&directory.sparse("disk.img", DISK_BYTES));
        reads_back_what_it_wrote(&url, choice);
    }
}

#[test]
fn what_was_written_is_read_back_whatever_lio_has_chosen() {
    for choice in CHOICES {
        let Some(lio) = Lio::serve(Backing::Ram, DISK_BYTES, 512) else {
            return;
        };
        for (key, value) in choice {
            lio.set(key, value);
        }
        reads_back_what_it_wrote(&lio.url(), choice);
    }
}

/// Other targets do not know the key by which ours report stage times: they answer NotUnderstood, and the session goes
/// on.
#[test]
fn a_target_that_does_not_know_a_key_of_ours_goes_on_without() {
    for target in [Target::Tgt, Target::Istgt, Target::Lio] {
        let Some(disk) = Disk::on(target, DISK_BYTES) else {
            continue;
        };
        let config = IscsiConfig {
            stage_times: true,
            ..at_url(&disk.url)
        };
        on_lane(async {
            let disk = IscsiDisk::open(config).await;
            let disk = disk.unwrap_or_else(|error| panic!("{target:?}: {error}"));
            let bytes = noise(13, 64 << 10);
            let data = Buf::copy_of(&bytes).into();
            let watch = Watch::new();
            let io = async {
                disk.write(0, data, Durability::Cached).await?;
                disk.read(0, bytes.len()).await
            };
            let read = watched(watch.clone(), io).await;
            let read = read.unwrap_or_else(|error| panic!("{target:?}: {error}"));
            assert!(read.to_vec() == bytes, "{target:?}: other data");
            let layers = watch.layers();
            let told = layers.wire + layers.target + layers.medium;
            assert!(told.is_zero() && !layers.untold.is_zero(), "{layers:?}");
            disk.close().await;
        });
    }
}

/// Requests these digests, and writes and reads a little.
fn with_digests(url: &str, header_digest: bool, data_digest: bool) {
    let bytes = noise(12, 200 << 10);
    let what = format!("{url} header {header_digest} data {data_digest}");
    let config = IscsiConfig {
        header_digest,
        data_digest,
        ..at_url(url)
    };
    on_lane(async {
        let disk = IscsiDisk::open(config).await;
        let disk = disk.unwrap_or_else(|error| panic!("{what}: {error}"));
        let used = (disk.digests().header, disk.digests().data);
        assert_eq!(used, (header_digest, data_digest), "{what}");
        let data = Buf::copy_of(&bytes).into();
        let written = disk.write(512, data, Durability::Cached).await;
        written.unwrap_or_else(|error| panic!("{what}: {error}"));
        let read = disk.read(512, bytes.len()).await;
        let read = read.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(read.to_vec() == bytes, "{what}: other data");
        disk.close().await;
    });
}

const DIGESTS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

#[test]
fn the_digests_that_we_ask_for_are_used_by_targets_that_leave_us_the_choice() {
    for target in [Target::Sanstone, Target::Istgt, Target::Lio] {
        let Some(disk) = Disk::on(target, DISK_BYTES) else {
            continue;
        };
        for (header, data) in DIGESTS {
            with_digests(&disk.url, header, data);
        }
    }
}

#[test]
fn the_digests_that_tgt_is_set_to_are_used() {
    let directory = Directory::new();
    for (header, data) in DIGESTS {
        let mut tgt = Tgt::start();
        for (key, wanted) in [("HeaderDigest", header), ("DataDigest", data)] {
            tgt.set(key, if wanted { "CRC32C" } else { "None" });
        }
        let url = tgt.add_disk(&directory.sparse("disk.img", DISK_BYTES));
        with_digests(&url, header, data);
    }
}
