//! How many blocks the cache reads from its child for readers of several kinds, beside what it read when a clock with
//! three counts evicted. The child delays its answers in virtual time, so that each run gives the same figures.

use engine::{sim::World, task};

use super::{
    tests::{KIB, MIB, cache, page},
    *,
};
use crate::test_volume::{CallKind, Random, TestVolume};

const BLOCK: u64 = 4 << 10;
/// What a scan reads at a time.
const PAGE: u64 = 16 << 10;
/// The size of the cache; an eighth of it is read ahead.
const MEMORY: u64 = 4 << 20;
const MEMORY_BLOCKS: u64 = MEMORY / BLOCK;

struct Traced {
    child: Rc<TestVolume>,
    cache: Rc<Cache>,
}

impl Traced {
    /// Scans `bytes` page by page.
    async fn scan(&self, bytes: Range<u64>) {
        for at in bytes.step_by(PAGE as usize) {
            self.read(at, PAGE).await;
            // As a reader would that does something with the page.
            task::yield_now().await;
        }
    }

    /// Reads a block of a set, of which no two are adjacent, so that nothing is read ahead.
    async fn read_of_set(&self, set: u64, block: u64) {
        self.read(((set * 20) << 20) + block * 2 * BLOCK, BLOCK)
            .await;
    }

    async fn read(&self, at: u64, len: u64) {
        let read = self.cache.read(at, len as usize).await;
        assert_eq!(read.expect("nothing fails").len() as u64, len);
    }

    async fn write(&self, bytes: Range<u64>, piece: usize) {
        for at in bytes.step_by(piece) {
            let write = self.cache.write(at, page(1, piece), Durability::Cached);
            write.await.expect("nothing fails");
        }
    }

    /// The blocks read from the child since the last call.
    fn blocks_read(&self) -> u64 {
        let calls = self.child.calls.take();
        let reads = calls.iter().filter(|call| call.kind == CallKind::Read);
        reads.map(|call| call.len).sum::<u64>() / BLOCK
    }
}

fn traced<T>(size: u64, trace: impl AsyncFnOnce(&Traced) -> T) -> T {
    let child = TestVolume::new(64 * MIB);
    child.pause_us_max.set(300);
    let cache = cache(&child, size as usize, size as usize / 8);
    let world = World::new(1);
    world.block_on(&world.host("client"), trace(&Traced { child, cache }))
}

/// The bytes of a table of that many tenths of the memory, in whole pages.
fn table(tenths: u64) -> Range<u64> {
    0..(MEMORY * tenths / 10) / PAGE * PAGE
}

#[test]
fn a_scan_reads_each_block_once() {
    for (size, clock) in [(256 << 10, 8198), (MEMORY, 8304)] {
        let read = traced(size, async |cache: &Traced| {
            cache.scan(0..32 << 20).await;
            cache.blocks_read()
        });
        assert!(read <= clock, "{read} for 8192");
    }
}

#[test]
fn a_table_is_scanned_again_and_again() {
    // How long the table is, in tenths of the memory; what eight scans of it read with a clock; what they may read.
    for (tenths, clock, bound) in [
        (5, 624, 624),
        (8, 998, 1000),
        (9, 4744, 3100),
        (10, 9117, 5100),
        (14, 12415, 10_900),
        (20, 17_280, 17_280),
    ] {
        let read = traced(MEMORY, async |cache: &Traced| {
            for _ in 0..8 {
                cache.scan(table(tenths)).await;
            }
            cache.blocks_read()
        });
        assert!(read <= bound, "{tenths}: {read}, with a clock {clock}");
    }
}

#[test]
fn a_table_is_written_scanned_and_changed_again_and_again() {
    for (tenths, clock, bound) in [(8, 516, 400), (14, 15_715, 12_900), (20, 21_864, 20_000)] {
        let read = traced(MEMORY, async |cache: &Traced| {
            let table = table(tenths);
            let third = table.end / 3 / PAGE * PAGE;
            for _ in 0..3 {
                cache.write(table.clone(), 256 * KIB).await;
                for _ in 0..3 {
                    // Its first page, when it is opened.
                    cache.scan(0..PAGE).await;
                    cache.scan(table.clone()).await;
                }
                for at in (third..2 * third).step_by(PAGE as usize) {
                    cache.read(at, PAGE).await;
                    let journal = (30 << 20) + at;
                    cache.write(journal..journal + PAGE, PAGE as usize).await;
                    cache.write(at..at + PAGE, PAGE as usize).await;
                }
            }
            cache.blocks_read()
        });
        assert!(read <= bound, "{tenths}: {read}, with a clock {clock}");
    }
}

#[test]
fn hot_blocks_stay_beside_a_scan_of_ten_times_the_memory() {
    // The percentage of the memory that is hot, and of the reads of hot blocks that were hits with a clock.
    for (hot_percent, clock) in [(30, 7), (70, 1)] {
        let hits = traced(MEMORY, async |cache: &Traced| {
            let hot = MEMORY_BLOCKS * hot_percent / 100;
            for block in (0..hot).chain(0..hot).chain(0..hot) {
                cache.read_of_set(2, block).await;
            }
            let mut hits = 0;
            let mut pages = (0..36 << 20).step_by(PAGE as usize).cycle();
            let pages_each = (10 * MEMORY / PAGE).div_ceil(hot);
            for block in (0..hot).chain(0..hot) {
                for page in pages.by_ref().take(pages_each as usize) {
                    cache.scan(page..page + PAGE).await;
                }
                let before = cache.cache.stats().hits;
                cache.read_of_set(2, block).await;
                hits += cache.cache.stats().hits - before;
            }
            100 * hits / (2 * hot)
        });
        assert!(hits >= 90, "{hot_percent}: {hits} %, with a clock {clock}");
    }
}

#[test]
fn what_is_used_now_takes_the_place_of_what_was() {
    for percent in [50, 70, 80] {
        traced(MEMORY, async |cache: &Traced| {
            let hot = MEMORY_BLOCKS * percent / 100;
            for set in 0..3 {
                for round in 1..=6 {
                    for block in 0..hot {
                        cache.read_of_set(set, block).await;
                    }
                    let read = cache.blocks_read();
                    assert!(round <= 3 || read <= hot / 10, "{read} of {hot} in {round}");
                }
            }
        });
    }
}

#[test]
fn a_table_takes_the_place_of_what_was_used() {
    let read = traced(MEMORY, async |cache: &Traced| {
        for block in (0..4).flat_map(|_| 0..700) {
            cache.read_of_set(2, block).await;
        }
        for _ in 0..4 {
            cache.scan(table(5)).await;
        }
        cache.blocks_read();
        cache.scan(table(5)).await;
        cache.blocks_read()
    });
    assert!(read <= 51, "{read} of 512 in the fifth scan");
}

#[test]
fn what_is_read_ahead_stays_until_its_reader_comes() {
    // Four readers, and 600 of 1024 blocks are hot.
    let clock = 4964;
    let read = traced(MEMORY, async |cache: &Traced| {
        for block in (0..4).flat_map(|_| 0..600) {
            cache.read_of_set(2, block).await;
        }
        cache.blocks_read();
        for at in (0..4 << 20).step_by(PAGE as usize) {
            for start in [0, 4 << 20, 8 << 20, 12 << 20] {
                cache.scan(start + at..start + at + PAGE).await;
            }
        }
        cache.blocks_read()
    });
    assert!(read <= 4600, "{read} for 4096, with a clock {clock}");
}

#[test]
fn the_blocks_that_are_read_most_are_there_most() {
    let clock = 20_484;
    let read = traced(MEMORY, async |cache: &Traced| {
        let random = Random::new(1);
        for _ in 0..50_000 {
            let rank = (0..4).fold(16_000, |below, _| random.below(1 + below));
            cache.read(rank * 7919 % 16_001 * BLOCK, BLOCK).await;
        }
        cache.blocks_read()
    });
    assert!(read <= 19_000, "{read} of 50,000, with a clock {clock}");
}
