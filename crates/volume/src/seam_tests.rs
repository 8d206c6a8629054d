//! No layer loses a request for its child: over a child with its own answer to each request, every layer passes each
//! one on unchanged, or is listed with a reason not to.

use std::{cell::RefCell, rc::Rc, time::Duration};

use engine::{LaneFuture, Payload, spawn, task::yield_now};
use uuid::Uuid;

use crate::{
    Allocation, AtomicWrites, Claim, CompareOutcome, Durability, ErrorKind, Result, Shape,
    SharedVolume, Volume,
    cache::{Cache, CacheConfig},
    claim::{Others, Owner},
    fallback,
    kinds::{
        fault::{Fault, FaultAction, FaultHandle, Rule},
        throttle::Throttle,
    },
    member::{Order, Report},
    recorder::{Recording, Witness},
    stats::{Stats, StatsHandle},
    stripe::{self, Child, CreateOptions},
    test_volume::{TestVolume, on_lane},
};

const UNIT_BYTES: usize = 16 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    Read,
    Write,
    Flush,
    Member,
    Close,
    Discard,
    Allocation,
    WriteAtomic,
    CompareAndWrite,
    WriteZeroes,
}

const REQUESTS: [Request; 10] = [
    Request::Read,
    Request::Write,
    Request::Flush,
    Request::Member,
    Request::Close,
    Request::Discard,
    Request::Allocation,
    Request::WriteAtomic,
    Request::CompareAndWrite,
    Request::WriteZeroes,
];

/// Which layers do not pass on which requests, and why.
const REASONS: [(&str, Request, &str); 5] = [
    (
        "stripe",
        Request::Member,
        "it has claimed its children when it was opened, and whoever has it has them",
    ),
    ("concat", Request::Member, "as a stripe"),
    (
        "stripe",
        Request::CompareAndWrite,
        "its children have one owner, who keeps its own users away",
    ),
    ("concat", Request::CompareAndWrite, "as a stripe"),
    (
        "witness",
        Request::CompareAndWrite,
        "it records what reaches a file, which has none",
    ),
];

/// A child with its own answer to every request, which records the requests it gets.
struct Able {
    memory: Rc<TestVolume>,
    seen: RefCell<Vec<Request>>,
}

impl Able {
    fn new() -> Rc<Self> {
        Rc::new(Able {
            memory: TestVolume::new(2 << 20),
            seen: RefCell::default(),
        })
    }

    fn sees(&self, request: Request) {
        self.seen.borrow_mut().push(request);
    }
}

impl Volume for Able {
    fn shape(&self) -> &Shape {
        self.memory.shape()
    }

    fn read(&self, at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        self.sees(Request::Read);
        self.memory.read(at, len)
    }

    fn write(&self, at: u64, data: Payload, durability: Durability) -> LaneFuture<'_, Result<()>> {
        self.sees(Request::Write);
        self.memory.write(at, data, durability)
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        self.sees(Request::Flush);
        self.memory.flush()
    }

    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>> {
        self.sees(Request::Member);
        fallback::member(self, order)
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        self.sees(Request::Close);
        LaneFuture::new(async { Ok(()) })
    }

    fn discard(&self, at: u64, len: u64) -> LaneFuture<'_, Result<()>> {
        self.sees(Request::Discard);
        self.memory.discard(at, len)
    }

    fn allocation(&self, at: u64, len: u64) -> LaneFuture<'_, Result<Allocation>> {
        self.sees(Request::Allocation);
        self.memory.allocation(at, len)
    }

    fn atomic_writes(&self) -> Option<AtomicWrites> {
        Some(AtomicWrites {
            unit_bytes: UNIT_BYTES as u32,
            max_bytes: Some(UNIT_BYTES as u32),
        })
    }

    fn write_atomic(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        self.sees(Request::WriteAtomic);
        self.memory.write(at, data, durability)
    }

    fn compare_and_write(
        &self,
        at: u64,
        data: Payload,
        durability: Durability,
    ) -> LaneFuture<'_, Result<CompareOutcome>> {
        self.sees(Request::CompareAndWrite);
        LaneFuture::new(async move {
            let new = data.slice(data.len() / 2..data.len());
            self.memory.write(at, new, durability).await?;
            Ok(CompareOutcome::Written)
        })
    }

    fn write_zeroes(
        &self,
        at: u64,
        len: u64,
        may_discard: bool,
        durability: Durability,
    ) -> LaneFuture<'_, Result<()>> {
        self.sees(Request::WriteZeroes);
        self.memory.write_zeroes(at, len, may_discard, durability)
    }
}

async fn striped(child: SharedVolume, unit_bytes: u32) -> SharedVolume {
    joined(child, stripe::Layout::Stripe { unit_bytes }).await
}

async fn joined(child: SharedVolume, layout: stripe::Layout) -> SharedVolume {
    let children = [Child {
        name: "a".to_owned(),
        volume: child.clone(),
    }];
    let options = CreateOptions {
        layout,
        uuid: Uuid::from_u128(1),
        created_unix_s: 0,
        force: false,
    };
    let created = stripe::create(&children, &options).await;
    created.expect("the child is blank");
    let claim = Claim::single(&Owner::passing("a test"), Others::Refuse).of_set();
    let opened = match layout {
        stripe::Layout::Stripe { .. } => stripe::OpenStripe::open(&children, None).await,
        stripe::Layout::Concat => stripe::OpenStripe::claimed_concat(&children, &claim).await,
    };
    let opened = opened.expect("it was just created");
    Rc::new(opened.on_lane(&[child]).expect("one child"))
}

async fn layer(name: &str, child: SharedVolume) -> SharedVolume {
    match name {
        "stats" => Rc::new(Stats::new(child, &StatsHandle::new())),
        "fault" => Rc::new(Fault::new(child, FaultHandle::new())),
        "throttle" => {
            let rate = "40Gbit/s".parse().expect("a rate");
            Rc::new(Throttle::new(child, rate, Duration::ZERO))
        }
        "cache" => {
            Rc::new(Cache::new(child, &CacheConfig::default()).expect("a good configuration"))
        }
        "witness" => Rc::new(Witness::new(child, Recording::new())),
        "stripe" => striped(child, 64 << 10).await,
        "concat" => joined(child, stripe::Layout::Concat).await,
        other => panic!("{other} is no layer"),
    }
}

const LAYERS: &[&str] = &[
    "stats", "fault", "throttle", "cache", "witness", "stripe", "concat",
];

async fn ask(volume: &dyn Volume, request: Request) {
    try_to(volume, request).await.expect("the child takes it");
}

async fn try_to(volume: &dyn Volume, request: Request) -> Result<()> {
    let len = UNIT_BYTES as u64;
    let data = Payload::zeroes(UNIT_BYTES);
    let cached = Durability::Cached;
    match request {
        Request::Read => volume.read(0, UNIT_BYTES).await.map(drop),
        Request::Write => volume.write(0, data, cached).await,
        Request::Flush => {
            let written = volume.write(0, data, cached).await;
            written.and(volume.flush().await)
        }
        Request::Member => {
            let claim = Claim::single(&Owner::passing("a test"), Others::Refuse);
            volume.member(Order::Take(claim)).await.map(drop)
        }
        Request::Close => volume.close().await,
        Request::Discard => volume.discard(0, len).await,
        Request::Allocation => volume.allocation(0, len).await.map(drop),
        Request::WriteAtomic => volume.write_atomic(0, data, cached).await,
        Request::CompareAndWrite => {
            let data = Payload::zeroes(2 * UNIT_BYTES);
            volume.compare_and_write(0, data, cached).await.map(drop)
        }
        Request::WriteZeroes => volume.write_zeroes(0, len, true, cached).await,
    }
}

#[test]
fn every_layer_hands_every_request_on_as_what_it_is() {
    on_lane(async {
        for name in LAYERS {
            for request in REQUESTS {
                let child = Able::new();
                let volume = layer(name, child.clone()).await;
                child.seen.borrow_mut().clear();
                let asked = try_to(&*volume, request).await;
                let is_handed_on = child.seen.borrow().contains(&request);
                let has_reason = REASONS
                    .iter()
                    .any(|(layer, which, _)| (*layer, *which) == (name, request));
                assert!(asked.is_ok() || has_reason, "{name} and {request:?}");
                assert_eq!(is_handed_on, !has_reason, "{name} and {request:?}");
            }
        }
    });
}

#[test]
fn what_a_rule_fails_or_holds_up_is_not_even_begun_below() {
    on_lane(async {
        for action in [FaultAction::Fail(ErrorKind::Medium), FaultAction::Hang] {
            for request in REQUESTS {
                let (child, rules) = (Able::new(), FaultHandle::new());
                let fault = Rc::new(Fault::new(child.clone(), rules.clone()));
                rules.add(Rule::always(action));
                let asking = spawn(async move { try_to(&*fault, request).await });
                for _ in 0..4 {
                    yield_now().await;
                }
                let has_no_rules = matches!(
                    request,
                    Request::Member | Request::Close | Request::Allocation
                );
                let seen = child.seen.borrow().clone();
                assert_eq!(seen.is_empty(), !has_no_rules, "{action:?} {seen:?}");
                rules.clear();
                let is_done = has_no_rules || action == FaultAction::Hang;
                assert_eq!(asking.await.is_ok(), is_done, "{action:?} {request:?}");
                assert_eq!(child.seen.borrow().contains(&request), is_done);
            }
        }
    });
}

#[test]
fn atomic_writes_are_told_as_the_child_has_them_or_not_at_all() {
    on_lane(async {
        for name in LAYERS {
            let able = Able::new();
            let told = layer(name, able.clone()).await.atomic_writes();
            assert_eq!(told, able.atomic_writes(), "{name}");
            let without = layer(name, TestVolume::new(2 << 20)).await;
            assert_eq!(without.atomic_writes(), None, "{name}");
            let data = Payload::zeroes(UNIT_BYTES);
            let refused = without.write_atomic(0, data, Durability::Cached).await;
            refused.expect_err("the child takes none");
        }
        let too_small = striped(Able::new(), 4096).await;
        assert_eq!(too_small.atomic_writes(), None, "no unit holds one");
    });
}

#[test]
fn a_cache_gives_what_was_written_atomically_or_zeroed() {
    on_lane(async {
        let cache = layer("cache", Able::new()).await;
        let read = async || cache.read(0, UNIT_BYTES).await.expect("it reads").to_vec();
        assert!(read().await.iter().all(|byte| *byte == 0));
        let ones = || Payload::from(engine::Buf::copy_of(&[1; UNIT_BYTES]));
        let written = cache.write_atomic(0, ones(), Durability::Cached).await;
        written.expect("the child takes it");
        assert!(read().await.iter().all(|byte| *byte == 1));
        ask(&*cache, Request::WriteZeroes).await;
        assert!(read().await.iter().all(|byte| *byte == 0));
    });
}
