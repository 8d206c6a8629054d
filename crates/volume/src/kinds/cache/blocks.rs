//! The cache's view of the address space: blocks of one size, each of up to 64 granules whose validity is tracked in
//! a bit mask. Pure arithmetic.

use std::ops::Range;

/// The block and granule sizes of a cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    shift: u32,
    granule_shift: u32,
}

impl Blocks {
    /// `block_bytes` is a power of two and at least the volume's block size.
    pub(super) fn new(block_bytes: u32, volume_block_bytes: u32) -> Self {
        let shift = block_bytes.trailing_zeros();
        Blocks {
            shift,
            granule_shift: volume_block_bytes
                .trailing_zeros()
                .max(shift.saturating_sub(6)),
        }
    }

    /// The size of a block, in bytes.
    pub(super) fn block_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// The end of the last whole block of a volume of `len_bytes`, in bytes.
    pub(super) fn whole(&self, len_bytes: u64) -> u64 {
        len_bytes >> self.shift << self.shift
    }

    /// The block of byte `at`.
    pub(super) fn of(&self, at: u64) -> u64 {
        at >> self.shift
    }

    /// The blocks that a range touches.
    pub(super) fn touched(&self, range: &Range<u64>) -> Range<u64> {
        self.of(range.start)..self.of(range.end - 1) + 1
    }

    /// The bytes of `blocks`.
    pub(super) fn bytes(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start << self.shift..blocks.end << self.shift
    }

    /// The part of `block` within a range that touches it, in bytes from the block's start.
    pub(super) fn within(&self, block: u64, range: &Range<u64>) -> Range<usize> {
        let start = block << self.shift;
        let from = range.start.saturating_sub(start) as usize;
        from..(range.end - start).min(self.block_bytes()) as usize
    }

    /// The granules that a part of a block touches, all of which a read needs.
    pub(super) fn needed(&self, part: &Range<usize>) -> u64 {
        mask(part.start >> self.granule_shift..((part.end - 1) >> self.granule_shift) + 1)
    }

    /// The granules that a part of a block covers completely, which a write makes valid.
    pub(super) fn covered(&self, part: &Range<usize>) -> u64 {
        mask(part.start.div_ceil(1 << self.granule_shift)..part.end >> self.granule_shift)
    }

    /// All granules of a block.
    pub(super) fn all(&self) -> u64 {
        self.covered(&(0..1 << self.shift))
    }
}

fn mask(granules: Range<usize>) -> u64 {
    let below = |n: usize| 1u64.checked_shl(n as u32).map_or(!0, |bit| bit - 1);
    below(granules.end) & !below(granules.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blocks_have_up_to_64_granules_of_at_least_a_block_of_the_volume() {
        let blocks = Blocks::new(16 << 10, 512);
        assert_eq!(blocks.bytes(&(1..3)), 16 << 10..48 << 10);
        assert_eq!(blocks.all(), (1 << 32) - 1);
        assert_eq!(blocks.whole((32 << 10) + 512), 32 << 10);
        let large = Blocks::new(64 << 10, 512);
        assert_eq!(large.all(), !0, "granules of 1 KiB");
        assert_eq!(large.covered(&(1024..2048)), 0b10);
        assert_eq!(large.covered(&(512..1536)), 0, "only halves of granules");
        assert_eq!(large.needed(&(512..1536)), 0b11);
    }

    proptest! {
        #[test]
        fn what_is_covered_is_needed_and_parts_make_up_the_range(
            at in 0u64..1000, len in 1u64..1000, shift in 12u32..18,
        ) {
            let blocks = Blocks::new(1 << shift, 512);
            let range = at * 512..(at + len) * 512;
            let mut next = range.start;
            for block in blocks.touched(&range) {
                let part = blocks.within(block, &range);
                let start = block << shift;
                prop_assert_eq!(start + part.start as u64, next);
                next = start + part.end as u64;
                let (covered, needed) = (blocks.covered(&part), blocks.needed(&part));
                prop_assert_eq!(covered & !needed, 0);
                prop_assert_eq!(needed & !blocks.all(), 0);
                if part.len() == 1 << shift {
                    prop_assert_eq!(covered, blocks.all());
                }
            }
            prop_assert_eq!(next, range.end);
        }
    }
}
