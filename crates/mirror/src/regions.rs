//! Sets of regions, as the bitmap marks them.

use crate::copy::REGIONS_PER_BLOCK;

pub(crate) const WORDS_PER_BLOCK: usize = REGIONS_PER_BLOCK / 64;

/// Regions as bits, bit 0 of word 0 for the first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Regions(pub Vec<u64>);

impl Regions {
    /// None of `regions`.
    pub fn none(regions: usize) -> Regions {
        Regions(vec![0; regions.div_ceil(64)])
    }

    /// Whether `region` is among them.
    pub fn contains(&self, region: usize) -> bool {
        self.0[region / 64] & (1 << (region % 64)) != 0
    }

    /// Adds or takes out `region`.
    pub fn set(&mut self, region: usize, is_in: bool) {
        let bit = 1 << (region % 64);
        if is_in {
            self.0[region / 64] |= bit;
        } else {
            self.0[region / 64] &= !bit;
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len() * 64).filter(|region| self.contains(*region))
    }

    pub(crate) fn union(&mut self, other: &Regions) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word |= other;
        }
    }

    /// The words of one block of the bitmap.
    pub(crate) fn block(&self, block: usize) -> &[u64] {
        let end = self.0.len().min((block + 1) * WORDS_PER_BLOCK);
        &self.0[block * WORDS_PER_BLOCK..end]
    }
}
