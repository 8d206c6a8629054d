//! A hash table keyed by block number. Every hit looks one up, so the hash is a single wide multiplication, which
//! spreads neighbouring blocks well.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// A map keyed by block number.
pub(super) type BlockMap<V> = HashMap<u64, V, BuildHasherDefault<BlockHasher>>;

/// Hashes one `u64`.
#[derive(Default)]
pub(super) struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn write_u64(&mut self, n: u64) {
        let product = u128::from(n ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
