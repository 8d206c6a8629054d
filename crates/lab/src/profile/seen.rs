//! Where the time of a load's I/Os went, in the form that the journal keeps: the single I/Os are too many.

use serde::{Deserialize, Serialize};

use super::layers::{self, TimeSpent};
use crate::{
    load::{Done, SeenIo},
    report::{Layers, OperationTimes},
};

/// The layers of a load's I/Os, and what to know when reading them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LoadLayers {
    pub(super) layers: Layers,
    pub(super) notes: Vec<String>,
}

/// Where the time of one I/O went.
#[derive(Clone, Copy, Debug)]
struct IoSpent {
    latency_ns: u64,
    way: TimeSpent,
}

impl LoadLayers {
    /// The same as parts of another total.
    pub(super) fn of(self, total: OperationTimes) -> LoadLayers {
        LoadLayers {
            layers: self.layers.of_total(total),
            ..self
        }
    }

    /// Of the watched I/Os of a load, as parts of the latency of all of its I/Os; `None` if none was watched.
    pub(super) fn of_load(done: &Done) -> Option<LoadLayers> {
        let spent = |io: &SeenIo| IoSpent {
            latency_ns: io.latency_ns,
            way: TimeSpent::new(io.latency_ns, &io.layers),
        };
        let all: Vec<IoSpent> = done.seen.iter().map(spent).collect();
        let total = OperationTimes {
            mean_us: done.mean_us(),
            p50_us: done.quantile_us(0.5),
            p99_us: done.quantile_us(0.99),
        };
        (!all.is_empty()).then(|| LoadLayers {
            layers: layers::layers(&all, |io| io.latency_ns, &[], |io| io.way).of_total(total),
            notes: layers::notes(all.iter().map(|io| io.way)),
        })
    }
}
