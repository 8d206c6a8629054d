//! The load generator: reads and writes of given sizes in a given order on several volumes, with all of
//! their times. It is driven in one of two ways:
//!
//! - **Closed loop**: a number of I/Os is outstanding; the next one begins when one has ended. A medium
//!   that stops stops the load as well, and what would have come meanwhile is never seen.
//! - **Open loop**: I/Os arrive at a rate, whatever became of those before. The latency counts from the
//!   moment at which one was *to* begin, so that a stop is in the latency of all that waited for it. How
//!   late the generator itself was is a series of its own.
//!
//! `generator` drives it, `arrivals` says when, `places` where, `stamps` what is written and whether it
//! is read again, and `done` holds what came of it.

mod arrivals;
mod done;
mod generator;
mod places;
mod stamps;
#[cfg(test)]
mod tests;

use std::{
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
pub use generator::generate;
pub(crate) use generator::{BEGUN_MAX, SEEN_ONE_OF};
pub(crate) use stamps::MARK;
pub use stamps::{Ledger, is_free_to_write};

/// Which way the data goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// From the volume.
    Read,
    /// To the volume, acknowledged as its cache has it.
    Write,
}

/// In which order the volume is visited. Places are multiples of the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Uniformly at random.
    #[default]
    Random,
    /// From the start to the end, again and again.
    Sequential,
    /// From the end to the start, again and again.
    Backward,
    /// Every seventeenth place, then those behind them, and so on.
    Strided,
    /// At random, few places often and many seldom: by Zipf's law with an exponent of 0.99, as YCSB.
    Zipf,
}

/// When I/Os begin.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub enum Arrivals {
    /// Closed loop.
    Closed {
        /// Outstanding on all volumes together.
        outstanding: usize,
    },
    /// Open loop.
    Open {
        /// Arrivals a second on all volumes together.
        rate_per_s: f64,
        /// How they follow each other.
        spacing: Spacing,
    },
}

/// An adapter between the load and the volumes: what is above its limits waits in line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// Outstanding on each volume.
    pub per_lun: usize,
    /// Outstanding in all.
    pub total: usize,
}

/// What to do to the volumes.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Part of the I/Os that read, from 0 to 100.
    pub read_percent: u64,
    /// Lengths in bytes, and how often each comes beside the others.
    pub sizes: Vec<(usize, u64)>,
    /// Where.
    pub order: Order,
    /// When.
    pub arrivals: Arrivals,
    /// What is in between.
    pub adapter: Option<Adapter>,
    /// When a write counts as done.
    pub durability: Durability,
    /// Only this much of each volume, from its start.
    pub span_bytes: Option<u64>,
    /// Ends after as many I/Os, if the time has not passed before.
    pub ios_max: Option<u64>,
    /// Whether the I/Os of an open loop begin to the microsecond, for which a processor looks at the clock; else
    /// when a sleep ends.
    pub is_prompt: bool,
    /// Whether it is watched where the time of its I/Os goes.
    pub is_watched: bool,
}

impl Workload {
    /// I/Os of one size, uniformly at random, as many outstanding as given.
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
    /// What was written to it, if reads are to be compared with that. Sessions with one disk share it.
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

/// Ends a load early, from anywhere: it keeps what it has measured.
#[derive(Clone, Debug, Default)]
pub struct Stop(pub Arc<AtomicBool>);

impl Stop {
    /// Whether it was asked for.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A closed loop on one or more volumes, with I/Os of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
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

/// Loads `volumes` for `duration`; every volume gets its own `depth` I/Os in flight.
///
/// # Errors
/// The first error of an I/O ends the load.
pub async fn run(volumes: &[SharedVolume], load: Load, duration: Duration) -> volume::Result<Done> {
    let luns: Vec<Lun> = volumes.iter().cloned().map(Lun::from).collect();
    let outstanding = load.depth * luns.len();
    let workload = Workload {
        order: load.order,
        ..Workload::closed(load.operation, load.size_bytes, outstanding)
    };
    generate(&luns, &workload, duration, &Stop::default()).await
}

/// Writes every byte of `volume` once, from the start to the end.
///
/// # Errors
/// The first error of a write ends it.
pub async fn fill(volume: &dyn Volume) -> volume::Result<()> {
    let end = volume.shape().len_bytes();
    fill_to(volume, end, &Stop::default(), |_| ()).await
}

/// Lets a later load know that what is on `volume` is nobody's data.
///
/// # Errors
/// The first error of a write ends it.
pub async fn mark_as_ours(volume: &dyn Volume) -> volume::Result<()> {
    let end = stamps::LOOK_BYTES.min(volume.shape().len_bytes());
    fill_to(volume, end, &Stop::default(), |_| ()).await
}

/// Writes the first `end` bytes of `volume`, a few MiB at a time; `told` is called with how many are
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
    const PIECE_BYTES: u64 = 1 << 20;
    let piece: Payload = stamps::marked(PIECE_BYTES as usize);
    for at in (0..end).step_by(PIECE_BYTES as usize) {
        if stop.is_asked() {
            break;
        }
        let len = PIECE_BYTES.min(end - at) as usize;
        volume
            .write(at, piece.slice(0..len), Durability::Cached)
            .await?;
        told(at + len as u64);
    }
    Ok(())
}
