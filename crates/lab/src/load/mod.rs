//! The load generator: reads and writes of given sizes in a given order on several volumes, recording the
//! time of each. It has two modes:
//!
//! - **Closed loop**: the number of outstanding I/Os is fixed; when one completes, the next starts. A medium
//!   that stalls stalls the load as well, so what would have arrived meanwhile is never measured.
//! - **Open loop**: I/Os arrive at a given rate, regardless of earlier ones. Latency counts from the
//!   *intended* start, so that a stall shows in the latency of everything that waited for it. The generator's
//!   own lateness is recorded separately.
//!
//! `generator` drives the load, `arrivals` decides when I/Os start, `places` where they go, `stamps` what is
//! written and how reads are verified, `sampler` which I/Os are watched, and `done` holds the results.

mod arrivals;
mod done;
mod generator;
mod places;
mod sampler;
mod stamps;
#[cfg(test)]
mod tests;

use std::{
    ops::Range,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use engine::{Duration, Payload};
use serde::{Deserialize, Serialize};
use volume::{Durability, SharedVolume, Volume};

pub use arrivals::Spacing;
pub use done::{Done, Point, SeenIo};
pub(crate) use done::{buckets_us, quantile_us};
pub(crate) use generator::BEGUN_MAX;
pub use generator::generate;
pub(crate) use sampler::Sampler;
pub use stamps::{Ledger, is_free_to_write};

/// The direction of the transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// From the volume.
    Read,
    /// To the volume, acknowledged once it is in the volume's cache.
    Write,
}

/// The order of visited offsets, which are multiples of the I/O size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Uniformly at random.
    #[default]
    Random,
    /// From the start to the end, again and again. Several volumes begin at places that are equally far apart, because they
    /// may be sessions with one disk. A load that only its time ends begins at a place that depends on its seed.
    Sequential,
    /// From the end to the start, again and again; it begins as `Sequential` does.
    Backward,
    /// Every seventeenth place, then the places after those, and so on; it begins as `Sequential` does.
    Strided,
    /// Random with a few hot places: Zipf's law with an exponent of 0.99, as in YCSB.
    Zipf,
}

/// When I/Os start.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub enum Arrivals {
    /// Closed loop.
    Closed {
        /// Outstanding I/Os on all volumes together.
        outstanding: usize,
    },
    /// Open loop.
    Open {
        /// Arrivals per second on all volumes together.
        rate_per_s: f64,
        /// The distribution of the intervals.
        spacing: Spacing,
    },
}

/// An adapter between the load and the volumes: I/Os above its limits wait in its queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// Outstanding I/Os on each volume.
    pub per_lun: usize,
    /// Outstanding I/Os in total.
    pub total: usize,
}

/// What to do to the volumes.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Percentage of I/Os that are reads, 0 to 100.
    pub read_percent: u64,
    /// I/O lengths in bytes, each with its relative weight.
    pub sizes: Vec<(usize, u64)>,
    /// The order of offsets.
    pub order: Order,
    /// When I/Os start.
    pub arrivals: Arrivals,
    /// The adapter between load and volumes, if any.
    pub adapter: Option<Adapter>,
    /// When a write counts as done.
    pub durability: Durability,
    /// Restricts the load to this many bytes at the start of each volume.
    pub span_bytes: Option<u64>,
    /// Ends the load after this many I/Os, if its time has not passed before.
    pub ios_max: Option<u64>,
    /// Whether an open loop starts its I/Os with microsecond precision, by [exact](engine::time::Sleep::exactly) sleeps.
    pub is_prompt: bool,
    /// Whether to record where the time of sampled I/Os goes.
    pub is_watched: bool,
    /// Loads with the same seed visit the same places at the same moments. Loads that follow each other need
    /// different ones: otherwise the second finds in a cache what the first has read.
    pub seed: u64,
}

impl Workload {
    /// I/Os of one size at uniformly random places, with a fixed number outstanding.
    pub fn closed(operation: Operation, size_bytes: usize, outstanding: usize) -> Workload {
        Workload {
            read_percent: match operation {
                Operation::Read => 100,
                Operation::Write => 0,
            },
            sizes: vec![(size_bytes, 1)],
            order: Order::Random,
            arrivals: Arrivals::Closed { outstanding },
            adapter: None,
            durability: Durability::Cached,
            span_bytes: None,
            ios_max: None,
            is_prompt: true,
            is_watched: false,
            seed: 0,
        }
    }

    /// The longest I/O, in bytes.
    fn size_bytes_max(&self) -> usize {
        self.sizes.iter().map(|(size, _)| *size).max().unwrap_or(0)
    }
}

/// A volume under load.
#[derive(Clone)]
pub struct Lun {
    /// The volume.
    pub volume: SharedVolume,
    /// What was written to it, if reads are verified. Sessions with the same disk share it.
    pub ledger: Option<Rc<Ledger>>,
}

impl From<SharedVolume> for Lun {
    fn from(volume: SharedVolume) -> Lun {
        Lun {
            volume,
            ledger: None,
        }
    }
}

/// Ends a load early, from any thread; results so far are kept.
#[derive(Clone, Debug, Default)]
pub struct Stop(pub Arc<AtomicBool>);

impl Stop {
    /// Whether stopping was requested.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A closed loop on one or more volumes, with I/Os of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Load {
    /// Reads or writes.
    pub operation: Operation,
    /// The order of offsets.
    pub order: Order,
    /// Length of each, in bytes.
    pub size_bytes: usize,
    /// I/Os in flight on each volume.
    pub depth: usize,
}

/// Loads `volumes` for `duration`; every volume gets its own `depth` I/Os in flight. `seed` is
/// [that of the load](Workload::seed).
///
/// # Errors
/// The first error of an I/O ends the load.
pub async fn run(
    volumes: &[SharedVolume],
    load: Load,
    duration: Duration,
    seed: u64,
) -> volume::Result<Done> {
    let luns: Vec<Lun> = volumes.iter().cloned().map(Lun::from).collect();
    let outstanding = load.depth * luns.len();
    let workload = Workload {
        order: load.order,
        seed,
        ..Workload::closed(load.operation, load.size_bytes, outstanding)
    };
    generate(&luns, &workload, duration, &Stop::default()).await
}

/// Writes every byte of `volume` once, from start to end.
///
/// # Errors
/// The first error of a write ends it.
pub async fn fill(volume: &dyn Volume) -> volume::Result<()> {
    let end = volume.shape().len_bytes();
    fill_to(volume, end, &Stop::default(), |_| ()).await
}

/// Marks `volume`, so that a later load knows that it holds nobody's data.
///
/// # Errors
/// The first error of a write ends it.
pub async fn mark_as_ours(volume: &dyn Volume) -> volume::Result<()> {
    let end = stamps::LOOK_BYTES.min(volume.shape().len_bytes());
    fill_to(volume, end, &Stop::default(), |_| ()).await
}

/// How much is written at once where only the result matters.
const PIECE_BYTES: u64 = 1 << 20;

/// Writes the first `end` bytes of `volume`, a MiB at a time; `told` is called with the number of bytes
/// written.
///
/// # Errors
/// The first error of a write ends it.
pub async fn fill_to(
    volume: &dyn Volume,
    end: u64,
    stop: &Stop,
    told: impl Fn(u64),
) -> volume::Result<()> {
    let piece: Payload = stamps::marked(PIECE_BYTES as usize);
    let write = async |at, len| {
        let data = piece.slice(0..len);
        volume.write(at, data, Durability::Cached).await?;
        told(at + len as u64);
        Ok(())
    };
    in_pieces(0..end, stop, write).await
}

/// Writes `range` of a volume, in bytes, while nothing else is in flight there. Where reads are verified, they
/// are also compared with what this writes.
///
/// # Errors
/// The first error of a write ends it.
pub(crate) async fn fill_range(lun: &Lun, range: Range<u64>, stop: &Stop) -> volume::Result<()> {
    let piece = stamps::marked(PIECE_BYTES as usize);
    let write = async |at, len| match &lun.ledger {
        Some(ledger) => ledger.fill(&lun.volume, at, len).await,
        None => {
            let data = piece.slice(0..len);
            lun.volume.write(at, data, Durability::Cached).await
        }
    };
    in_pieces(range, stop, write).await
}

/// Has `write` write the pieces of `range`, each a place and a length in bytes, until a stop is asked for.
async fn in_pieces(
    range: Range<u64>,
    stop: &Stop,
    write: impl AsyncFn(u64, usize) -> volume::Result<()>,
) -> volume::Result<()> {
    let end = range.end;
    for at in range.step_by(PIECE_BYTES as usize) {
        if stop.is_asked() {
            break;
        }
        write(at, PIECE_BYTES.min(end - at) as usize).await?;
    }
    Ok(())
}
