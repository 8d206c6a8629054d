//! The proof of durability: workloads on the file leaf over the recorder, cut at every event. And the test of the
//! test: a leaf that loses flushes or durable writes is caught.

use std::{io, rc::Rc};

use engine::{
    Buf, Lane, LaneConfig, Payload, extent::Extent, op::AllocateMode, random::SplitMix64, task,
};

use super::{
    Content, Event, Promises, Recorder, Recording, SECTOR_BYTES, Survivors, Violation, Witness,
};
use crate::{
    Durability, SharedVolume,
    kinds::file::Caching,
    kinds::file::{Backing, FileOptions, OpenFile},
    scratch::Scratch,
};

const LEN_BYTES: u64 = 64 << 10;

/// What gets lost between the leaf and its backing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Missing {
    Nothing,
    Syncs,
    DurableWrites,
}

/// A backing file that does not do everything it is asked for.
struct Broken<B> {
    backing: B,
    missing: Missing,
}

impl<B: Backing> Backing for Broken<B> {
    async fn read(&self, at: u64, buf: Buf) -> (io::Result<()>, Buf) {
        self.backing.read(at, buf).await
    }

    async fn write(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        let durable = durable && self.missing != Missing::DurableWrites;
        self.backing.write(at, data, durable).await
    }

    async fn write_atomic(&self, at: u64, data: Payload, durable: bool) -> io::Result<()> {
        let durable = durable && self.missing != Missing::DurableWrites;
        self.backing.write_atomic(at, data, durable).await
    }

    async fn extent(&self, at: u64) -> io::Result<Extent> {
        self.backing.extent(at).await
    }

    async fn sync(&self) -> io::Result<()> {
        if self.missing == Missing::Syncs {
            return Ok(());
        }
        self.backing.sync().await
    }

    async fn allocate(&self, mode: AllocateMode, at: u64, len: u64) -> io::Result<()> {
        self.backing.allocate(mode, at, len).await
    }
}

/// Concurrent requests from four tasks.
async fn work(volume: &SharedVolume, seed: u64) {
    let tasks: Vec<_> = (0..4)
        .map(|number| {
            let volume = volume.clone();
            let mut random = SplitMix64::new(seed * 1000 + number);
            task::spawn(async move {
                for _ in 0..12 {
                    let block = u64::from(volume.shape().block_size_bytes);
                    let blocks = LEN_BYTES / block;
                    let n = 1 + random.below(8.min(blocks));
                    let at = random.below(blocks - n + 1) * block;
                    let len = n * block;
                    let durability = if random.below(3) == 0 {
                        Durability::Fua
                    } else {
                        Durability::Cached
                    };
                    match random.below(10) {
                        0..=5 => {
                            let mut buf = Buf::new(len as usize);
                            for word in buf.chunks_mut(8) {
                                word.copy_from_slice(&random.bits().to_le_bytes());
                            }
                            volume.write(at, buf.into(), durability).await
                        }
                        6 => volume.discard(at, len).await,
                        7 => volume.write_zeroes(at, len, false, durability).await,
                        _ => volume.flush().await,
                    }
                    .expect("the file works");
                }
            })
        })
        .collect();
    task::join_all(tasks).await;
}

fn record(caching: Caching, seed: u64, missing: Missing) -> (Recording, Promises) {
    let scratch = Scratch::new();
    let recording = Recording::new();
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    let promises = lane.block_on(async {
        let file = OpenFile::open(&FileOptions {
            path: scratch.file("disk"),
            len_bytes: Some(LEN_BYTES),
            caching,
            block_size_bytes: 512,
            read_only: false,
        })
        .await
        .expect("it opens");
        let leaf = file.on_lane_over(|backing| Broken {
            backing: Recorder::new(backing, recording.clone()),
            missing,
        });
        let witness = Rc::new(Witness::new(Rc::new(leaf), recording.clone()));
        let volume: SharedVolume = witness.clone();
        work(&volume, seed).await;
        witness.promises()
    });
    (recording, promises)
}

/// Cuts the power at every event and checks what could have been left.
fn cut_everywhere(recording: &Recording, promises: &Promises) -> Result<(), Violation> {
    let before = vec![0; LEN_BYTES as usize];
    for cut in 0..=recording.len() {
        for survivors in [
            Survivors::None,
            Survivors::All,
            Survivors::Drawn(1),
            Survivors::Drawn(2),
        ] {
            let mut image = before.clone();
            recording.replay(cut, survivors, &mut image);
            promises.verify(cut, &before, &image)?;
        }
    }
    Ok(())
}

const MODES: [Caching; 4] = [
    Caching::Direct,
    Caching::DirectSync,
    Caching::WriteThrough,
    Caching::WriteBack,
];

#[test]
fn what_is_acknowledged_as_durable_survives_every_power_cut() {
    for caching in MODES {
        for seed in 0..5 {
            let (recording, promises) = record(caching, seed, Missing::Nothing);
            assert!(recording.len() > 50, "something was recorded");
            if let Err(violation) = cut_everywhere(&recording, &promises) {
                panic!("{caching:?}, seed {seed}: {violation}");
            }
        }
    }
}

#[test]
fn without_its_fdatasync_the_leaf_is_found_out() {
    for caching in MODES {
        let (recording, promises) = record(caching, 1, Missing::Syncs);
        cut_everywhere(&recording, &promises).expect_err("flushes promised what was not synced");
    }
}

#[test]
fn without_its_durable_writes_the_leaf_is_found_out() {
    for caching in MODES {
        let (recording, promises) = record(caching, 1, Missing::DurableWrites);
        cut_everywhere(&recording, &promises).expect_err("writes promised what was not durable");
    }
}

#[test]
fn an_atomic_write_gets_lost_and_is_never_torn() {
    const LEN: usize = 8 * SECTOR_BYTES;
    let torn = |atomic| {
        let recording = Recording::new();
        recording.begin(|id| Event::WriteBegun {
            id,
            at: 0,
            content: Content::Bytes([1; LEN].into()),
            durable: false,
            atomic,
        });
        let sums = (0..100).map(|seed| {
            let mut image = [0; LEN];
            recording.replay(1, Survivors::Drawn(seed), &mut image);
            image.iter().map(|byte| usize::from(*byte)).sum::<usize>()
        });
        let sums: Vec<usize> = sums.collect();
        assert!(sums.contains(&0) && sums.contains(&LEN));
        sums.iter().any(|sum| !matches!(*sum, 0 | LEN))
    };
    assert!(torn(false) && !torn(true));
}

#[test]
fn unflushed_writes_do_get_lost_and_torn() {
    let (recording, promises) = record(Caching::WriteBack, 2, Missing::Nothing);
    let before = vec![0; LEN_BYTES as usize];
    let image_of = |cut, survivors| {
        let mut image = before.clone();
        recording.replay(cut, survivors, &mut image);
        image
    };
    let cuts_that_differ = |a, b| {
        (0..=recording.len())
            .filter(|&cut| image_of(cut, a) != image_of(cut, b))
            .count()
    };
    assert!(cuts_that_differ(Survivors::None, Survivors::All) > 10);
    assert!(cuts_that_differ(Survivors::Drawn(1), Survivors::Drawn(2)) > 10);
    assert_eq!(
        cuts_that_differ(Survivors::Drawn(1), Survivors::Drawn(1)),
        0
    );
    let all = image_of(recording.len(), Survivors::All);
    let mut foreign = all;
    foreign[0] ^= 1;
    promises
        .verify(recording.len(), &before, &foreign)
        .expect_err("nobody wrote that");
}
