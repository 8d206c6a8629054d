//! The contract, whole blocks between lanes, and loans, against a model that copies everything.

use engine::{Lane, LaneConfig, random::SplitMix64};

use super::*;
use crate::contract;

#[test]
fn keeps_the_contract() {
    for (len, block) in [(1 << 20, 512), (3 << 20, 4096), (5 * 512, 512), (512, 512)] {
        contract::run(move |_| {
            LaneFuture::new(
                async move { Ok(std::rc::Rc::new(Region::new(len, block)?.on_lane()) as _) },
            )
        });
    }
}

#[test]
fn lanes_see_whole_blocks_of_each_other() {
    let region = Region::new(4096, 4096).expect("4 KiB");
    let config = engine::LaneConfig::default();
    std::thread::scope(|scope| {
        for writer in 0..2u8 {
            let region = &region;
            let config = &config;
            scope.spawn(move || {
                let lane = engine::Lane::new(config).expect("a ring");
                let ram = region.on_lane();
                lane.block_on(async {
                    for round in 0..100_000u32 {
                        let mut buf = Buf::new(4096);
                        buf.fill((2 * round) as u8 + writer);
                        ram.write(0, buf.into(), Durability::Cached)
                            .await
                            .expect("it fits");
                        let seen = ram.read(0, 4096).await.expect("it fits").into_buf();
                        assert!(seen[..] == [seen[0]; 4096], "a torn block");
                    }
                });
            });
        }
    });
}

#[test]
fn zeroes_for_parts_of_untouched_pages_touch_nothing() {
    let lane = engine::Lane::new(&engine::LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        const PAGES: usize = 1 << 12;
        let region = Region::new((PAGES * PAGE_BYTES) as u64, 512).expect("16 MiB");
        let ram = region.on_lane();
        for page in 0..PAGES {
            let zeroed = ram.write_zeroes(
                (page * PAGE_BYTES) as u64 + 512,
                512,
                false,
                Durability::Cached,
            );
            zeroed.await.expect("it fits");
        }
        assert_eq!(resident_pages(&region), 0, "memory was touched");
    });
}

#[test]
fn discard_gives_memory_back() {
    let lane = engine::Lane::new(&engine::LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let region = Region::new(64 << 20, 512).expect("64 MiB");
        let ram = region.on_lane();
        let ones = Payload::from({
            let mut buf = Buf::new(1 << 20);
            buf.fill(1);
            buf
        });
        for mib in 0..64 {
            ram.write(mib << 20, ones.clone(), Durability::Cached)
                .await
                .expect("it fits");
        }
        assert_eq!(resident_pages(&region), 64 << 8);
        ram.discard(512, (64 << 20) - 1024).await.expect("it fits");
        assert_eq!(
            resident_pages(&region),
            2,
            "the first and last page are not whole"
        );
        let first = ram.read(0, 4096).await.expect("it fits").to_vec();
        assert!(first[..512].iter().all(|&b| b == 1) && first[512..].iter().all(|&b| b == 0));
    });
}

fn resident_pages(region: &Region) -> usize {
    let mut present = vec![0u8; region.mapped_bytes / PAGE_BYTES];
    // SAFETY: one byte for each page of a live mapping.
    let failed = unsafe {
        libc::mincore(
            region.memory.as_ptr().cast(),
            region.mapped_bytes,
            present.as_mut_ptr(),
        )
    };
    assert_eq!(failed, 0);
    present.iter().filter(|&&byte| byte & 1 == 1).count()
}

/// Random writes, discards and reads, with read results dropped at random: a read result never changes, and in the
/// end every page is in its place again.
#[test]
fn what_was_read_stays_as_it_was() {
    const LEN: usize = 8 * PAGE_BYTES;
    for seed in 0..200 {
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let mut random = SplitMix64::new(seed);
            let region = Region::new(LEN as u64, 512).expect("32 KiB");
            let ram = region.on_lane();
            let mut model = vec![0; LEN];
            let mut held: Vec<(Payload, Vec<u8>)> = Vec::new();
            for step in 0..300u64 {
                let at = random.below(LEN as u64 / 512) as usize * 512;
                let blocks = (LEN - at) as u64 / 512;
                let len = (random.below(blocks.min(40)) as usize + 1) * 512;
                match random.below(8) {
                    0 => {
                        ram.discard(at as u64, len as u64).await.expect("it fits");
                        model[at..at + len].fill(0);
                    }
                    1..=3 => {
                        let mut buf = Buf::new(len);
                        buf.fill(step as u8);
                        let written = ram.write(at as u64, buf.into(), Durability::Cached);
                        written.await.expect("it fits");
                        model[at..at + len].fill(step as u8);
                    }
                    4 if !held.is_empty() => {
                        let chosen = random.below(held.len() as u64) as usize;
                        drop(held.swap_remove(chosen));
                    }
                    _ => {
                        let read = ram.read(at as u64, len).await.expect("it fits");
                        held.push((read, model[at..at + len].to_vec()));
                    }
                }
                for (read, was) in &held {
                    assert!(read.to_vec() == *was, "seed {seed}, step {step}");
                }
            }
            held.clear();
            assert!(region.aside().is_empty(), "seed {seed}");
            assert!(
                region
                    .pages
                    .iter()
                    .all(|page| page.lock().may_change_in_place())
            );
            let all = ram.read(0, LEN).await.expect("it fits");
            assert!(all.to_vec() == model, "seed {seed}");
        });
    }
}

#[test]
fn a_page_is_lent_a_bounded_number_of_times_and_then_copied() {
    let lane = Lane::new(&LaneConfig::default()).expect("a ring");
    lane.block_on(async {
        let region = Region::new(4096, 512).expect("4 KiB");
        let ram = region.on_lane();
        let mut reads = Vec::new();
        for _ in 0..u32::from(Page::LOANS_MAX) + 10 {
            reads.push(ram.read(0, 512).await.expect("it fits"));
        }
        assert_eq!(region.pages[0].lock().state, Page::LOANS_MAX);
        let ones = Payload::from(Buf::copy_of(&[1; 512]));
        let written = ram.write(0, ones, Durability::Cached);
        written.await.expect("it fits");
        assert!(reads.iter().all(|read| read.to_vec() == [0; 512]));
        let after = ram.read(0, 512).await.expect("it fits");
        reads.clear();
        assert_eq!(after.to_vec(), [1; 512]);
        assert_eq!(region.pages[0].lock().state, Page::WRITTEN);
    });
}
