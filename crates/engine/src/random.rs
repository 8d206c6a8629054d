//! Random numbers of two kinds. [`fill`] gives unpredictable bytes, for challenges and the like.
//! They come through the lane's reactor, so that a simulated world repeats them under the same
//! seed. [`SplitMix64`] is for sequences that must be the same on every machine and release, which
//! no general library promises.

use std::io;

use crate::{lane::with, reactor::Reactor};

/// Fills `bytes` with unpredictable data: from the kernel, or from the world's seed.
///
/// # Errors
/// If the kernel provides none.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    with(|lane| lane.reactor().random(bytes))
}

/// A seeded generator (splitmix64: Steele, Lea and Flood, OOPSLA 2014): one 64-bit counter.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that produces the same values for the same `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A uniform value in `0..bound`; 0 if `bound` is 0. The bias of the multiplication is below
    /// 2^-32 for bounds below 2^32.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A uniform value in `low..=high`.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as u64) as i64
    }

    /// A uniform value in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// True once in `n` on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::World;

    #[test]
    fn the_same_seed_gives_the_same_values_and_bounds_hold() {
        let (mut a, mut b) = (SplitMix64::new(7), SplitMix64::new(7));
        for _ in 0..1000 {
            assert_eq!(a.bits(), b.bits());
            assert!((-3..=5).contains(&a.between(-3, 5)));
            b.between(-3, 5);
            let unit = a.unit();
            assert!(unit > 0.0 && unit <= 1.0);
            b.unit();
        }
        assert_eq!(SplitMix64::new(1).below(0), 0);
    }

    #[test]
    fn a_world_gives_the_same_bytes_again_under_its_seed_alone() {
        let bytes = |seed| {
            let world = World::new(seed);
            let host = world.host("a");
            world.block_on(&host, async {
                let mut bytes = [[0; 16]; 2];
                bytes.iter_mut().for_each(|b| fill(b).expect("chance"));
                assert_ne!(bytes[0], bytes[1]);
                bytes
            })
        };
        assert_eq!(bytes(1), bytes(1));
        assert_ne!(bytes(1), bytes(2));
    }

    #[test]
    fn the_kernel_never_gives_the_same_bytes_again() {
        let lane = crate::Lane::new(&crate::LaneConfig::default()).expect("a ring");
        let bytes = || {
            lane.block_on(async {
                let mut bytes = [0; 16];
                fill(&mut bytes).expect("chance");
                bytes
            })
        };
        assert_ne!(bytes(), bytes());
    }
}
