//! The only source of randomness in a simulated world: xoshiro256** (Blackman and Vigna), seeded
//! through splitmix64. It is small enough to keep here, so its numbers never change.

use std::ops::Range;

use crate::random::SplitMix64;

/// A seeded stream of numbers; the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut words = SplitMix64::new(seed);
        Random(std::array::from_fn(|_| words.bits()))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let out = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        out
    }

    /// A number below `n` (0 when `n` is 0).
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `range` (its start if it is empty).
    pub fn within(&mut self, range: &Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// True with probability `p` (0.0 never, 1.0 always).
    pub fn chance(&mut self, p: f64) -> bool {
        ((self.bits() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// An index below `n`, which must be above zero.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }

    /// An independent stream, so that its use does not shift this one.
    #[must_use]
    pub fn fork(&mut self) -> Random {
        Random::new(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_repeat_with_the_seed_and_stay_within_their_bounds() {
        let mut one = Random::new(7);
        let mut same = Random::new(7);
        let mut other = Random::new(8);
        let first: Vec<u64> = (0..100).map(|_| one.bits()).collect();
        assert!(first.iter().all(|&bits| bits == same.bits()));
        assert!(first.iter().any(|&bits| bits != other.bits()));
        assert!((0..1000).all(|_| (5..9).contains(&one.within(&(5..9)))));
        let often = (0..10_000).filter(|_| one.chance(0.25)).count();
        assert!((2200..2800).contains(&often), "{often} of 10,000");
        assert!((0..100).all(|_| !one.chance(0.0) && one.chance(1.0)));
    }
}
