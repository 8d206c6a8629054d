//! The address arithmetic of a concat: the children follow one another, each used from beginning to end. Pure
//! arithmetic.

use super::place::{PerChild, Place, Run};

/// The arithmetic of one concat. Child offsets count from the start of the child's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    /// The offset in the volume where each child ends, in order. No child is empty.
    ends: Box<[u64]>,
}

impl Sequence {
    /// Children with data of these lengths, all above zero, whose sum must not overflow.
    pub(super) fn new(lens: impl IntoIterator<Item = u64>) -> Self {
        let mut end = 0u64;
        let ends = lens.into_iter().map(|len| {
            assert!(len > 0, "a child without data");
            end = end.checked_add(len).expect("the sum was checked");
            end
        });
        Sequence {
            ends: ends.collect(),
        }
    }

    /// The length of the volume.
    pub(super) fn len_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The offset in the volume where a child begins.
    pub(super) fn start(&self, child: usize) -> u64 {
        match child {
            0 => 0,
            child => self.ends[child - 1],
        }
    }

    /// Where byte `at` of the volume lies.
    pub(super) fn place(&self, at: u64) -> Place {
        let child = self.ends.partition_point(|&end| end <= at);
        Place {
            child,
            at: at - self.start(child),
        }
    }

    /// How many bytes from byte `at` on are contiguous on one child.
    pub(super) fn reach(&self, at: u64) -> u64 {
        self.ends[self.place(at).child] - at
    }

    /// The runs of a non-empty range, in order; each is a single piece.
    pub(super) fn runs(&self, at: u64, len: u64) -> PerChild<Run> {
        let end = at + len;
        let first = self.place(at).child;
        (first..self.ends.len())
            .take_while(|&child| self.start(child) < end)
            .map(|child| {
                let from = at.max(self.start(child));
                Run {
                    child,
                    at: from - self.start(child),
                    len: end.min(self.ends[child]) - from,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::map::Map;
    use super::*;

    proptest! {
        /// The model is the children laid out block by block.
        #[test]
        fn runs_and_pieces_are_the_children_in_a_row(
            lens in proptest::collection::vec(1u64..9, 1..7), at in 0u64..40, len in 1u64..40,
        ) {
            let sequence = Sequence::new(lens.iter().copied());
            let model: Vec<Place> = lens.iter().enumerate()
                .flat_map(|(child, &len)| (0..len).map(move |at| Place { child, at }))
                .collect();
            prop_assert_eq!(sequence.len_bytes() as usize, model.len());
            let at = at % model.len() as u64;
            let len = len.min(model.len() as u64 - at);
            let range = &model[at as usize..(at + len) as usize];
            prop_assert_eq!(sequence.place(at), range[0]);
            let runs = sequence.runs(at, len);
            let laid_out: Vec<Place> = runs.iter()
                .flat_map(|run| (0..run.len).map(|i| Place { child: run.child, at: run.at + i }))
                .collect();
            prop_assert_eq!(&laid_out[..], range);
            let map = Map::Sequence(sequence);
            let pieces: Vec<u64> = map.pieces(at, len as usize).map(|piece| piece as u64).collect();
            let lens: Vec<u64> = runs.iter().map(|run| run.len).collect();
            prop_assert_eq!(pieces, lens);
            prop_assert_eq!(map.single(at, len).is_some(), runs.len() == 1);
        }
    }
}
