//! The overhead of the layers themselves: nanoseconds per I/O over children that cost nothing.
//!
//! `cargo test --release -p sanstone-volume measure -- --ignored --nocapture`

use std::{hint::black_box, path::Path, rc::Rc, time::Instant};

use engine::{Buf, Lane, LaneConfig, LaneFuture, Payload, Slice, task};
use uuid::Uuid;

use crate::{
    Durability, Result, Shape, SharedVolume, Volume,
    cache::{Cache, CacheConfig},
    fallback,
    graph::{Graph, tests::OtherLane},
    member::{Order, Report},
    stripe::{self, CreateOptions, OpenStripe},
    test_volume::{TestVolume, on_lane},
};

/// Returns views of one buffer, and accepts writes without looking at them.
struct Nothing {
    shape: Shape,
    bytes: Slice,
}

impl Nothing {
    fn new(shape: &Shape) -> Rc<Self> {
        Rc::new(Nothing {
            shape: shape.clone(),
            bytes: Buf::zeroed(4 << 20).freeze(),
        })
    }
}

impl Volume for Nothing {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, _at: u64, len: usize) -> LaneFuture<'_, Result<Payload>> {
        LaneFuture::new(async move { Ok(self.bytes.slice(0..len).into()) })
    }

    fn write(&self, _: u64, data: Payload, _: Durability) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async move {
            drop(data);
            Ok(())
        })
    }

    fn flush(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { Ok(()) })
    }

    fn member(&self, order: Order) -> LaneFuture<'_, Result<Report>> {
        fallback::member(self, order)
    }

    fn close(&self) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { Ok(()) })
    }

    fn discard(&self, _: u64, _: u64) -> LaneFuture<'_, Result<()>> {
        LaneFuture::new(async { Ok(()) })
    }

    crate::fall_back!();
}

/// Runs five rounds of `io` at successive offsets; returns nanoseconds per I/O for each.
fn rounds(lane: &Lane, len: usize, within: u64, mut io: impl FnMut(&Lane, u64)) -> Vec<u64> {
    const COUNT: u64 = 200_000;
    (0..5)
        .map(|_| {
            let (began, mut at) = (Instant::now(), 0);
            for _ in 0..COUNT {
                io(lane, at);
                at = (at + len as u64) % within;
            }
            began.elapsed().as_nanos() as u64 / COUNT
        })
        .collect()
}

fn read_rounds(lane: &Lane, volume: &dyn Volume, len: usize, within: u64) -> Vec<u64> {
    rounds(lane, len, within, |lane, at| {
        black_box(lane.block_on(volume.read(at, len)).expect("nothing fails"));
    })
}

#[test]
#[ignore = "a measurement, for a release build"]
fn a_cache_hit() {
    let lane = Lane::new(&LaneConfig::default()).expect("io_uring works here");
    let len = 32 << 20;
    let child = Nothing::new(&TestVolume::new(len).shape);
    for block_bytes in [16 << 10, 64 << 10] {
        let config = CacheConfig {
            block_bytes,
            ..CacheConfig::default()
        };
        let cache = Cache::new(child.clone(), &config).expect("a good configuration");
        for at in (0..len as u64).step_by(64 << 10) {
            lane.block_on(cache.read(at, 64 << 10))
                .expect("nothing fails");
        }
        let before = cache.stats();
        for read in [4 << 10, 64 << 10] {
            let ns = read_rounds(&lane, &cache, read, len as u64);
            println!("hit of {read} bytes in blocks of {block_bytes}: {ns:?} ns");
        }
        assert_eq!(cache.stats().misses, before.misses);
    }
    for read in [4 << 10, 64 << 10] {
        let ns = read_rounds(&lane, &*child, read, len as u64);
        println!("a child that costs nothing, {read} bytes: {ns:?} ns");
    }
}

#[test]
#[ignore = "a measurement, for a release build"]
fn a_cache_hit_from_another_lane() {
    const COUNT: u32 = 20_000;
    let text = "db.cache = { size = \"64MiB\", of = { ram = { size = \"32MiB\" } } }";
    let volumes = toml::from_str(text).expect("it parses");
    let mut graph = Graph::new(volumes, Path::new(".")).expect("the configuration is valid");
    let (here, other) = (Lane::new(&LaneConfig::default()), OtherLane::start());
    let here = here.expect("io_uring works here");
    for (name, home) in [
        ("here", here.handle()),
        ("another lane", other.handle.clone()),
    ] {
        here.block_on(async {
            let tree = graph.open("db", &home).await.expect("it opens");
            let volume = tree.on_lane().await.expect("it is open");
            volume.read(0, 1 << 20).await.expect("nothing fails");
            for (len, at_once) in [(4 << 10, 1), (4 << 10, 32), (16 << 10, 1), (16 << 10, 32)] {
                let mut ns = Vec::new();
                for _ in 0..5 {
                    let began = Instant::now();
                    for _ in 0..COUNT / at_once {
                        let reads =
                            (0..at_once).map(|read| volume.read(u64::from(read) * 16384, len));
                        task::join_all(reads).await;
                    }
                    ns.push(began.elapsed().as_nanos() as u64 / u64::from(COUNT));
                }
                println!("{name}: hits of {len} bytes, {at_once} at a time: {ns:?} ns each");
            }
        });
    }
}

#[test]
#[ignore = "a measurement, for a release build"]
fn a_stripe_of_two() {
    let volumes = [TestVolume::new(17 << 20), TestVolume::new(17 << 20)];
    let children: Vec<stripe::Child> = volumes
        .iter()
        .map(|volume| stripe::Child {
            name: String::new(),
            volume: volume.clone(),
        })
        .collect();
    let options = CreateOptions {
        layout: stripe::Layout::Stripe {
            unit_bytes: stripe::UNIT_BYTES_DEFAULT,
        },
        uuid: Uuid::from_u128(1),
        created_unix_s: 0,
        force: false,
    };
    let opened = on_lane(async {
        stripe::create(&children, &options).await?;
        OpenStripe::open(&children, None).await
    })
    .expect("the children are blank");
    let child: SharedVolume = Nothing::new(&volumes[0].shape);
    let stripe = opened
        .on_lane(&[child.clone(), child.clone()])
        .expect("two children");
    let lane = Lane::new(&LaneConfig::default()).expect("io_uring works here");
    for len in [4 << 10, 64 << 10, 128 << 10, 1 << 20] {
        let within = 16 << 20;
        let alone = read_rounds(&lane, &*child, len, within);
        let striped = read_rounds(&lane, &stripe, len, within);
        let data = Payload::from(Buf::zeroed(len));
        let written = |volume: &dyn Volume| {
            rounds(&lane, len, within, |lane, at| {
                let write = volume.write(at, data.clone(), Durability::Cached);
                lane.block_on(write).expect("nothing fails");
            })
        };
        let (write_alone, write_striped) = (written(&*child), written(&stripe));
        println!("read of {len} bytes: child {alone:?}, stripe {striped:?} ns");
        println!("write of {len} bytes: child {write_alone:?}, stripe {write_striped:?} ns");
    }
}
