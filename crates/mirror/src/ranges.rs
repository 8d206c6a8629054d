//! Ranges of blocks, and sets of blocks as ranges that neither overlap nor touch.

/// A range of blocks, not empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Range {
    /// Its first block.
    pub start: u64,
    /// The block after its last one.
    pub end: u64,
}

impl Range {
    /// `blocks` blocks from `start` on.
    ///
    /// # Panics
    /// If it is empty.
    pub fn new(start: u64, blocks: u64) -> Range {
        assert!(blocks > 0, "a range has blocks");
        Range {
            start,
            end: start + blocks,
        }
    }

    /// Whether a block is in both.
    pub fn overlaps(self, other: Range) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// What is in both.
    pub fn common(self, other: Range) -> Option<Range> {
        let start = self.start.max(other.start);
        let end = self.end.min(other.end);
        (start < end).then_some(Range { start, end })
    }
}

/// A set of blocks.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Ranges(Vec<Range>);

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range> {
        self.0.iter().copied()
    }

    pub(crate) fn overlaps(&self, range: Range) -> bool {
        let at = self.0.partition_point(|one| one.end <= range.start);
        self.0.get(at).is_some_and(|one| one.overlaps(range))
    }

    pub(crate) fn insert(&mut self, range: Range) {
        let from = self.0.partition_point(|one| one.end < range.start);
        let to = self.0.partition_point(|one| one.start <= range.end);
        let mut whole = range;
        for one in &self.0[from..to] {
            whole.start = whole.start.min(one.start);
            whole.end = whole.end.max(one.end);
        }
        self.0.splice(from..to, [whole]);
    }

    pub(crate) fn remove(&mut self, range: Range) {
        let from = self.0.partition_point(|one| one.end <= range.start);
        let to = self.0.partition_point(|one| one.start < range.end);
        let mut left = Vec::new();
        for one in &self.0[from..to] {
            let before = (one.start < range.start).then_some(Range {
                start: one.start,
                end: range.start,
            });
            let after = (one.end > range.end).then_some(Range {
                start: range.end,
                end: one.end,
            });
            left.extend(before.into_iter().chain(after));
        }
        self.0.splice(from..to, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in_and_not_taken_out() {
        // Every pair of an insertion and a removal in a row of 12 blocks, against a row of flags.
        for (a, b) in pairs(12) {
            for (c, d) in pairs(12) {
                let mut set = Ranges::default();
                let mut flags = [false; 12];
                for (start, end) in [(2, 4), (6, 9), (a, b)] {
                    set.insert(Range { start, end });
                    flags[start as usize..end as usize].fill(true);
                }
                set.remove(Range { start: c, end: d });
                flags[c as usize..d as usize].fill(false);
                for (block, flag) in (0..).zip(flags) {
                    assert_eq!(
                        set.overlaps(Range::new(block, 1)),
                        flag,
                        "{set:?}, block {block}"
                    );
                }
                let apart = |pair: &[Range]| pair[0].end < pair[1].start;
                assert!(set.0.windows(2).all(apart), "{set:?}");
            }
        }
    }

    fn pairs(end: u64) -> impl Iterator<Item = (u64, u64)> {
        (0..end).flat_map(move |a| (a + 1..=end).map(move |b| (a, b)))
    }
}
