//! The children that a stripe or concat has while it is open, for all lanes. They may become more: then those that follow are
//! linked from those that were there, whose places stay what they are.

use std::sync::{Arc, OnceLock};

use super::map::Map;
use crate::{flush_epochs::FlushEpochs, part::Part};

/// Its children from one moment on.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) map: Map,
    /// Names by child index.
    pub(super) names: Vec<String>,
    /// By child index.
    pub(super) epochs: Vec<Arc<FlushEpochs>>,
    /// Those that came with this, by child index.
    pub(super) joined: Vec<Arc<Part>>,
    /// What came next.
    longer: OnceLock<Arc<Members>>,
}

impl Members {
    /// Those that it is opened with.
    pub(super) fn new(map: Map, names: Vec<String>) -> Arc<Members> {
        Arc::new(Members {
            epochs: names.iter().map(|_| Arc::default()).collect(),
            map,
            names,
            joined: Vec::new(),
            longer: OnceLock::new(),
        })
    }

    /// What came next.
    pub(super) fn longer(&self) -> Option<&Arc<Members>> {
        self.longer.get()
    }

    /// Those that it has now, the last of which are the `joined` ones, at the places and with the names of `all`. To be
    /// called by one at a time, with the newest.
    pub(super) fn extend(&self, all: &Members, joined: Vec<Arc<Part>>) {
        let added = all.epochs[self.epochs.len()..].iter();
        let longer = Members {
            map: all.map.clone(),
            names: all.names.clone(),
            epochs: self.epochs.iter().chain(added).cloned().collect(),
            joined,
            longer: OnceLock::new(),
        };
        let set = self.longer.set(Arc::new(longer));
        assert!(set.is_ok(), "one extends it at a time");
    }

    /// All that have joined these.
    pub(super) fn joined_later(&self) -> Vec<Arc<Part>> {
        let longer = std::iter::successors(self.longer(), |it| it.longer());
        longer.flat_map(|it| it.joined.clone()).collect()
    }

    /// Those that it has now, beginning with these.
    pub(super) fn newest(self: &Arc<Members>) -> &Arc<Members> {
        let mut newest = self;
        while let Some(longer) = newest.longer() {
            newest = longer;
        }
        newest
    }
}
