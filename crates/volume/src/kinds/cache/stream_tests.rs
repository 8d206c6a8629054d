//! The cache under sequential readers: what is read ahead, in which requests, and what is not.

use std::{collections::BTreeSet, pin::pin, task::Context};

use engine::{Lane, LaneConfig, spawn};

use super::{
    tests::{KIB, MIB, cache, filled},
    *,
};
use crate::{
    stripe,
    test_volume::{CallKind, Random, TestVolume, on_lane},
};

#[test]
fn one_page_at_a_time_from_a_lane_that_only_runs_while_it_waits() {
    // Misses occur only until the run is detected: three reads, in one block or in three.
    for (page_bytes, misses) in [(4 * KIB, 1), (64 * KIB, 3)] {
        let lane = Lane::new(&LaneConfig::default()).expect("io_uring works here");
        let len = 32 * MIB + 512;
        let child = TestVolume::with(len, |shape| shape.optimal_io_bytes = 256 << 10);
        *child.data.borrow_mut() = (0..len).map(|i| (i / 512 % 251) as u8).collect();
        child.pause_us_max.set(1000);
        let config = CacheConfig {
            size_bytes: 64 << 20,
            ..CacheConfig::default()
        };
        let cache = Cache::new(child.clone(), &config).unwrap();
        let pages = len / page_bytes;
        let mut waited = 0;
        for page in 0..pages {
            let at = page * page_bytes;
            let data = lane.block_on(async {
                let mut read = pin!(cache.read(at as u64, page_bytes));
                let mut pended = false;
                let data = std::future::poll_fn(|cx: &mut Context<'_>| {
                    let poll = read.as_mut().poll(cx);
                    pended |= poll.is_pending();
                    poll
                });
                let data = data.await;
                waited += u64::from(pended);
                data
            });
            assert_eq!(
                data.unwrap().to_vec(),
                child.data.borrow()[at..at + page_bytes]
            );
        }
        let stats = cache.stats();
        assert_eq!(stats.misses, misses, "{stats:?}");
        assert_eq!(stats.hits + stats.late_hits + misses, pages as u64);
        assert_eq!(stats.late_hits + misses, waited, "a hit never waits");
        assert!(
            child.running_max.get() >= 6,
            "in flight: {}",
            child.running_max.get()
        );
        let reads = child.count(CallKind::Read);
        assert!(reads < 80, "{reads} requests for 32 MiB");
        let small = 64 * KIB as u64;
        let large = child
            .calls
            .borrow()
            .iter()
            .filter(|call| call.len > small)
            .count();
        assert!(large >= 32, "{large} of {reads} requests are large");
        let used_or_wasted = stats.read_ahead_used_bytes + stats.read_ahead_wasted_bytes;
        assert_eq!(stats.read_ahead_bytes, used_or_wasted);
        // The second time everything is cached.
        child.forget();
        for page in 0..pages {
            let at = page * page_bytes;
            lane.block_on(cache.read(at as u64, page_bytes)).unwrap();
        }
        assert_eq!(child.calls.borrow().len(), 0);
    }
}

#[test]
fn each_request_ahead_uses_the_whole_stripe() {
    on_lane(async {
        let child = TestVolume::with(32 * MIB, |shape| shape.optimal_io_bytes = 384 << 10);
        let cache = Cache::new(child.clone(), &CacheConfig::default()).unwrap();
        for page in 0..32 * MIB / (64 * KIB) {
            cache
                .read((page * 64 * KIB) as u64, 64 * KIB)
                .await
                .unwrap();
        }
        let calls = child.calls.borrow();
        let steady: Vec<_> = calls.iter().filter(|call| call.at > 16 << 20).collect();
        assert!(steady.len() <= 16, "{steady:?}");
        for call in &steady[..steady.len() - 1] {
            assert_eq!(
                (call.at % (384 << 10), call.len % (384 << 10)),
                (0, 0),
                "{call:?}"
            );
        }
    });
}

#[test]
fn a_page_reader_keeps_both_children_of_a_stripe_busy() {
    let lane = Lane::new(&LaneConfig::default()).expect("io_uring works here");
    let volumes = [TestVolume::new(17 * MIB), TestVolume::new(17 * MIB)];
    let children: Vec<stripe::Child> = volumes
        .iter()
        .map(|volume| stripe::Child {
            name: "child".to_owned(),
            volume: volume.clone(),
        })
        .collect();
    let options = stripe::CreateOptions {
        layout: stripe::Layout::Stripe {
            unit_bytes: stripe::UNIT_BYTES_DEFAULT,
        },
        uuid: uuid::Uuid::from_u128(1),
        created_unix_s: 0,
        force: false,
    };
    let shares: Vec<SharedVolume> = children.iter().map(|c| c.volume.clone()).collect();
    let stripe = lane.block_on(async {
        stripe::create(&children, &options).await.unwrap();
        let opened = stripe::OpenStripe::open(&children, None).await.unwrap();
        opened.on_lane(&shares).unwrap()
    });
    let cache = Cache::new(Rc::new(stripe), &CacheConfig::default()).unwrap();
    for volume in &volumes {
        volume.forget();
        volume.pause_us_max.set(1000);
    }
    for page in 0..32 * MIB / (16 * KIB) {
        let at = (page * 16 * KIB) as u64;
        lane.block_on(cache.read(at, 16 * KIB)).unwrap();
    }
    for volume in &volumes {
        let calls = volume.calls.borrow();
        let bytes: u64 = calls.iter().map(|call| call.len).sum();
        assert_eq!(bytes, 16 * MIB as u64, "each byte once");
        assert!(calls.len() < 80, "{} requests", calls.len());
        assert!(
            volume.running_max.get() >= 4,
            "{}",
            volume.running_max.get()
        );
        for call in calls
            .iter()
            .filter(|call| call.at > 9 << 20 && call.at + call.len < 17 << 20)
        {
            assert!(call.len >= 256 << 10, "{call:?}");
        }
    }
}

#[test]
fn random_and_backward_readers_get_nothing_read_ahead() {
    on_lane(async {
        let child = filled(8 * MIB);
        let cache = cache(&child, 4 * MIB, MIB);
        let random = Random::new(5);
        for _ in 0..2000 {
            cache.read(random.below(2048) * 4096, 4096).await.unwrap();
        }
        for block in (0..2048).rev() {
            cache.read(block * 4096, 4096).await.unwrap();
        }
        let stats = cache.stats();
        assert!(stats.read_ahead_bytes < 100 * 4096, "{stats:?}");
    });
}

#[test]
fn several_streams_are_read_ahead_at_once() {
    on_lane(async {
        let child = filled(32 * MIB);
        child.pause_us_max.set(300);
        let cache = Rc::new(Cache::new(child.clone(), &CacheConfig::default()).unwrap());
        let readers: Vec<_> = (0..4)
            .map(|reader| {
                let (cache, child) = (cache.clone(), child.clone());
                spawn(async move {
                    for page in 0..256 {
                        let at = reader * 8 * MIB + page * 16 * KIB;
                        let data = cache.read(at as u64, 16 * KIB).await.unwrap();
                        assert_eq!(data.to_vec(), child.data.borrow()[at..at + 16 * KIB]);
                    }
                })
            })
            .collect();
        for reader in readers {
            reader.await;
        }
        let stats = cache.stats();
        assert_eq!(stats.misses, 4 * 3, "{stats:?}");
    });
}

#[test]
fn a_reader_behind_its_window_sees_what_was_written_over_it() {
    on_lane(async {
        let child = filled(4 * MIB);
        let cache = cache(&child, 8 * MIB, MIB);
        let mut overwritten = BTreeSet::new();
        let random = Random::new(9);
        child.pause_us_max.set(200);
        for page in 0..1024usize {
            let at = page * 4096;
            if page % 7 == 0 {
                // Ahead of the reader, where data is cached already or being read.
                let ahead = (at + random.below(256) as usize * 4096).min(4 * MIB - 4096);
                cache
                    .write(
                        ahead as u64,
                        super::tests::page(page as u8, 4096),
                        Durability::Cached,
                    )
                    .await
                    .unwrap();
                overwritten.insert(ahead);
            }
            let data = cache.read(at as u64, 4096).await.unwrap();
            assert_eq!(data.to_vec(), child.data.borrow()[at..at + 4096]);
        }
        assert!(overwritten.len() > 50);
        assert!(cache.stats().read_ahead_wasted_bytes > 0);
    });
}

#[test]
fn what_was_evicted_or_discarded_ahead_of_a_reader_is_read_ahead_again() {
    on_lane(async {
        let child = filled(8 * MIB);
        let cache = cache(&child, 16 * MIB, 2 * MIB);
        for page in 0..512 {
            cache.read(page * 4096, 4096).await.unwrap();
        }
        cache.discard(2 << 20, 6 << 20).await.unwrap();
        child.forget();
        for page in 512..1024 {
            cache.read(page * 4096, 4096).await.unwrap();
        }
        let reads = child.count(CallKind::Read);
        assert!(reads < 20, "{reads} requests for 2 MiB");
    });
}
