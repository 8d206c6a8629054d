//! What is asked of a comparison of a mirror's copies, and what it finds.

use std::{ops::Range, sync::mpsc};

use crate::Result;

/// A part of the mirror that was compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Where the next part begins, in bytes; the mirror's length after the last.
    pub next_bytes: u64,
    /// The mirror's length in bytes.
    pub len_bytes: u64,
    /// Where the copies differ, in bytes, in ascending order.
    pub differ: Vec<Range<u64>>,
}

/// Somebody asks for the part that begins at `at_bytes`.
#[derive(Debug)]
pub(super) struct ComparisonRequest {
    pub(super) at_bytes: u64,
    pub(super) answer: mpsc::Sender<Result<Compared>>,
}

/// Where pieces differ, in bytes from their beginning.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences(pub(super) Vec<Range<u64>>);

impl Differences {
    /// Adds the blocks of `block_bytes` in which `one` and `other` differ.
    pub(super) fn add(&mut self, one: &[u8], other: &[u8], block_bytes: usize) {
        let blocks = one.chunks(block_bytes).zip(other.chunks(block_bytes));
        for (number, (one, other)) in (0_u64..).zip(blocks) {
            if one != other {
                let start = number * block_bytes as u64;
                self.join(start..start + one.len() as u64);
            }
        }
    }

    /// Adds a range after the others.
    pub(super) fn join(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_blocks_that_touch_are_one_range() {
        let one = [0; 4096];
        let mut other = one;
        let mut found = Differences::default();
        found.add(&one, &other, 512);
        assert_eq!(found, Differences::default());
        for at in [511, 512, 1600, 4095] {
            other[at] = 1;
        }
        found.add(&one, &other, 512);
        assert_eq!(found.0, [0..1024, 1536..2048, 3584..4096]);
    }
}
