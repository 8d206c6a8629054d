//! What overlaps never runs at once (rule 9): requests wait in the order in which they came, for whatever runs and for
//! what waits before them. Equalisation and filling wait only for what runs, because requests wait for them. Reads run
//! beside reads.

use super::{Mirror, work::Work};
use crate::ranges::{Range, Ranges};

impl Mirror {
    /// Whether the request at `at` has to wait: for another one, or because its range is in doubt (rule 8).
    pub(super) fn is_held_up(&self, at: usize) -> bool {
        let work = &self.works[at];
        let before = |(index, other): (usize, &Work)| {
            (other.has_begun || index < at) && excludes(work, other)
        };
        self.doubts.overlaps(work.range)
            || self
                .works
                .iter()
                .enumerate()
                .filter(|(index, _)| *index != at)
                .any(before)
    }

    /// The first piece of `ranges` that overlaps nothing that runs, where requests wait first.
    pub(super) fn free_piece(&self, ranges: &Ranges) -> Option<Range> {
        let waiting = self.works.iter().filter(|work| !work.has_begun);
        let wanted =
            waiting.flat_map(|work| ranges.iter().filter_map(|one| one.common(work.range)));
        let pieces = |range: Range| {
            let starts = (range.start..range.end).step_by(self.config.piece_blocks as usize);
            starts.map(move |start| Range {
                start,
                end: (start + self.config.piece_blocks).min(range.end),
            })
        };
        let is_free = |piece: &Range| {
            let mut running = self.works.iter().filter(|work| work.has_begun);
            !running.any(|work| work.range.overlaps(*piece))
        };
        wanted.chain(ranges.iter()).flat_map(pieces).find(is_free)
    }

    pub(super) fn check_overlap(&self) {
        if cfg!(debug_assertions) {
            let running = || self.works.iter().filter(|work| work.has_begun);
            for (at, work) in running().enumerate() {
                let other = running().take(at).find(|other| excludes(work, other));
                assert!(other.is_none(), "{work:?} and {other:?} run at once");
            }
        }
    }
}

fn excludes(one: &Work, other: &Work) -> bool {
    one.range.overlaps(other.range) && !(one.is_harmless() && other.is_harmless())
}
