//! The cache as a volume, over a child that delays, reorders and fails.

use std::cell::Cell;

use engine::{Duration, sim::World, spawn, task, time};

use super::*;
use crate::claim::{Claim, Others, Owner};
use crate::test_volume::{CallKind, Random, TestVolume, on_lane};

pub(super) const KIB: usize = 1 << 10;
pub(super) const MIB: usize = 1 << 20;
const BLOCK: usize = 4 * KIB;

pub(super) fn cache(child: &Rc<TestVolume>, size: usize, ahead: usize) -> Rc<Cache> {
    let config = CacheConfig {
        size_bytes: size as u64,
        block_bytes: BLOCK as u32,
        read_ahead_max_bytes: ahead as u64,
    };
    Rc::new(Cache::new(child.clone(), &config).expect("a good configuration"))
}

pub(super) fn filled(len: usize) -> Rc<TestVolume> {
    let child = TestVolume::new(len);
    let bytes = Random::new(len as u64).bytes(len);
    *child.data.borrow_mut() = bytes;
    child
}

pub(super) fn page(value: u8, len: usize) -> Payload {
    Buf::copy_of(&vec![value; len]).into()
}

/// Starts a read in a task of its own.
fn reading(cache: &Rc<Cache>, at: usize, len: usize) -> task::JoinHandle<Result<Vec<u8>>> {
    let cache = cache.clone();
    spawn(async move { cache.read(at as u64, len).await.map(|data| data.to_vec()) })
}

fn writing(cache: &Rc<Cache>, at: usize, data: Payload) -> task::JoinHandle<Result<()>> {
    let cache = cache.clone();
    spawn(async move { cache.write(at as u64, data, Durability::Cached).await })
}

async fn settle() {
    for _ in 0..4 {
        task::yield_now().await;
    }
}

#[test]
fn a_second_read_does_not_reach_the_child_and_copies_nothing() {
    on_lane(async {
        let child = filled(MIB);
        let cache = cache(&child, MIB, 0);
        let expected = child.data.borrow()[512..3 * BLOCK].to_vec();
        let first = cache.read(512, 3 * BLOCK - 512).await.unwrap();
        assert_eq!(first.to_vec(), expected);
        assert_eq!(child.calls.borrow().len(), 1, "three blocks in one request");
        let second = cache.read(512, 3 * BLOCK - 512).await.unwrap();
        assert_eq!(second.to_vec(), expected);
        let third = cache.read(BLOCK as u64, BLOCK).await.unwrap();
        assert_eq!(third.slices()[0].as_ptr(), second.slices()[1].as_ptr());
        assert_eq!(child.calls.borrow().len(), 1);
        let stats = cache.stats();
        assert_eq!((stats.misses, stats.hits, stats.late_hits), (1, 2, 0));
        assert_eq!(
            (stats.held_bytes, stats.reserved_bytes),
            (3 * BLOCK as u64, 0)
        );
    });
}

#[test]
fn cached_pages_hold_no_buffer_of_the_child() {
    on_lane(async {
        let child = filled(MIB);
        let cache = cache(&child, MIB, 0);
        cache.read(0, 16 * BLOCK).await.unwrap();
        for slice in cache.read(0, 16 * BLOCK).await.unwrap().slices() {
            assert_eq!(slice.held_bytes(), BLOCK);
        }
        let written = Payload::from(page(1, 64 * BLOCK).slices()[0].slice(0..BLOCK));
        cache.write(0, written, Durability::Cached).await.unwrap();
        let read = cache.read(0, BLOCK).await.unwrap();
        assert_eq!(read.slices()[0].held_bytes(), BLOCK);
    });
}

#[test]
fn concurrent_misses_of_a_block_are_one_request() {
    on_lane(async {
        let child = filled(MIB);
        let cache = cache(&child, MIB, 0);
        child.hold(|_| true);
        let reads: Vec<_> = (0..8).map(|i| reading(&cache, i * 512, 512)).collect();
        let wider = reading(&cache, 0, 2 * BLOCK);
        settle().await;
        assert_eq!(child.calls.borrow().len(), 2, "one a block");
        child.hold(|_| false);
        for (i, read) in reads.into_iter().enumerate() {
            assert_eq!(read.await.unwrap(), child.data.borrow()[i * 512..][..512]);
        }
        assert_eq!(wider.await.unwrap(), child.data.borrow()[..2 * BLOCK]);
        let stats = cache.stats();
        assert_eq!((stats.misses, stats.late_hits, stats.hits), (2, 7, 0));
    });
}

#[test]
fn a_reader_that_is_dropped_strands_nobody() {
    on_lane(async {
        let child = filled(MIB);
        let cache = cache(&child, MIB, 0);
        child.hold(|_| true);
        let dropped = time::timeout(Duration::from_millis(1), cache.read(0, BLOCK)).await;
        assert!(dropped.is_none());
        let read = reading(&cache, 0, BLOCK);
        settle().await;
        child.hold(|_| false);
        assert_eq!(read.await.unwrap(), child.data.borrow()[..BLOCK]);
        assert_eq!(child.count(CallKind::Read), 1);
    });
}

#[test]
fn a_read_that_a_write_overtook_leaves_nothing_stale() {
    on_lane(async {
        let child = TestVolume::new(MIB);
        let cache = cache(&child, MIB, 0);
        // The child has taken the old bytes for the read, and returns them after the write has ended.
        child.hold(|call| call.kind == CallKind::Read);
        let old = reading(&cache, 0, 2 * BLOCK);
        settle().await;
        cache
            .write(512, page(7, 512), Durability::Cached)
            .await
            .unwrap();
        let after = reading(&cache, 0, BLOCK);
        settle().await;
        assert_eq!(
            child.count(CallKind::Read),
            2,
            "who comes after must not join the old read"
        );
        child.hold(|_| false);
        assert_eq!(old.await.unwrap(), vec![0; 2 * BLOCK]);
        assert_eq!(after.await.unwrap()[512..1024], [7; 512]);
        let later = cache.read(0, BLOCK).await.unwrap().to_vec();
        assert_eq!(
            (later[511], later[512], later[1023], later[1024]),
            (0, 7, 7, 0)
        );
    });
}

#[test]
fn a_read_during_a_write_is_not_kept_and_not_joined_afterwards() {
    on_lane(async {
        let child = TestVolume::new(MIB);
        let cache = cache(&child, MIB, 0);
        child.hold(|_| true);
        let write = writing(&cache, BLOCK, page(9, 512));
        settle().await;
        let during = reading(&cache, BLOCK + 512, BLOCK - 512);
        let beside = reading(&cache, 0, 3 * BLOCK);
        settle().await;
        // The write ends between the child's answer to these reads and their completion.
        child.hold(|call| call.kind == CallKind::Read);
        write.await.unwrap();
        let after = reading(&cache, BLOCK, BLOCK);
        settle().await;
        assert_eq!(
            child.count(CallKind::Read),
            3,
            "nobody joined what began during the write"
        );
        child.hold(|_| false);
        assert_eq!(during.await.unwrap(), vec![0; BLOCK - 512]);
        assert_eq!(beside.await.unwrap().len(), 3 * BLOCK);
        assert_eq!(after.await.unwrap()[..512], [9; 512]);
        child.forget();
        assert_eq!(
            cache.read(BLOCK as u64, 512).await.unwrap().to_vec(),
            [9; 512]
        );
        cache.read(0, BLOCK).await.unwrap();
        cache.read(2 * BLOCK as u64, BLOCK).await.unwrap();
        assert_eq!(child.count(CallKind::Read), 0, "the neighbours were kept");
    });
}

#[test]
fn a_write_ends_after_the_child_and_is_passed_on_with_its_durability() {
    on_lane(async {
        let child = TestVolume::new(MIB);
        let cache = cache(&child, MIB, 0);
        child.hold(|_| true);
        let write = writing(&cache, 0, page(1, BLOCK));
        settle().await;
        assert!(!write.is_finished());
        child.hold(|_| false);
        write.await.unwrap();
        cache.write(0, page(2, 512), Durability::Fua).await.unwrap();
        assert_eq!(
            child.durable.borrow()[..513],
            [&[2; 512][..], &[0]].concat()
        );
        cache.flush().await.unwrap();
        assert_eq!(child.durable.borrow()[512], 1);
        let kinds: Vec<CallKind> = child.calls.borrow().iter().map(|call| call.kind).collect();
        let expected = [
            CallKind::Write(Durability::Cached),
            CallKind::Write(Durability::Fua),
            CallKind::Flush,
        ];
        assert_eq!(kinds, expected);
        let read = cache.read(0, BLOCK).await.unwrap().to_vec();
        assert_eq!((read[0], read[511], read[512]), (2, 2, 1));
        assert_eq!(child.count(CallKind::Read), 0, "what was written is cached");
    });
}

#[test]
fn failed_writes_discards_and_failed_flushes_leave_the_truth_to_the_child() {
    on_lane(async {
        let child = TestVolume::new(MIB);
        let cache = cache(&child, MIB, 0);
        let all = |len| {
            let cache = cache.clone();
            async move { cache.read(0, len).await.unwrap().to_vec() }
        };
        cache
            .write(0, page(1, 4 * BLOCK), Durability::Cached)
            .await
            .unwrap();
        child.fails.set(|_| true);
        let failed = cache.write(0, page(2, 2 * BLOCK), Durability::Cached).await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Medium);
        child.fails.set(|_| false);
        assert_eq!(all(4 * BLOCK).await, child.data.borrow()[..4 * BLOCK]);
        assert_eq!(child.data.borrow()[0], 2, "half of it had been written");

        cache.discard(512, 512).await.unwrap();
        cache
            .write_zeroes(BLOCK as u64, 512, false, Durability::Cached)
            .await
            .unwrap();
        assert_eq!(all(4 * BLOCK).await, child.data.borrow()[..4 * BLOCK]);
        assert_eq!(child.data.borrow()[512], 0);
        cache.discard(0, MIB as u64).await.unwrap();
        assert_eq!(all(4 * BLOCK).await, vec![0; 4 * BLOCK]);

        child.fails.set(|call| call.kind == CallKind::Flush);
        cache.flush().await.unwrap_err();
        assert_eq!(cache.stats().held_bytes, 0);
    });
}

#[test]
fn writes_that_overlap_in_flight_leave_what_the_child_put_last() {
    on_lane(async {
        for seed in 0..100 {
            let child = TestVolume::new(MIB + seed);
            child.pause_us_max.set(50);
            let cache = cache(&child, MIB, 0);
            cache.read(0, 2 * BLOCK).await.unwrap();
            let writes = [
                writing(&cache, 0, page(1, BLOCK)),
                writing(&cache, 2048, page(2, BLOCK)),
                writing(&cache, 4096, page(3, BLOCK)),
            ];
            for write in writes {
                write.await.unwrap();
            }
            let read = cache.read(0, 2 * BLOCK).await.unwrap().to_vec();
            assert!(read == child.data.borrow()[..2 * BLOCK], "seed {seed}");
        }
    });
}

#[test]
fn whatever_ran_together_the_cache_agrees_with_its_child_afterwards() {
    on_lane(async {
        for seed in 1..6 {
            let random = Random::new(seed);
            let len = 600 * KIB + 512 * seed as usize;
            let child = filled(len);
            child.pause_us_max.set(80);
            // A third of the volume fits, so there is a lot of eviction.
            let cache = cache(&child, 256 * KIB, 32 * KIB);
            for _ in 0..60 {
                child.fails.set(if random.below(4) == 0 {
                    |call| call.kind != CallKind::Read && call.at % 3 == 0
                } else {
                    |_| false
                });
                let mut tasks = Vec::new();
                for _ in 0..12 {
                    let block = random.below(len as u64 / 512);
                    let blocks = 1 + random.below((len as u64 / 512 - block).min(40));
                    let (at, n) = (block * 512, blocks as usize * 512);
                    let what = random.below(10);
                    let value = random.below(255) as u8;
                    let cache = cache.clone();
                    let pause = random.below(100);
                    tasks.push(spawn(async move {
                        time::sleep(Duration::from_micros(pause)).await;
                        match what {
                            0..5 => {
                                assert_eq!(cache.read(at, n).await.unwrap().len(), n);
                            }
                            5..9 => {
                                let _ = cache.write(at, page(value, n), Durability::Cached).await;
                            }
                            _ => {
                                let _ = cache.discard(at, n as u64).await;
                            }
                        }
                        let stats = cache.stats();
                        assert!(stats.held_bytes + stats.reserved_bytes <= 256 * KIB as u64);
                    }));
                }
                for task in tasks {
                    task.await;
                }
                child.fails.set(|_| false);
                let from = random.below(len as u64 / 512) as usize * 512;
                let n = (len - from).min(24 * KIB);
                let read = cache.read(from as u64, n).await.unwrap().to_vec();
                assert!(
                    read == child.data.borrow()[from..from + n],
                    "seed {seed}, {n} at {from}"
                );
            }
            for from in (0..len).step_by(BLOCK) {
                let n = BLOCK.min(len - from);
                let read = cache.read(from as u64, n).await.unwrap().to_vec();
                assert!(
                    read == child.data.borrow()[from..from + n],
                    "seed {seed}, {n} at {from}"
                );
            }
            assert!(cache.stats().hits > 0 && cache.stats().misses > 0);
        }
    });
}

#[test]
fn every_read_sees_each_ended_write_and_nothing_is_unread() {
    const WRITERS: usize = 24;
    on_lane(async {
        for seed in 1..5 {
            // Each writer counts up in its own 512 bytes; eight share a block.
            let child = TestVolume::new(MIB + 512 * seed as usize);
            child.pause_us_max.set(60);
            child
                .fails
                .set(|call| call.kind != CallKind::Read && call.len % 1024 == 0);
            let cache = cache(&child, 256 * KIB, 32 * KIB);
            let begun = Rc::new(RefCell::new([0u8; WRITERS]));
            let ended = Rc::new(RefCell::new([0u8; WRITERS]));
            let stop = Rc::new(Cell::new(false));
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (cache, begun, ended) = (cache.clone(), begun.clone(), ended.clone());
                    spawn(async move {
                        for n in 1..60 {
                            begun.borrow_mut()[writer] = n;
                            let at = writer as u64 * 512;
                            let write = cache.write(at, page(n, 512), Durability::Cached);
                            if write.await.is_ok() {
                                ended.borrow_mut()[writer] = n;
                            }
                        }
                    })
                })
                .collect();
            let readers: Vec<_> = (0..6)
                .map(|reader| {
                    let (cache, begun, ended) = (cache.clone(), begun.clone(), ended.clone());
                    let (stop, random) = (stop.clone(), Random::new(seed * 100 + reader));
                    spawn(async move {
                        let mut seen = [0u8; WRITERS];
                        while !stop.get() {
                            if random.below(20) == 0 {
                                // Elsewhere, to cause evictions.
                                cache
                                    .read(random.below(200) * 4096, 16 * KIB)
                                    .await
                                    .unwrap();
                            }
                            let first = random.below(WRITERS as u64) as usize;
                            let count = 1 + random.below((WRITERS - first) as u64) as usize;
                            let before = *ended.borrow();
                            let data = cache.read(first as u64 * 512, count * 512).await.unwrap();
                            let after = *begun.borrow();
                            for (i, block) in data.to_vec().chunks(512).enumerate() {
                                let (writer, n) = (first + i, block[0]);
                                assert!(block.iter().all(|&byte| byte == n), "torn");
                                assert!(n >= before[writer], "{n} after {}", before[writer]);
                                assert!(n <= after[writer]);
                                assert!(n >= seen[writer], "{n} after {} was read", seen[writer]);
                                seen[writer] = n;
                            }
                            task::yield_now().await;
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.await;
            }
            stop.set(true);
            for reader in readers {
                reader.await;
            }
        }
    });
}

#[test]
fn a_bad_spot_ahead_hurts_only_those_who_read_it() {
    on_lane(async {
        let child = filled(2 * MIB);
        let bad = 300 * 4096 + 512;
        child
            .fails
            .set(|call| (call.at..call.at + call.len).contains(&(300 * 4096 + 512)));
        let cache = cache(&child, 8 * MIB, MIB);
        for at in (0..2 * MIB).step_by(512) {
            let read = cache.read(at as u64, 512).await;
            if at == bad {
                assert_eq!(read.unwrap_err().kind(), ErrorKind::Medium);
            } else {
                assert_eq!(read.unwrap().to_vec(), child.data.borrow()[at..at + 512]);
            }
        }
        assert_eq!(cache.stats().reserved_bytes, 0);
    });
}

#[test]
fn reads_too_large_for_the_cache_go_past_it() {
    on_lane(async {
        let child = filled(4 * MIB);
        let cache = cache(&child, 256 * KIB, 0);
        let reads: Vec<_> = (0..4).map(|i| reading(&cache, i * MIB, MIB)).collect();
        for (i, read) in reads.into_iter().enumerate() {
            assert_eq!(
                read.await.unwrap(),
                child.data.borrow()[i * MIB..(i + 1) * MIB]
            );
        }
        assert_eq!(cache.stats().held_bytes, 0);
        // Many small ones at once: what finds no room is not cached.
        child.hold(|_| true);
        let reads: Vec<_> = (0..200).map(|i| reading(&cache, i * 4096, 4096)).collect();
        settle().await;
        assert_eq!(cache.stats().reserved_bytes, 256 * KIB as u64);
        child.hold(|_| false);
        for (i, read) in reads.into_iter().enumerate() {
            assert_eq!(read.await.unwrap(), child.data.borrow()[i * 4096..][..4096]);
        }
        assert!(cache.stats().held_bytes <= 256 * KIB as u64);
        assert_eq!(cache.stats().reserved_bytes, 0);
    });
}

#[test]
fn a_bad_size_is_refused_with_the_value() {
    let child = TestVolume::new(MIB);
    for (size, block, word) in [(1 << 20, 5000, "5000"), (64 * 4096 - 1, 4096, "262143")] {
        let config = CacheConfig {
            size_bytes: size,
            block_bytes: block,
            read_ahead_max_bytes: 0,
        };
        let error = Cache::new(child.clone(), &config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_child_that_grew_is_cached_up_to_its_new_end() {
    on_lane(async {
        // The last block is incomplete before.
        let (before, after) = (16 * BLOCK + 512, 18 * BLOCK);
        let child = TestVolume::with(after, |shape| shape.len = crate::Len::new(before as u64));
        let cache = cache(&child, MIB, 0);
        assert_eq!(cache.shape().len_bytes(), before as u64);
        let beyond = cache.read(16 * BLOCK as u64, BLOCK).await;
        assert_eq!(beyond.unwrap_err().kind(), ErrorKind::OutOfRange);
        let odd = 16 * BLOCK as u64;
        cache
            .write(odd, page(1, 512), Durability::Cached)
            .await
            .unwrap();
        assert_eq!(cache.read(odd, 512).await.unwrap().to_vec(), [1; 512]);
        child.shape().len.grow(after as u64);
        assert_eq!(cache.shape().len_bytes(), after as u64);
        for value in [2, 3] {
            let at = odd + 512;
            cache
                .write(at, page(value, BLOCK), Durability::Cached)
                .await
                .unwrap();
            child.forget();
            for _ in 0..2 {
                let read = cache.read(odd, 2 * BLOCK).await.unwrap().to_vec();
                assert_eq!((read[511], read[512], read[511 + BLOCK]), (1, value, value));
                assert!(read[512 + BLOCK..].iter().all(|&byte| byte == 0));
            }
            assert!(child.count(CallKind::Read) <= 1, "the second is a hit");
        }
    });
}

#[test]
fn what_is_in_memory_counts_only_while_the_child_is_seen_to_be_ours() {
    let world = World::new(1);
    world.block_on(&world.host("client"), async {
        time::sleep(Duration::from_secs(60)).await;
        let claim = Claim::single(&Owner::passing("a test"), Others::Refuse);
        let child = TestVolume::new(MIB);
        let config = CacheConfig {
            read_ahead_max_bytes: 0,
            ..CacheConfig::default()
        };
        let counters = CacheHandle::default();
        let cache = Cache::counted(child.clone(), &config, &counters, vec![claim.of_set()]);
        let cache = cache.expect("a good configuration");
        let reads = async |expected: usize| {
            cache.read(0, 4096).await.unwrap();
            assert_eq!(child.count(CallKind::Read), expected);
        };
        reads(1).await;
        reads(1).await;
        // Longer than a proof is good for: another owner may have written.
        claim.proved(time::now());
        time::sleep(Duration::from_secs(4)).await;
        reads(2).await;
        reads(3).await;
        claim.proved(time::now());
        reads(3).await;
        claim.lose("the child", "somebody");
        for _ in 0..2 {
            let error = cache.read(0, 4096).await.expect_err("it is another's");
            assert_eq!(error.kind(), ErrorKind::Preempted);
        }
        assert_eq!(child.count(CallKind::Read), 3);
    });
}

#[test]
fn another_size_keeps_what_fits_and_no_more() {
    on_lane(async {
        let child = filled(4 * MIB);
        let cache = cache(&child, 2 * MIB, 0);
        for at in (0..2 * MIB).step_by(BLOCK) {
            cache.read(at as u64, BLOCK).await.expect("it reads");
        }
        let resized = |size: usize| CacheConfig {
            size_bytes: size as u64,
            block_bytes: BLOCK as u32,
            read_ahead_max_bytes: 0,
        };
        cache.0.resize(&resized(MIB)).await.expect("it is possible");
        assert!(cache.stats().held_bytes <= MIB as u64);
        let calls = child.calls.borrow().len();
        let last = (2 * MIB - BLOCK) as u64;
        cache.read(last, BLOCK).await.expect("it reads");
        assert_eq!(
            child.calls.borrow().len(),
            calls,
            "the newest is still there"
        );
        cache
            .0
            .resize(&resized(4 * MIB))
            .await
            .expect("it is possible");
        for _ in 0..2 {
            for at in (0..4 * MIB).step_by(BLOCK) {
                cache.read(at as u64, BLOCK).await.expect("it reads");
            }
        }
        let held = cache.stats().held_bytes;
        assert!(held > 2 * MIB as u64, "{held}");
        cache
            .0
            .resize(&resized(BLOCK))
            .await
            .expect_err("too few blocks");
    });
}
