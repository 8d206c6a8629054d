//! Where the time of a load's I/Os went, in the form that the journal keeps: the single I/Os are too many.

use serde::{Deserialize, Serialize};

use super::layers::{self, Way};
use crate::{load::SeenIo, report::Layers};

/// The layers of a load's I/Os, and what to know when reading them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Seen {
    pub(super) layers: Layers,
    pub(super) notes: Vec<String>,
}

/// Where the time of one I/O went.
#[derive(Clone, Copy, Debug)]
struct IoSpent {
    latency_ns: u64,
    way: Way,
}

impl Seen {
    /// Of these I/Os; `None` if there are none.
    pub(super) fn of(ios: &[SeenIo]) -> Option<Seen> {
        let spent = |io: &SeenIo| IoSpent {
            latency_ns: io.latency_ns,
            way: Way::new(io.latency_ns, &io.layers),
        };
        let all: Vec<IoSpent> = ios.iter().map(spent).collect();
        (!all.is_empty()).then(|| Seen {
            layers: layers::layers(&all, |io| io.latency_ns, &[], |io| io.way),
            notes: layers::notes(all.iter().map(|io| io.way)),
        })
    }
}
