//! The stripe as a volume: over children that delay, reorder and fail.

use std::rc::Rc;

use engine::{Buf, task::join_all};
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::test_volume::{CallKind, Random, RecordedCall, TestVolume, on_lane};
use crate::{Discard, ReadOnly};

pub(super) const MIB: usize = 1 << 20;
pub(super) const UNIT: u32 = 4096;

fn child(name: &str, volume: &Rc<TestVolume>) -> Child {
    Child {
        name: format!("stripe child {name}"),
        volume: volume.clone(),
    }
}

pub(super) fn named(volumes: &[Rc<TestVolume>]) -> Vec<Child> {
    let names = ["a", "b", "c", "d"];
    let pairs = names.iter().zip(volumes);
    pairs.map(|(name, volume)| child(name, volume)).collect()
}

fn options(unit_bytes: u32) -> CreateOptions {
    CreateOptions {
        layout: Layout::Stripe { unit_bytes },
        uuid: Uuid::from_u128(7),
        created_unix_s: 1_485_907_200,
        force: false,
    }
}

async fn opened(volumes: &[Rc<TestVolume>]) -> Result<Stripe> {
    let children = named(volumes);
    let lane_children: Vec<SharedVolume> = children.iter().map(|c| c.volume.clone()).collect();
    OpenStripe::open(&children, None)
        .await?
        .on_lane(&lane_children)
}

/// A new stripe over `count` children with a MiB of data each; its calls so far are not counted.
pub(super) async fn new_stripe(count: usize, unit_bytes: u32) -> (Stripe, Vec<Rc<TestVolume>>) {
    let volumes: Vec<_> = (0..count).map(|_| TestVolume::new(2 * MIB)).collect();
    create(&named(&volumes), &options(unit_bytes))
        .await
        .expect("the children are blank");
    let stripe = opened(&volumes).await.expect("it was just created");
    volumes.iter().for_each(|volume| volume.forget());
    (stripe, volumes)
}

pub(super) fn refused<T: fmt::Debug>(result: Result<T>, words: &[&str]) {
    let error = result.expect_err("this must be refused");
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} in: {error}");
    }
}

#[test]
fn it_looks_like_the_sum_of_its_children() {
    on_lane(async {
        let volumes = [
            TestVolume::with(2 * MIB + 5000 * 512, |shape| {
                shape.block_size_bytes = 4096;
                shape.volatile_cache = false;
            }),
            TestVolume::with(3 * MIB, |shape| {
                shape.discard = Some(Discard {
                    granularity_bytes: 64 << 10,
                    reads_zeroes: false,
                });
            }),
            TestVolume::new(4 * MIB),
        ];
        create(&named(&volumes), &options(32 << 10)).await.unwrap();
        let stripe = opened(&volumes).await.unwrap();
        let expected = Shape {
            block_size_bytes: 4096,
            physical_block_bytes: 4096,
            len: crate::Len::new(3 * 2 * MIB as u64),
            volatile_cache: true,
            read_only: ReadOnly::default(),
            discard: Some(Discard {
                granularity_bytes: 3 * (64 << 10),
                reads_zeroes: false,
            }),
            optimal_io_bytes: 3 * (32 << 10),
            compare_and_write_max_bytes: 0,
        };
        assert_eq!(*stripe.shape(), expected);
        assert_eq!(stripe.uuid(), Uuid::from_u128(7));

        let (stripe, _) = new_stripe(1, UNIT).await;
        assert_eq!(stripe.shape().len_bytes(), MIB as u64, "a stripe of one");
    });
}

#[test]
fn a_large_io_is_one_request_a_child_and_a_small_one_is_one_request() {
    on_lane(async {
        let (stripe, volumes) = new_stripe(2, 64 << 10).await;
        stripe.read(0, MIB).await.unwrap();
        stripe
            .write(MIB as u64, Payload::zeroes(MIB), Durability::Cached)
            .await
            .unwrap();
        stripe.discard(0, 2 * MIB as u64).await.unwrap();
        let half = 512 << 10;
        for volume in &volumes {
            let call = |kind, at, len| RecordedCall { kind, at, len };
            let expected = [
                call(CallKind::Read, MIB as u64, half),
                call(CallKind::Write(Durability::Cached), MIB as u64 + half, half),
                call(CallKind::Discard, MIB as u64, MIB as u64),
            ];
            assert_eq!(volume.calls.borrow()[..], expected);
            volume.forget();
        }
        stripe.read(64 << 10, 64 << 10).await.unwrap();
        stripe.read(3 * (64 << 10) + 512, 512).await.unwrap();
        assert_eq!(volumes[0].count(CallKind::Read), 0);
        assert_eq!(volumes[1].count(CallKind::Read), 2);
    });
}

#[test]
fn children_work_at_the_same_time() {
    on_lane(async {
        let (stripe, volumes) = new_stripe(3, UNIT).await;
        // Each child withholds its answer until all three have been asked.
        volumes.iter().for_each(|v| v.hold(|_| true));
        let read = engine::spawn(async move { stripe.read(0, 1 << 16).await.map(|p| p.len()) });
        engine::task::yield_now().await;
        for volume in &volumes {
            assert_eq!(volume.count(CallKind::Read), 1);
        }
        volumes.iter().for_each(|v| v.hold(|_| false));
        assert_eq!(read.await.unwrap(), 1 << 16);
    });
}

#[test]
fn it_reads_what_was_written_over_children_that_delay_and_reorder() {
    on_lane(async {
        for seed in 1..5 {
            let random = Random::new(seed);
            let (stripe, volumes) = new_stripe(1 + seed as usize % 4, UNIT).await;
            volumes.iter().for_each(|v| v.pause_us_max.set(200));
            let len = stripe.shape().len_bytes();
            let mut model = vec![0; len as usize];
            for _ in 0..40 {
                // Concurrent writes to eight disjoint parts of the volume; then everything is compared.
                let lane_len = len / 8 / 512;
                let writes: Vec<(u64, Vec<u8>)> = (0..8)
                    .map(|lane| {
                        let from = random.below(lane_len);
                        let blocks = 1 + random.below((lane_len - from).min(100));
                        let data = match random.below(4) {
                            0 => vec![0; blocks as usize * 512],
                            _ => random.bytes(blocks as usize * 512),
                        };
                        ((lane * lane_len + from) * 512, data)
                    })
                    .collect();
                let running = writes.iter().map(|(at, data)| async {
                    if data.iter().all(|&byte| byte == 0) {
                        let len = data.len() as u64;
                        return stripe
                            .write_zeroes(*at, len, true, Durability::Cached)
                            .await;
                    }
                    let mut payload = Payload::new();
                    for piece in data.chunks(3000) {
                        payload.push(Buf::copy_of(piece).freeze());
                    }
                    stripe.write(*at, payload, Durability::Cached).await
                });
                for result in join_all(running.map(Box::pin)).await {
                    result.unwrap();
                }
                for (at, data) in writes {
                    model[at as usize..at as usize + data.len()].copy_from_slice(&data);
                }
                let at = random.below(len / 512) * 512;
                let n = (512 * (1 + random.below(500))).min(len - at);
                let read = stripe.read(at, n as usize).await.unwrap().to_vec();
                assert!(read == model[at as usize..(at + n) as usize], "{n} at {at}");
            }
            let all = stripe.read(0, len as usize).await.unwrap().to_vec();
            assert!(all == model, "seed {seed}");
        }
    });
}

#[test]
fn bad_ranges_and_writes_to_a_read_only_child_change_nothing() {
    on_lane(async {
        let (stripe, volumes) = new_stripe(2, UNIT).await;
        let len = stripe.shape().len_bytes();
        for (at, n) in [(0, 0), (1, 512), (0, 513), (len, 512), (len - 512, 1024)] {
            assert!(stripe.read(at, n).await.is_err());
            let write = stripe.write(at, Payload::zeroes(n), Durability::Cached);
            assert!(write.await.is_err());
            assert!(stripe.discard(at, n as u64).await.is_err());
        }
        assert!(volumes.iter().all(|v| v.calls.borrow().is_empty()));
        let read_only = TestVolume::with(2 * MIB, |shape| shape.read_only = ReadOnly::new(true));
        read_only
            .data
            .borrow_mut()
            .copy_from_slice(&volumes[1].data.borrow());
        let stripe = opened(&[volumes[0].clone(), read_only]).await.unwrap();
        assert!(stripe.shape().read_only.is_on());
        let write = stripe.write(0, Payload::zeroes(512), Durability::Cached);
        assert_eq!(write.await.unwrap_err().kind(), ErrorKind::ReadOnly);
    });
}

#[test]
fn an_error_names_its_child_and_every_child_is_driven_to_its_end() {
    on_lane(async {
        let (stripe, volumes) = new_stripe(3, UNIT).await;
        volumes[1].fails.set(|_| true);
        volumes[2].pause_us_max.set(2000);
        let data = Payload::from(Buf::copy_of(&[9; 3 * UNIT as usize]));
        let error = stripe.write(0, data, Durability::Cached).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Medium);
        assert!(error.to_string().contains("stripe child b"), "{error}");
        assert_eq!(volumes[2].data.borrow()[MIB], 9, "the slow one has ended");
        let error = stripe.read(0, 3 * UNIT as usize).await.unwrap_err();
        assert!(error.to_string().contains("stripe child b"), "{error}");
        let error = stripe.read(UNIT.into(), 512).await.unwrap_err();
        assert!(error.to_string().contains("stripe child b"), "{error}");
        assert!(stripe.read(0, 512).await.is_ok());
    });
}

#[test]
fn a_flush_covers_exactly_the_children_with_unflushed_writes() {
    on_lane(async {
        let (stripe, volumes) = new_stripe(3, UNIT).await;
        let flushes = || {
            volumes
                .iter()
                .map(|v| v.count(CallKind::Flush))
                .collect::<Vec<_>>()
        };
        let write = |at, durability| stripe.write(at, Payload::zeroes(512), durability);
        stripe.flush().await.unwrap();
        assert_eq!(
            flushes(),
            [1, 1, 1],
            "what was written before it was opened"
        );
        stripe.flush().await.unwrap();
        assert_eq!(flushes(), [1, 1, 1], "nothing was written");
        write(0, Durability::Cached).await.unwrap();
        write(2 * u64::from(UNIT), Durability::Cached)
            .await
            .unwrap();
        write(UNIT.into(), Durability::Fua).await.unwrap();
        stripe.flush().await.unwrap();
        assert_eq!(flushes(), [2, 1, 2], "FUA needs no flush");
        stripe.flush().await.unwrap();
        assert_eq!(flushes(), [2, 1, 2], "all was flushed");
        volumes[1].fails.set(|call| call.kind != CallKind::Flush);
        write(UNIT.into(), Durability::Fua).await.unwrap_err();
        stripe.discard(0, UNIT.into()).await.unwrap();
        stripe.flush().await.unwrap();
        assert_eq!(
            flushes(),
            [3, 2, 2],
            "a failed write may have changed something"
        );
    });
}

#[test]
fn a_second_flush_waits_for_what_the_first_is_still_flushing() {
    on_lane(async {
        let (stripe, volumes) = new_stripe(1, UNIT).await;
        let stripe = Rc::new(stripe);
        let data = Payload::from(Buf::copy_of(&[7; 512]));
        stripe.write(0, data, Durability::Cached).await.unwrap();
        volumes[0].hold(|call| call.kind == CallKind::Flush);
        let flush = |stripe: &Rc<Stripe>| {
            let stripe = stripe.clone();
            engine::spawn(async move { stripe.flush().await })
        };
        let first = flush(&stripe);
        engine::task::yield_now().await;
        let second = flush(&stripe);
        engine::task::yield_now().await;
        assert!(!first.is_finished() && !second.is_finished());
        volumes[0].hold(|_| false);
        first.await.unwrap();
        second.await.unwrap();
    });
}

#[test]
fn a_write_in_flight_during_a_flush_is_left_to_the_next_one() {
    on_lane(async {
        let (stripe, volumes) = new_stripe(1, UNIT).await;
        let stripe = Rc::new(stripe);
        volumes[0].hold(|call| call.kind != CallKind::Flush);
        let writer = stripe.clone();
        let write = engine::spawn(async move {
            let data = Payload::zeroes(512);
            writer.write(0, data, Durability::Cached).await
        });
        engine::task::yield_now().await;
        stripe.flush().await.unwrap();
        volumes[0].hold(|_| false);
        write.await.unwrap();
        volumes[0].forget();
        stripe.flush().await.unwrap();
        assert_eq!(volumes[0].count(CallKind::Flush), 1);
    });
}

#[test]
fn after_a_flush_every_ended_write_is_durable_whatever_else_runs() {
    on_lane(async {
        for seed in 1..20 {
            let random = Random::new(seed);
            let (stripe, volumes) = new_stripe(2, UNIT).await;
            let stripe = Rc::new(stripe);
            volumes.iter().for_each(|v| v.pause_us_max.set(100));
            // Writers of one block each count up, with flushes running concurrently.
            let ended = Rc::new(std::cell::RefCell::new([0u8; 6]));
            let blocks = [0, 1, 2, 3, 4, 5].map(|i| i as u64 * u64::from(UNIT));
            let mut tasks = Vec::new();
            for (i, at) in blocks.into_iter().enumerate() {
                let (stripe, ended) = (stripe.clone(), ended.clone());
                tasks.push(engine::spawn(async move {
                    for n in 1..20 {
                        let data = Payload::from(Buf::copy_of(&[n; 512]));
                        stripe.write(at, data, Durability::Cached).await.unwrap();
                        ended.borrow_mut()[i] = n;
                    }
                }));
            }
            for _ in 0..3 {
                let (stripe, ended, volumes) = (stripe.clone(), ended.clone(), volumes.clone());
                let pauses: Vec<u64> = (0..8).map(|_| random.below(300)).collect();
                tasks.push(engine::spawn(async move {
                    for pause in pauses {
                        engine::time::sleep(engine::Duration::from_micros(pause)).await;
                        let before = *ended.borrow();
                        stripe.flush().await.unwrap();
                        for (i, n) in before.into_iter().enumerate() {
                            let at = MIB + i / 2 * UNIT as usize;
                            let durable = volumes[i % 2].durable.borrow()[at];
                            assert!(durable >= n, "block {i}: {durable} of {n}");
                        }
                    }
                }));
            }
            for task in tasks {
                task.await;
            }
        }
    });
}

#[test]
fn a_failed_flush_is_sticky_until_the_stripe_is_opened_again() {
    on_lane(async {
        let (stripe, volumes) = new_stripe(2, UNIT).await;
        let write = || stripe.write(0, Payload::zeroes(8192), Durability::Cached);
        write().await.unwrap();
        volumes[1].fails.set(|call| call.kind == CallKind::Flush);
        for attempt in 0..2 {
            let error = stripe.flush().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FlushFailed);
            assert!(error.to_string().contains("stripe child b"), "{error}");
            volumes[1].fails.set(|_| false);
            let error = write().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::FlushFailed, "attempt {attempt}");
        }
        let discard = stripe.discard(0, 4096).await.unwrap_err();
        assert_eq!(discard.kind(), ErrorKind::FlushFailed);
        stripe.read(0, 4096).await.expect("reading goes on");
        let stripe = opened(&volumes).await.unwrap();
        stripe.flush().await.unwrap();
    });
}

#[test]
fn all_lanes_share_what_is_unflushed() {
    on_lane(async {
        let (_, volumes) = new_stripe(2, UNIT).await;
        let children = named(&volumes);
        let opened = OpenStripe::open(&children, Some(UNIT)).await.unwrap();
        let on_lane = || {
            let volumes: Vec<SharedVolume> = children.iter().map(|c| c.volume.clone()).collect();
            opened.on_lane(&volumes).unwrap()
        };
        let (one, other) = (on_lane(), on_lane());
        one.write(0, Payload::zeroes(512), Durability::Cached)
            .await
            .unwrap();
        other.flush().await.unwrap();
        assert_eq!(volumes[0].count(CallKind::Flush), 1);
        one.flush().await.unwrap();
        assert_eq!(
            volumes[0].count(CallKind::Flush),
            1,
            "the other lane has done it"
        );
        refused(
            opened.on_lane(&[volumes[0].clone()]),
            &["1 children", "of 2"],
        );
    });
}

#[test]
fn superblocks_are_durable_and_the_order_in_the_configuration_does_not_matter() {
    on_lane(async {
        let (stripe, volumes) = new_stripe(3, UNIT).await;
        let bytes = Random::new(3).bytes(3 * UNIT as usize);
        let data = Payload::from(Buf::copy_of(&bytes));
        stripe.write(0, data, Durability::Fua).await.unwrap();
        for volume in &volumes {
            let durable = volume.durable.borrow().clone();
            *volume.data.borrow_mut() = durable;
        }
        let [a, b, c] = [0, 1, 2].map(|i| volumes[i].clone());
        for order in [[&a, &b, &c], [&c, &a, &b], [&b, &a, &c]] {
            let stripe = opened(&order.map(Rc::clone)).await.unwrap();
            let read = stripe.read(0, bytes.len()).await.unwrap();
            assert_eq!(read.to_vec(), bytes);
        }
    });
}

#[test]
fn creating_refuses_what_it_would_destroy() {
    on_lane(async {
        let (_, used) = new_stripe(2, UNIT).await;
        let blank = TestVolume::new(2 * MIB);
        let pair = |other: &Rc<TestVolume>| named(&[blank.clone(), other.clone()]);
        let again = create(&pair(&used[1]), &options(UNIT)).await;
        refused(
            again,
            &[
                "stripe child b",
                "child 1 of 2 of stripe 00000000",
                "--force",
            ],
        );

        let full = TestVolume::new(2 * MIB);
        full.data.borrow_mut()[MIB - 1] = 1;
        full.data.borrow_mut()[MIB - 4097] = 1;
        let over_data = create(&pair(&full), &options(UNIT)).await;
        refused(
            over_data,
            &["stripe child b", "nonzero byte at 1044479", "--force"],
        );
        assert_eq!(
            blank.count(CallKind::Write(Durability::Fua)),
            0,
            "nothing was written"
        );

        let force = CreateOptions {
            force: true,
            ..options(UNIT)
        };
        create(&pair(&full), &force).await.unwrap();
        assert_eq!(
            full.data.borrow()[MIB - 4097],
            0,
            "nothing old is left before the mark"
        );
        opened(&[blank, full]).await.unwrap();
    });
}

#[test]
fn creating_refuses_children_that_do_not_fit() {
    on_lane(async {
        let good = TestVolume::new(2 * MIB);
        let make = |other: Rc<TestVolume>, unit| {
            let children = named(&[good.clone(), other]);
            async move { create(&children, &options(unit)).await }
        };
        let small = make(TestVolume::new(MIB + 4096), 8192).await;
        refused(small, &["stripe child b", "1052672 bytes", "8192"]);
        let read_only = TestVolume::with(2 * MIB, |shape| shape.read_only = ReadOnly::new(true));
        refused(
            make(read_only, UNIT).await,
            &["stripe child b", "read-only"],
        );
        for unit in [0, 512, 5000, 12_288] {
            let unit_named = unit.to_string();
            refused(
                make(TestVolume::new(2 * MIB), unit).await,
                &[&unit_named, "power of two"],
            );
        }
        refused(create(&[], &options(UNIT)).await, &["0 children"]);
        let same = make(good.clone(), UNIT).await;
        refused(
            same,
            &["the same disk as stripe child", "each child its own disk"],
        );
    });
}

#[test]
fn creating_that_fails_leaves_the_children_as_they_were() {
    on_lane(async {
        let force = CreateOptions {
            force: true,
            ..options(UNIT)
        };
        let full = TestVolume::new(2 * MIB);
        full.data.borrow_mut()[..MIB].fill(0x5a);
        for (same, options) in [(TestVolume::new(2 * MIB), options(UNIT)), (full, force)] {
            let before = same.data.borrow().clone();
            // Another child is listed between the two names of one disk.
            let other = TestVolume::new(2 * MIB);
            let children = named(&[same.clone(), other.clone(), same.clone()]);
            let made = create(&children, &options).await;
            refused(made, &["stripe child a", "the same disk as stripe child c"]);
            assert!(*same.data.borrow() == before && *same.durable.borrow() == before);
            assert!(other.data.borrow().iter().all(|&byte| byte == 0));
        }

        let [good, broken] = [(); 2].map(|()| TestVolume::new(2 * MIB));
        broken.fails.set(|call| call.kind == CallKind::Flush);
        let children = named(&[good.clone(), broken]);
        let error = create(&children, &options(UNIT)).await.unwrap_err();
        assert!(error.to_string().contains("is to fail"), "{error}");
        assert!(good.data.borrow().iter().all(|&byte| byte == 0));
    });
}

#[test]
fn opening_says_what_is_wrong_with_which_child() {
    on_lane(async {
        let (_, volumes) = new_stripe(2, UNIT).await;
        let [a, b] = [volumes[0].clone(), volumes[1].clone()];
        let spoiled = |at: usize, value: u8| {
            let copy = TestVolume::new(2 * MIB);
            copy.data.borrow_mut().copy_from_slice(&b.data.borrow());
            copy.data.borrow_mut()[at] = value;
            copy
        };
        let open = |children: Vec<Rc<TestVolume>>| async move { opened(&children).await };
        let blank = TestVolume::new(2 * MIB);
        refused(
            open(vec![a.clone(), blank]).await,
            &["stripe child b", "blank", "volume create"],
        );
        let foreign = spoiled(0, b'X');
        refused(
            open(vec![a.clone(), foreign]).await,
            &["stripe child b", "other than a Sanstone"],
        );
        let mirror = spoiled(8, b'm');
        refused(
            open(vec![a.clone(), mirror]).await,
            &["stripe child b", "\"mtripe\""],
        );
        let newer = spoiled(16, 2);
        refused(
            open(vec![a.clone(), newer]).await,
            &["stripe child b", "version 2", "version 1"],
        );
        let damaged = spoiled(60, 1);
        refused(
            open(vec![a.clone(), damaged]).await,
            &["stripe child b", "damaged", "copy"],
        );
        refused(
            open(vec![a.clone()]).await,
            &["has 2 children", "1 are listed", "child 1 is missing"],
        );
        refused(open(vec![]).await, &["without children"]);
        let three = open(vec![a.clone(), b.clone(), a.clone()]).await;
        refused(three, &["of 2", "3 are listed"]);
        let twice = open(vec![a.clone(), a.clone()]).await;
        refused(twice, &["stripe child b", "child 0 of 2", "once"]);
        let shrunk = TestVolume::new(2 * MIB - 512);
        shrunk
            .data
            .borrow_mut()
            .copy_from_slice(&b.data.borrow()[..2 * MIB - 512]);
        let shrunk = open(vec![a.clone(), shrunk]).await;
        refused(
            shrunk,
            &[
                "stripe child b",
                "2096640 bytes",
                "2097152",
                "restore its size",
            ],
        );
        let tiny = open(vec![a.clone(), TestVolume::new(4096)]).await;
        refused(tiny, &["stripe child b", "4096 bytes"]);

        let others = [TestVolume::new(2 * MIB), TestVolume::new(2 * MIB)];
        let other_uuid = CreateOptions {
            uuid: Uuid::from_u128(8),
            ..options(UNIT)
        };
        create(&named(&others), &other_uuid).await.unwrap();
        let mixed = open(vec![a.clone(), others[1].clone()]).await;
        refused(mixed, &["stripe child b", "belongs to stripe"]);

        let remade = CreateOptions {
            created_unix_s: 5,
            ..options(UNIT)
        };
        let others = [TestVolume::new(2 * MIB), TestVolume::new(2 * MIB)];
        create(&named(&others), &remade).await.unwrap();
        let mixed = open(vec![a.clone(), others[1].clone()]).await;
        refused(mixed, &["stripe child b", "disagree", "created at 5"]);

        let unit = OpenStripe::open(&named(&volumes), Some(8192)).await;
        refused(unit, &["8KiB", "write unit = \"4KiB\""]);
        b.fails.set(|_| true);
        let error = open(vec![a, b.clone()]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Medium);
        assert!(error.to_string().contains("stripe child b"), "{error}");
    });
}

#[test]
fn the_children_that_are_missing_are_named() {
    on_lane(async {
        let (_, volumes) = new_stripe(4, UNIT).await;
        let [a, _, c, _] = [0, 1, 2, 3].map(|i| volumes[i].clone());
        let words = [
            "has 4 children",
            "2 are listed",
            "children 1, 3 are missing",
        ];
        refused(opened(&[c, a]).await, &words);
    });
}

proptest! {
    /// Whatever a superblock with a valid checksum says: it is rejected, or no arithmetic on it overflows.
    #[test]
    fn no_superblock_breaks_who_reads_it(
        (child_index, child_count) in (0u32..2, prop_oneof![3 => 0u32..3, 1 => any::<u32>()]),
        unit_shift in 0u32..32,
        usable_units in prop_oneof![0u64..600, any::<u64>()],
        near_end in any::<bool>(),
        second in any::<bool>(),
    ) {
        let unit_bytes = 1u32 << unit_shift;
        let usable_bytes = usable_units.saturating_mul(unit_bytes.into());
        let usable_bytes = match near_end {
            true => u64::MAX / u64::from(child_count.max(1)) / u64::from(unit_bytes)
                * u64::from(unit_bytes),
            false => usable_bytes,
        };
        let superblock = |child_index| Superblock {
            volume: Uuid::from_u128(7),
            child_index,
            child_count,
            layout: Layout::Stripe { unit_bytes },
            usable_bytes,
            created_unix_s: u64::MAX,
        };
        on_lane(async move {
            let volumes: Vec<_> = (child_index..child_index + 1 + u32::from(second))
                .map(|index| {
                    let volume = TestVolume::new(2 * MIB);
                    let block = superblock(index).encode();
                    volume.data.borrow_mut()[..SUPERBLOCK_BYTES].copy_from_slice(&block);
                    volume
                })
                .collect();
            if let Ok(stripe) = opened(&volumes).await {
                let len = stripe.shape().len_bytes();
                stripe.read(len - 4096, 4096).await.expect("the last block");
            }
        });
    }
}
