//! The load generator: keeps a number of reads or writes of one size in flight on each of several
//! volumes for a given time, and counts what came back and how long each took.

use std::{cell::RefCell, rc::Rc};

use engine::{Buf, Duration, Payload, random::SplitMix64, task, time};
use hdrhistogram::Histogram;
use volume::{Durability, SharedVolume, Volume};

/// Which way the data goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// From the volume.
    Read,
    /// To the volume, acknowledged as its cache has it.
    Write,
}

/// In which order the volume is visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Uniformly at random, aligned to the size.
    Random,
    /// From the start to the end, again and again.
    Sequential,
}

/// A load on one or more volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Load {
    /// Reads or writes.
    pub operation: Operation,
    /// Where.
    pub order: Order,
    /// Length of each, in bytes.
    pub size_bytes: usize,
    /// In flight on each volume.
    pub depth: usize,
}

/// What a load has done.
#[derive(Clone, Debug)]
pub struct Done {
    /// I/Os completed.
    pub ios: u64,
    /// How long it ran.
    pub elapsed: Duration,
    /// Latency of each I/O, in nanoseconds.
    pub latency_ns: Histogram<u64>,
}

impl Done {
    /// I/Os per second.
    pub fn iops(&self) -> f64 {
        self.ios as f64 / self.elapsed.as_secs_f64()
    }
}

/// Loads `volumes` for `duration`; every volume gets its own `depth` I/Os in flight.
///
/// # Errors
/// The first error of an I/O ends the load.
pub async fn run(volumes: &[SharedVolume], load: Load, duration: Duration) -> volume::Result<Done> {
    let latency_ns = Histogram::new_with_bounds(100, 60_000_000_000, 2).expect("valid bounds");
    let latency_ns = Rc::new(RefCell::new(latency_ns));
    let began = time::now();
    let deadline = began + duration;
    let mut workers = Vec::new();
    for (index, volume) in volumes.iter().enumerate() {
        let places = Rc::new(RefCell::new(Places::new(&**volume, load, index as u64)));
        for _ in 0..load.depth {
            let (volume, places, latency_ns) = (volume.clone(), places.clone(), latency_ns.clone());
            workers.push(engine::spawn(async move {
                let data: Payload = Buf::zeroed(load.size_bytes).into();
                loop {
                    let begin = time::now();
                    if begin >= deadline {
                        return Ok(());
                    }
                    let at = places.borrow_mut().next();
                    match load.operation {
                        Operation::Read => drop(volume.read(at, load.size_bytes).await?),
                        Operation::Write => {
                            volume.write(at, data.clone(), Durability::Cached).await?;
                        }
                    }
                    let took = (time::now() - begin).as_nanos() as u64;
                    latency_ns.borrow_mut().saturating_record(took);
                }
            }));
        }
    }
    let results = task::join_all(workers).await;
    results.into_iter().collect::<volume::Result<()>>()?;
    let elapsed = time::now() - began;
    let latency_ns = latency_ns.borrow().clone();
    Ok(Done {
        ios: latency_ns.len(),
        elapsed,
        latency_ns,
    })
}

/// Writes every byte of `volume` once, from the start to the end.
///
/// # Errors
/// The first error of a write ends it.
pub async fn fill(volume: &dyn Volume) -> volume::Result<()> {
    const PIECE_BYTES: u64 = 1 << 20;
    let mut buf = Buf::new(PIECE_BYTES as usize);
    buf.fill(0x5a);
    let piece = Payload::from(buf);
    let end = volume.shape().len_bytes();
    for at in (0..end).step_by(PIECE_BYTES as usize) {
        let len = PIECE_BYTES.min(end - at) as usize;
        volume
            .write(at, piece.slice(0..len), Durability::Cached)
            .await?;
    }
    Ok(())
}

/// Chooses where the next I/O goes.
struct Places {
    order: Order,
    size_bytes: u64,
    count: u64,
    next: u64,
    random: SplitMix64,
}

impl Places {
    fn new(volume: &dyn Volume, load: Load, seed: u64) -> Places {
        let size_bytes = load.size_bytes as u64;
        let count = (volume.shape().len_bytes() / size_bytes).max(1);
        Places {
            order: load.order,
            size_bytes,
            count,
            next: 0,
            random: SplitMix64::new(seed + 1),
        }
    }

    fn next(&mut self) -> u64 {
        let place = match self.order {
            Order::Random => self.random.below(self.count),
            Order::Sequential => {
                let place = self.next;
                self.next = (self.next + 1) % self.count;
                place
            }
        };
        place * self.size_bytes
    }
}
