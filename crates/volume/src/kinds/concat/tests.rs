//! The concat as a volume: over children of different lengths that delay, reorder and fail; and which children are
//! refused.

use std::rc::Rc;

use engine::{Buf, Payload, task::join_all};
use proptest::prelude::*;
use uuid::Uuid;

use crate::{
    Durability, ErrorKind, Result, SetClaim, SharedVolume, Volume,
    claim::{Others, Owner},
    stripe::{Child, CreateOptions, Layout, OpenStripe, Stripe, create},
    test_volume::{CallKind, Random, TestVolume, on_lane},
};

const MIB: u64 = 1 << 20;

fn named(volumes: &[Rc<TestVolume>]) -> Vec<Child> {
    let names = ["a", "b", "c", "d", "e"];
    let pairs = names.iter().zip(volumes);
    pairs
        .map(|(name, volume)| Child {
            name: format!("concat child {name}"),
            volume: volume.clone(),
        })
        .collect()
}

fn options(layout: Layout) -> CreateOptions {
    CreateOptions {
        layout,
        uuid: Uuid::from_u128(7),
        created_unix_s: 1_485_907_200,
        force: false,
    }
}

async fn opened(volumes: &[Rc<TestVolume>]) -> Result<Stripe> {
    let children = named(volumes);
    // Removes any earlier owner: claims are not the subject of these tests.
    volumes.iter().for_each(|volume| drop(volume.crash()));
    let owner = Owner::passing("a test");
    let claim = SetClaim::new(&owner, children.len(), Others::Overrule, 0).expect("chance");
    let opened = OpenStripe::claimed_concat(&children, &claim).await?;
    let lane: Vec<SharedVolume> = children.iter().map(|c| c.volume.clone()).collect();
    opened.on_lane(&lane)
}

/// A new concat of children with this many MiB of data each, plus a little.
async fn new_concat(data_mib: &[u64]) -> (Stripe, Vec<Rc<TestVolume>>) {
    let lens = data_mib.iter().map(|mib| (mib + 1) * MIB + 4096);
    let volumes: Vec<_> = lens.map(|len| TestVolume::new(len as usize)).collect();
    let created = create(&named(&volumes), &options(Layout::Concat)).await;
    created.expect("the children are blank");
    let concat = opened(&volumes).await.expect("it was just created");
    volumes.iter().for_each(|volume| volume.forget());
    (concat, volumes)
}

#[track_caller]
fn refused<T>(result: Result<T>, words: &[&str]) {
    let Err(error) = result else {
        panic!("this must be refused");
    };
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} in: {error}");
    }
}

#[test]
fn it_is_as_long_as_its_children_together() {
    on_lane(async {
        let (concat, volumes) = new_concat(&[1, 3, 2]).await;
        assert_eq!(concat.shape().len_bytes(), 6 * MIB);
        assert_eq!(concat.uuid(), Uuid::from_u128(7));
        // Across the border between the first two children, and nothing of the third.
        concat.read(MIB - 512, 1024).await.expect("it reads");
        let reads = || {
            volumes
                .iter()
                .map(|v| v.count(CallKind::Read))
                .collect::<Vec<_>>()
        };
        assert_eq!(reads(), [1, 1, 0]);
        concat.read(MIB, 3 * MIB as usize).await.expect("it reads");
        assert_eq!(reads(), [1, 2, 0], "all of one child is one request");
        concat.read(0, 6 * MIB as usize).await.expect("it reads");
        assert_eq!(reads(), [2, 3, 1]);
        concat
            .read(6 * MIB - 512, 1024)
            .await
            .expect_err("beyond its end");
        assert_eq!(
            concat
                .allocation(0, 6 * MIB)
                .await
                .expect("it looks")
                .len_bytes,
            MIB
        );
        let (one, _) = new_concat(&[1]).await;
        assert_eq!(one.shape().len_bytes(), MIB, "a concat of one");
    });
}

/// One request to the concat, in blocks of 512 bytes.
#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, bool),
    Zeroes(u64, u64, bool),
    Discard(u64, u64),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    // Around the borders, which are at whole MiB.
    let at = (0u64..8, -40i64..40).prop_map(|(mib, by)| (mib * 2048).saturating_add_signed(by));
    let range = (at, prop_oneof![4 => 1u64..80, 1 => 2000u64..9000]);
    prop_oneof![
        4 => (range.clone(), any::<bool>()).prop_map(|((at, len), fua)| Step::Write(at, len, fua)),
        1 => (range.clone(), any::<bool>()).prop_map(|((at, len), may)| Step::Zeroes(at, len, may)),
        1 => range.prop_map(|(at, len)| Step::Discard(at, len)),
        1 => Just(Step::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Slow children, and a model: reads return what was written, and what was flushed or written with FUA is durable
    /// on its child.
    #[test]
    fn it_is_one_volume_whatever_its_children(
        lens in proptest::collection::vec(1u64..4, 1..6),
        steps in proptest::collection::vec(step(), 1..24),
        seed in any::<u64>(),
    ) {
        on_lane(async move {
            let random = Random::new(seed | 1);
            let (concat, volumes) = new_concat(&lens).await;
            volumes.iter().for_each(|v| v.pause_us_max.set(50));
            let len = concat.shape().len_bytes();
            let mut model = vec![0u8; len as usize];
            let within = |at: u64, n: u64| {
                let at = (at * 512).min(len - 512);
                (at, (n * 512).min(len - at))
            };
            for step in steps {
                match step {
                    Step::Write(at, n, fua) => {
                        let (at, n) = within(at, n);
                        let bytes = random.bytes(n as usize);
                        let mut data = Payload::new();
                        for piece in bytes.chunks(3000) {
                            data.push(Buf::copy_of(piece).freeze());
                        }
                        let durability = if fua { Durability::Fua } else { Durability::Cached };
                        concat.write(at, data, durability).await.expect("it writes");
                        model[at as usize..(at + n) as usize].copy_from_slice(&bytes);
                    }
                    Step::Zeroes(at, n, may_discard) => {
                        let (at, n) = within(at, n);
                        let zeroed = concat.write_zeroes(at, n, may_discard, Durability::Cached);
                        zeroed.await.expect("it writes");
                        model[at as usize..(at + n) as usize].fill(0);
                    }
                    Step::Discard(at, n) => {
                        let (at, n) = within(at, n);
                        concat.discard(at, n).await.expect("it discards");
                        // The content is now up to the children, but must not change any more.
                        let now = concat.read(at, n as usize).await.expect("it reads");
                        model[at as usize..(at + n) as usize].copy_from_slice(&now.to_vec());
                    }
                    Step::Flush => {
                        concat.flush().await.expect("it flushes");
                        let mut at = 0;
                        for (volume, mib) in volumes.iter().zip(&lens) {
                            let n = (mib * MIB) as usize;
                            let durable = volume.durable.borrow();
                            assert!(durable[MIB as usize..][..n] == model[at..at + n]);
                            at += n;
                        }
                    }
                }
            }
            let all = concat.read(0, len as usize).await.expect("it reads").to_vec();
            assert!(all == model, "what was read is not what was written");
        });
    }
}

#[test]
fn a_flush_covers_exactly_the_children_that_took_a_write_and_a_failed_one_is_sticky() {
    on_lane(async {
        let (concat, volumes) = new_concat(&[1, 1, 1]).await;
        let flushes = || {
            volumes
                .iter()
                .map(|v| v.count(CallKind::Flush))
                .collect::<Vec<_>>()
        };
        let write = |at, durability| concat.write(at, Payload::zeroes(1024), durability);
        concat.flush().await.expect("it flushes");
        assert_eq!(
            flushes(),
            [1, 1, 1],
            "what was written before it was opened"
        );
        write(MIB - 512, Durability::Cached)
            .await
            .expect("it writes");
        write(2 * MIB, Durability::Fua).await.expect("it writes");
        concat.flush().await.expect("it flushes");
        assert_eq!(
            flushes(),
            [2, 2, 1],
            "both sides of the border; FUA needs none"
        );
        write(2 * MIB, Durability::Cached).await.expect("it writes");
        volumes[2].fails.set(|call| call.kind == CallKind::Flush);
        let error = concat.flush().await.expect_err("it fails");
        assert_eq!(error.kind(), ErrorKind::FlushFailed);
        assert!(error.to_string().contains("concat child c"), "{error}");
        volumes[2].fails.set(|_| false);
        let error = write(0, Durability::Cached)
            .await
            .expect_err("it is sticky");
        assert_eq!(error.kind(), ErrorKind::FlushFailed);
    });
}

#[test]
fn an_error_names_its_child_and_every_child_is_driven_to_its_end() {
    on_lane(async {
        let (concat, volumes) = new_concat(&[1, 1]).await;
        volumes[0].fails.set(|_| true);
        volumes[1].pause_us_max.set(2000);
        let data = Payload::from(Buf::copy_of(&[9; 1024]));
        let written = concat.write(MIB - 512, data, Durability::Cached).await;
        let error = written.expect_err("one child fails");
        assert!(error.to_string().contains("concat child a"), "{error}");
        assert_eq!(
            volumes[1].data.borrow()[MIB as usize],
            9,
            "the slow one has ended"
        );
        let read = concat.read(MIB - 512, 1024).await;
        let error = read.expect_err("one child fails");
        assert!(error.to_string().contains("concat child a"), "{error}");
        concat.read(MIB, 512).await.expect("the other one does not");
    });
}

#[test]
fn children_work_at_the_same_time() {
    on_lane(async {
        let (concat, volumes) = new_concat(&[1, 1, 1]).await;
        volumes.iter().for_each(|v| v.hold(|_| true));
        let len = 3 * MIB as usize;
        let read = engine::spawn(async move { concat.read(0, len).await.map(|p| p.len()) });
        engine::task::yield_now().await;
        assert!(
            volumes
                .iter()
                .all(|volume| volume.count(CallKind::Read) == 1)
        );
        volumes.iter().for_each(|v| v.hold(|_| false));
        assert_eq!(read.await.expect("it reads"), len);
    });
}

#[test]
fn the_order_of_the_list_does_not_matter_and_who_is_missing_or_foreign_is_named() {
    on_lane(async {
        let (concat, volumes) = new_concat(&[1, 3, 2]).await;
        let bytes = Random::new(3).bytes(6 * MIB as usize);
        let data = Payload::from(Buf::copy_of(&bytes));
        concat
            .write(0, data, Durability::Fua)
            .await
            .expect("it writes");
        let [a, b, c] = [0, 1, 2].map(|i| volumes[i].clone());
        for order in [[&a, &b, &c], [&c, &a, &b], [&b, &a, &c]] {
            let concat = opened(&order.map(Rc::clone)).await.expect("it opens");
            let read = concat.read(0, bytes.len()).await.expect("it reads");
            assert!(read.to_vec() == bytes);
        }
        let missing = opened(&[c.clone(), a.clone()]).await;
        refused(
            missing,
            &["concat 00000000", "has 3 children", "child 1 is missing"],
        );
        let twice = opened(&[a.clone(), b.clone(), b.clone()]).await;
        refused(twice, &["concat child c", "child 1 of 3", "once"]);
        let blank = opened(&[a.clone(), b.clone(), TestVolume::new(4 << 20)]).await;
        refused(blank, &["concat child c", "blank", "volume create"]);
        let shrunk = TestVolume::new(3 * MIB as usize - 4096);
        let start = c.data.borrow()[..MIB as usize].to_vec();
        shrunk.data.borrow_mut()[..start.len()].copy_from_slice(&start);
        let shrunk = opened(&[a.clone(), b.clone(), shrunk]).await;
        refused(shrunk, &["concat child c", "3145728", "restore its size"]);
        let (_, others) = new_concat(&[1, 1, 1]).await;
        // The same identity for both, as if one had been created again over a part of the other.
        let again = CreateOptions {
            created_unix_s: 5,
            force: true,
            ..options(Layout::Concat)
        };
        create(&named(&others), &again).await.expect("by force");
        let mixed = opened(&[a, b, others[2].clone()]).await;
        refused(mixed, &["concat child c", "disagree", "created at 5"]);
    });
}

#[test]
fn a_stripe_is_no_concat_nor_the_other_way_round() {
    on_lane(async {
        let (_, concat) = new_concat(&[1, 1]).await;
        let as_stripe = OpenStripe::open(&named(&concat), None).await;
        refused(as_stripe, &["child a", "\"concat\"", "not to a stripe"]);
        let stripe = [TestVolume::new(2 << 20), TestVolume::new(2 << 20)];
        let layout = Layout::Stripe { unit_bytes: 4096 };
        let created = create(&named(&stripe), &options(layout)).await;
        created.expect("the children are blank");
        refused(
            opened(&stripe).await,
            &["child a", "\"stripe\"", "not to a concat"],
        );
        let over = create(&named(&stripe), &options(Layout::Concat)).await;
        refused(over, &["already child 0 of 2 of stripe", "--force"]);
        let short = [TestVolume::new((1 << 20) + 4096)];
        let too_short = create(&named(&short), &options(Layout::Concat)).await;
        refused(too_short, &["1052672 bytes", "at least one unit of 65536"]);
    });
}

#[test]
fn writes_to_several_children_run_side_by_side_with_flushes() {
    on_lane(async {
        let (concat, volumes) = new_concat(&[1, 2, 1]).await;
        volumes.iter().for_each(|v| v.pause_us_max.set(200));
        let writes = (0..16u8).map(|i| {
            let data = Payload::from(Buf::copy_of(&[i; 4096]));
            concat.write(u64::from(i) * (MIB / 4), data, Durability::Cached)
        });
        let (written, flushed) = (join_all(writes).await, concat.flush().await);
        written
            .into_iter()
            .chain([flushed])
            .for_each(|ended| ended.expect("it ends well"));
        for i in 0..16u8 {
            let read = concat
                .read(u64::from(i) * (MIB / 4), 4096)
                .await
                .expect("it reads");
            assert_eq!(read.to_vec(), [i; 4096]);
        }
    });
}
