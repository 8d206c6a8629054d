//! Sequential writes (rule 11): with the region that such a write reaches, those ahead of it are marked, as far as it has come.
//! So it pays for its first touches with a few writes of metadata instead of with one for each region.

use std::collections::VecDeque;

use super::Mirror;
use crate::{copy_set::CopySet, ranges::Range};

/// How many sequential writers are known beside each other.
const SEQUENCES: usize = 4;

/// The writers that were seen last.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Sequences(VecDeque<Sequence>);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Sequence {
    /// Where its next write begins.
    end: u64,
    written_blocks: u64,
}

impl Sequences {
    /// A write of `range` comes. Returns how much was written right before it, in blocks.
    fn follow(&mut self, range: Range) -> u64 {
        let known = self.0.iter().position(|one| one.end == range.start);
        let before = known.and_then(|at| self.0.remove(at));
        let written_blocks = before.map_or(0, |one| one.written_blocks);
        self.0.truncate(SEQUENCES - 1);
        self.0.push_front(Sequence {
            end: range.end,
            written_blocks: written_blocks + range.end - range.start,
        });
        written_blocks
    }
}

impl Mirror {
    /// A request writes `range` to `targets`: if a region of it has to be marked there, those ahead of it are, too.
    pub(super) fn mark_ahead(&mut self, range: Range, targets: CopySet) {
        if self.config.ahead_blocks == 0 {
            return;
        }
        let written_blocks = self.sequences.follow(range);
        let reached = Range {
            start: range.start,
            end: (range.end + written_blocks.min(self.config.ahead_blocks)).min(self.config.blocks),
        };
        let is_marked = |region| {
            let mut wanted = targets
                .iter()
                .map(|copy| &self.members[copy.place()].bitmap.wanted);
            wanted.all(|wanted| wanted.contains(region))
        };
        if !self.config.regions_of(range).all(is_marked) {
            self.touch(reached, targets);
        }
    }
}
