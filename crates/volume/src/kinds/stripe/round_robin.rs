//! The address arithmetic of a stripe, whose units go to its children round-robin. Unit `u` lies on
//! child `u mod n`, at unit `u div n` of its data. Pure arithmetic.
//!
//! Consecutive units of one child are `n` apart in the volume and adjacent on the child, so the part of any range
//! that lies on one child is one contiguous run: one request per child.

use super::place::{PerChild, Place, Run};

/// The arithmetic of one stripe. Child offsets count from the start of the child's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoundRobin {
    unit_shift: u32,
    children: u64,
}

impl RoundRobin {
    /// `unit_bytes` is a power of two, `children` above zero.
    pub(super) fn new(unit_bytes: u32, children: usize) -> Self {
        assert!(
            unit_bytes.is_power_of_two() && children > 0,
            "a stripe of {children} children with units of {unit_bytes} bytes"
        );
        RoundRobin {
            unit_shift: unit_bytes.trailing_zeros(),
            children: children as u64,
        }
    }

    /// Where byte `at` of the volume lies.
    pub(super) fn place(&self, at: u64) -> Place {
        let unit = at >> self.unit_shift;
        let within = at & ((1 << self.unit_shift) - 1);
        Place {
            child: (unit % self.children) as usize,
            at: ((unit / self.children) << self.unit_shift) + within,
        }
    }

    /// The length of a unit.
    pub(super) fn unit_bytes(&self) -> u64 {
        1 << self.unit_shift
    }

    /// How many bytes from byte `at` on are contiguous on one child.
    pub(super) fn reach(&self, at: u64) -> u64 {
        let unit = self.unit_bytes();
        unit - (at & (unit - 1))
    }

    /// The runs of a non-empty range, in the order in which the volume first touches them. The range's
    /// [pieces](super::map::Map::pieces) rotate through them.
    pub(super) fn runs(&self, at: u64, len: u64) -> PerChild<Run> {
        let end = at + len;
        let first = at >> self.unit_shift;
        let last = (end - 1) >> self.unit_shift;
        (first..=last)
            .take(self.children as usize)
            .map(|unit| {
                let from = self.place(at.max(unit << self.unit_shift));
                let last_here = unit + (last - unit) / self.children * self.children;
                let to = end.min((last_here + 1) << self.unit_shift);
                Run {
                    child: from.child,
                    at: from.at,
                    len: self.place(to - 1).at + 1 - from.at,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::map::Map;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The inverse of `place`, derived independently.
    fn volume_offset(unit_bytes: u64, children: u64, place: Place) -> u64 {
        let row = place.at / unit_bytes;
        (row * children + place.child as u64) * unit_bytes + place.at % unit_bytes
    }

    proptest! {
        #[test]
        fn every_byte_has_one_place_and_comes_back(
            shift in 12u32..23, children in 1usize..9, at in 0u64..1 << 50,
        ) {
            let map = RoundRobin::new(1 << shift, children);
            let place = map.place(at);
            prop_assert!(place.child < children);
            prop_assert_eq!(volume_offset(1 << shift, children as u64, place), at);
        }

        #[test]
        fn whole_stripes_fill_whole_children(children in 1usize..9, rows in 1u64..20) {
            let map = RoundRobin::new(4096, children);
            let places: BTreeSet<(usize, u64)> = (0..rows * children as u64)
                .map(|unit| map.place(unit * 4096))
                .map(|place| (place.child, place.at))
                .collect();
            let expected: BTreeSet<(usize, u64)> = (0..children)
                .flat_map(|child| (0..rows).map(move |row| (child, row * 4096)))
                .collect();
            prop_assert_eq!(places, expected);
        }

        #[test]
        fn runs_cover_the_range_exactly_and_pieces_take_turns_among_them(
            children in 1usize..9, at in 0u64..200, len in 1u64..300,
        ) {
            // In blocks of 512 bytes over units of 4096: all bytes of a block lie on the same child.
            let (at, len) = (at * 512, len * 512);
            let map = Map::RoundRobin(RoundRobin::new(4096, children));
            let runs = map.runs(at, len);
            let on_children: BTreeSet<usize> = runs.iter().map(|run| run.child).collect();
            prop_assert_eq!(on_children.len(), runs.len(), "one run a child");
            prop_assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), len);
            prop_assert_eq!(map.pieces(at, len as usize).sum::<usize>() as u64, len);
            let mut next: Vec<u64> = runs.iter().map(|run| run.at).collect();
            let mut volume_at = at;
            for (i, piece) in map.pieces(at, len as usize).enumerate() {
                let turn = i % runs.len();
                let place = Place { child: runs[turn].child, at: next[turn] };
                prop_assert_eq!(map.place(volume_at), place);
                prop_assert_eq!(map.place(volume_at + piece as u64 - 1).child, place.child);
                next[turn] += piece as u64;
                volume_at += piece as u64;
            }
            for (run, next) in runs.iter().zip(next) {
                prop_assert_eq!(run.at + run.len, next);
            }
            prop_assert_eq!(map.single(at, len).is_some(), map.pieces(at, len as usize).count() == 1);
        }
    }

    #[test]
    fn a_mebibyte_over_two_children_is_two_runs_of_half() {
        let runs = RoundRobin::new(64 << 10, 2).runs(3 << 20, 1 << 20);
        let expected = [0, 1].map(|child| Run {
            child,
            at: 3 << 19,
            len: 512 << 10,
        });
        assert_eq!(runs[..], expected);
    }
}
