//! What a disk reported when it was opened.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{
    identity::DiskIdentity,
    machine::{Geometry, Mode},
};
use crate::{Durability, Shape};

/// What a disk reported when it was opened.
pub(super) struct DiskFacts {
    pub(super) shape: Shape,
    pub(super) identity: DiskIdentity,
    pub(super) transfer_max_bytes: usize,
    /// The longest UNMAP; 0: not supported.
    pub(super) unmap_max_blocks: u64,
    /// The longest WRITE SAME; 0: not supported.
    pub(super) write_same_max_blocks: u64,
    /// WRITE with FUA is durable when it is done (DPOFUA). It may change, and every lane has to know.
    pub(super) takes_fua: AtomicBool,
    /// Unmapped blocks read as zeroes (LBPRZ), so WRITE SAME of zeroes may unmap.
    pub(super) unmapped_reads_zeroes: bool,
}

impl DiskFacts {
    /// The geometry at the start.
    pub(super) fn geometry(&self) -> Geometry {
        Geometry {
            block_size_bytes: self.shape.block_size_bytes,
            len_bytes: self.shape.len_bytes(),
        }
    }

    /// What its mode parameters say, as they were last followed.
    pub(super) fn mode(&self) -> Mode {
        Mode {
            is_volatile: self.shape.volatile_cache,
            is_protected: self.shape.read_only.is_on(),
            takes_fua: self.takes_fua.load(Relaxed),
        }
    }

    /// Whether a durable write needs a flush behind it: the disk has a volatile cache and does not take FUA.
    pub(super) fn flushes_for(&self, durability: Durability) -> bool {
        let is_lax = self.shape.volatile_cache && !self.takes_fua.load(Relaxed);
        is_lax && durability == Durability::Fua
    }

    /// Splits a transfer of `len` bytes into parts that one command can carry: offset and length.
    pub(super) fn parts(&self, len: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let longest = self.transfer_max_bytes;
        (0..len)
            .step_by(longest)
            .map(move |start| (start, longest.min(len - start)))
    }

    pub(super) fn blocks(&self, at: u64, len: u64) -> (u64, u32) {
        let block = u64::from(self.shape.block_size_bytes);
        (at / block, (len / block) as u32)
    }
}
