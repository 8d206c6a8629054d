//! The places that are reserved for initiators whose sessions have ended. The longest-lived sessions count most: who logs
//! in and out all the time, under whatever names, takes no place from a database.

use std::collections::{BTreeMap, HashMap};

use engine::Duration;

/// Places reserved for initiators whose sessions have ended.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) places: HashMap<String, KeptFor>,
    /// The least is forgotten first.
    pub(super) by_merit: BTreeMap<Merit, String>,
    pub(super) total: usize,
    ended: u64,
}

pub(super) struct KeptFor {
    places: usize,
    merit: Merit,
}

/// How long an initiator's sessions lasted; of equals, the one that ended last ranks higher.
pub(super) type Merit = (Duration, u64);

impl Kept {
    pub(super) fn knows(&self, initiator: &str) -> bool {
        self.places.contains_key(initiator)
    }

    /// Reserves a place for `initiator`, whose session lasted `lasted`. Beyond `max` places, the one with the least
    /// merit is dropped.
    pub(super) fn add(&mut self, initiator: String, lasted: Duration, max: usize) {
        self.ended += 1;
        self.total += 1;
        let mut merit = (lasted, self.ended);
        let mut places = 1;
        if let Some(before) = self.places.remove(&initiator) {
            self.by_merit.remove(&before.merit);
            merit.0 = merit.0.max(before.merit.0);
            places += before.places;
        }
        self.by_merit.insert(merit, initiator.clone());
        self.places.insert(initiator, KeptFor { places, merit });
        self.keep_at_most(max);
    }

    pub(super) fn keep_at_most(&mut self, max: usize) {
        while self.total > max {
            let Some(least) = self.by_merit.values().next().cloned() else {
                return;
            };
            self.take(&least);
        }
    }

    /// Takes a place reserved for `initiator`, if any, and returns how long its sessions lasted.
    pub(super) fn take(&mut self, initiator: &str) -> Option<Duration> {
        let kept = self.places.get_mut(initiator)?;
        let merit = kept.merit;
        kept.places -= 1;
        self.total -= 1;
        if kept.places == 0 {
            self.by_merit.remove(&merit);
            self.places.remove(initiator);
        }
        Some(merit.0)
    }
}
