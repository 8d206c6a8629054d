//! The size and capabilities of a logical unit. The caller derives them from the volume below. They are validated
//! once, so that the commands can rely on them.

use crate::medium::Extent;
use crate::sense::{Asc, Sense, SenseKey};

/// Size and capabilities of a logical unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskShape {
    /// Logical block size: 512 or 4096 bytes.
    pub block_size_bytes: u32,
    /// Physical block size in bytes: a power of two times the logical one. Writes should be aligned to it.
    pub physical_block_bytes: u32,
    /// Number of logical blocks, at least 1.
    pub len_blocks: u64,
    /// Whether acknowledged writes may be lost in a power cut until flushed (WCE). Derived from the volume;
    /// initiators cannot change it.
    pub write_cache: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether the volume below refuses writes, as far as is known. It is told to initiators, and leaves each write to the
    /// volume, which can find out whether that is still so.
    pub is_protected: bool,
    /// Whether this port only reads: what all ports of the disk share cannot be changed through it either (mode
    /// parameters, reservations, whether the medium is there).
    pub reads_only: bool,
    /// Whether initiators may eject and reload the medium.
    pub removable: bool,
    /// How the volume discards blocks; `None` if it is permanently fully provisioned.
    pub discard: Option<Discard>,
    /// Longest READ, WRITE or VERIFY in blocks, at least 1; longer ones are refused.
    pub transfer_blocks_max: u32,
    /// Transfer length that performs best, in blocks; 0 if unknown.
    pub transfer_blocks_optimal: u32,
    /// Granularity of efficient transfers, in blocks (a stripe unit, for example); 0 if unknown.
    pub transfer_blocks_granularity: u16,
    /// Longest COMPARE AND WRITE in blocks; 0 if it is not supported.
    pub compare_write_blocks_max: u8,
    /// Longest WRITE ATOMIC in blocks, at most `transfer_blocks_max`; 0 if it is not supported, because a power cut
    /// could tear a write.
    pub atomic_blocks_max: u32,
    /// The first block and the length of a WRITE ATOMIC must be multiples of this, in blocks, at least 1.
    pub atomic_blocks_unit: u32,
    /// Longest WRITE SAME in blocks, at least 1; longer ones are refused. (libiscsi's suite takes 65,536 or more to
    /// mean that a single WRITE of as many blocks is accepted.)
    pub write_same_blocks_max: u64,
}

/// For what would change a disk that, or whose port, is read-only.
pub(crate) const WRITE_PROTECTED: Sense = Sense::new(SenseKey::DataProtect, Asc::WRITE_PROTECTED);

/// How a volume discards (unmaps) blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Discard {
    /// Granularity of deallocation, in logical blocks, at least 1.
    pub granularity_blocks: u32,
    /// The first block aligned to the granularity; less than the granularity.
    pub alignment_blocks: u32,
    /// Whether discarded blocks are guaranteed to read as zeroes (LBPRZ).
    pub zeroes_after_discard: bool,
    /// Maximum number of blocks in one UNMAP command, at least 1. (libiscsi's suite considers more than 2^20
    /// excessive, except `u32::MAX`, which means no limit.)
    pub unmap_blocks_max: u32,
    /// Maximum number of ranges in one UNMAP command: 1 to 4095.
    pub unmap_ranges_max: u16,
}

/// A [`DiskShape`] that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskShapeError {
    /// Not a valid logical block size.
    #[error("a logical block of {0} bytes is not possible: use 512 or 4096")]
    BlockSize(u32),
    /// The physical block is not a power of two of logical blocks.
    #[error(
        "a physical block of {physical} bytes over logical blocks of {logical} is not possible: \
         use {logical} times a power of two up to 32768"
    )]
    PhysicalBlock {
        /// The physical block size asked for, in bytes.
        physical: u32,
        /// The logical block size, in bytes.
        logical: u32,
    },
    /// No blocks, or more than 2^63 bytes of them.
    #[error("a disk of {0} blocks is not possible: use at least one and at most 2^63 bytes")]
    Length(u64),
    /// A limit that allows nothing, or does not fit its field on the wire.
    #[error("{name} cannot be {value}: use {least} to {most}")]
    Limit {
        /// The field's name.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The least it may be.
        least: u64,
        /// The most it may be.
        most: u64,
    },
}

impl DiskShape {
    /// A fully provisioned disk: 4096-byte physical blocks, writes cached until flushed, transfers
    /// of up to 4 MiB, WRITE SAME of up to 16 MiB.
    pub fn new(block_size_bytes: u32, len_blocks: u64) -> DiskShape {
        let blocks_in = |bytes: u32| bytes / block_size_bytes.max(1);
        DiskShape {
            block_size_bytes,
            physical_block_bytes: 4096,
            len_blocks,
            write_cache: true,
            read_only: false,
            is_protected: false,
            reads_only: false,
            removable: false,
            discard: None,
            transfer_blocks_max: blocks_in(4 << 20),
            transfer_blocks_optimal: 0,
            transfer_blocks_granularity: 0,
            compare_write_blocks_max: 128,
            atomic_blocks_max: 0,
            atomic_blocks_unit: 1,
            write_same_blocks_max: u64::from(blocks_in(16 << 20)),
        }
    }

    /// Checks whether a disk can have this shape.
    ///
    /// # Errors
    /// The first [`DiskShapeError`] found.
    pub fn check(&self) -> Result<(), DiskShapeError> {
        let (logical, physical) = (self.block_size_bytes, self.physical_block_bytes);
        if logical != 512 && logical != 4096 {
            return Err(DiskShapeError::BlockSize(logical));
        }
        // The exponent field has four bits, and physical blocks above 16 MiB would be a mistake anyway.
        let ratio = physical / logical;
        if physical % logical != 0 || !ratio.is_power_of_two() || ratio > 1 << 15 {
            return Err(DiskShapeError::PhysicalBlock { physical, logical });
        }
        let len_blocks_max = (1 << 63) / u64::from(logical);
        if !(1..=len_blocks_max).contains(&self.len_blocks) {
            return Err(DiskShapeError::Length(self.len_blocks));
        }
        limit(
            "transfer_blocks_max",
            self.transfer_blocks_max.into(),
            1,
            u32::MAX.into(),
        )?;
        limit(
            "write_same_blocks_max",
            self.write_same_blocks_max,
            1,
            u64::MAX,
        )?;
        limit(
            "atomic_blocks_max",
            self.atomic_blocks_max.into(),
            0,
            self.transfer_blocks_max.into(),
        )?;
        limit(
            "atomic_blocks_unit",
            self.atomic_blocks_unit.into(),
            1,
            u32::MAX.into(),
        )?;
        if let Some(discard) = &self.discard {
            let granularity = u64::from(discard.granularity_blocks);
            limit("granularity_blocks", granularity, 1, u32::MAX.into())?;
            // The alignment field has 31 bits.
            let alignment_max = (granularity - 1).min((1 << 31) - 1);
            limit(
                "alignment_blocks",
                discard.alignment_blocks.into(),
                0,
                alignment_max,
            )?;
            limit(
                "unmap_blocks_max",
                discard.unmap_blocks_max.into(),
                1,
                u32::MAX.into(),
            )?;
            // UNMAP's parameter list holds at most 4095 descriptors.
            limit("unmap_ranges_max", discard.unmap_ranges_max.into(), 1, 4095)?;
        }
        Ok(())
    }

    /// log2 of the number of logical blocks per physical block.
    pub(crate) fn physical_block_exponent(&self) -> u8 {
        (self.physical_block_bytes / self.block_size_bytes).trailing_zeros() as u8
    }

    /// The extent of `blocks` from `lba`, if it exists. An LBA past the last block is out of range even for 0 blocks
    /// (libiscsi checks this).
    pub(crate) fn extent(&self, lba: u64, blocks: u64) -> Result<Extent, Sense> {
        if lba < self.len_blocks && blocks <= self.len_blocks - lba {
            Ok(Extent {
                lba,
                blocks,
                block_size_bytes: self.block_size_bytes,
            })
        } else {
            let sense = Sense::new(SenseKey::IllegalRequest, Asc::LBA_OUT_OF_RANGE);
            Err(sense.with_information(lba.max(self.len_blocks)))
        }
    }

    /// Like [`DiskShape::extent`], with 0 blocks meaning all that follow.
    pub(crate) fn extent_or_rest(&self, lba: u64, blocks: u64) -> Result<Extent, Sense> {
        match blocks {
            0 => self.extent(lba, self.len_blocks.saturating_sub(lba)),
            _ => self.extent(lba, blocks),
        }
    }

    /// Refuses what takes long and fails at last on a disk that takes no writes.
    pub(crate) fn check_all_writable(&self) -> Result<(), Sense> {
        match self.is_protected {
            true => Err(WRITE_PROTECTED),
            false => self.check_writable(),
        }
    }

    /// Refuses a write to a read-only disk.
    pub(crate) fn check_writable(&self) -> Result<(), Sense> {
        match self.read_only {
            true => Err(WRITE_PROTECTED),
            false => Ok(()),
        }
    }
}

fn limit(name: &'static str, value: u64, least: u64, most: u64) -> Result<(), DiskShapeError> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(DiskShapeError::Limit {
            name,
            value,
            least,
            most,
        })
    }
}

#[cfg(test)]
mod tests;
