//! A seeded random generator (splitmix64: Steele, Lea and Flood, OOPSLA 2014): the same seed makes
//! the same fleet on every machine and release, which no general library promises.

/// The generator: one 64-bit counter.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator which gives the same values for the same `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 uniform bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A uniform value in `0..bound`; 0 if `bound` is 0. The bias of the multiplication is below
    /// 2^-32 for the bounds used here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A uniform value in `low..=high`.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as u64) as i64
    }

    /// A uniform value in (0, 1].
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// True once in `n` on average.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_values_and_bounds_hold() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        for _ in 0..1000 {
            assert_eq!(a.bits(), b.bits());
            assert!((-3..=5).contains(&a.between(-3, 5)));
            b.between(-3, 5);
            let unit = a.unit();
            assert!(unit > 0.0 && unit <= 1.0);
            b.unit();
        }
        assert_eq!(Random::new(1).below(0), 0);
    }
}
