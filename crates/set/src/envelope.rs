//! The common header of our blocks on a disk: magic, kind, version and checksum. These have fixed positions in every
//! version of every kind, so that an older release can tell a newer format from damage. The rest of the block belongs
//! to the kind and is padded with zeroes. All numbers are little-endian.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The length of a block in bytes: no disk's block is larger.
pub const BLOCK_BYTES: usize = 4096;

const MAGIC: [u8; 8] = *b"SANSTONE";
const KIND_AT: usize = 8;
const VERSION_AT: usize = 16;
const CHECKSUM_AT: usize = 20;
const CONTENT_AT: usize = 24;

/// One kind of block, in one version.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Padded with zeroes.
    pub kind: [u8; 8],
    /// Its version.
    pub version: u32,
    /// The length of the prefix of the block that the checksum covers; the content lies within it.
    pub covered_bytes: usize,
}

/// Why this release cannot read a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// All zeroes.
    Blank,
    /// Not written by any release.
    Foreign,
    /// A block of this other kind.
    OtherKind(String),
    /// A block of this kind, in this other version.
    OtherVersion(u32),
    /// Its checksum does not match.
    Damaged,
}

impl Format {
    /// Encodes the block with `content`, [`BLOCK_BYTES`] long.
    ///
    /// # Panics
    /// When the content is longer than the covered prefix.
    pub fn seal(&self, content: &(impl IntoBytes + Immutable)) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        block.extend(MAGIC);
        block.extend(self.kind);
        block.extend(self.version.to_le_bytes());
        block.extend([0; CONTENT_AT - CHECKSUM_AT]);
        block.extend(content.as_bytes());
        assert!(block.len() <= self.covered_bytes, "what is not covered");
        block.resize(BLOCK_BYTES, 0);
        let checksum = self.checksum(&block);
        block[CHECKSUM_AT..CONTENT_AT].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// Validates `block` and returns its content.
    ///
    /// # Errors
    /// Why this release cannot read it.
    pub fn open<T: FromBytes>(&self, block: &[u8]) -> Result<T, Unreadable> {
        if block.iter().all(|&byte| byte == 0) {
            return Err(Unreadable::Blank);
        }
        if block.len() < self.covered_bytes || !block.starts_with(&MAGIC) {
            return Err(Unreadable::Foreign);
        }
        let kind = &block[KIND_AT..VERSION_AT];
        if kind != self.kind {
            let kind = String::from_utf8_lossy(kind);
            let kind = kind.trim_end_matches('\0').to_owned();
            return Err(Unreadable::OtherKind(kind));
        }
        let number = |at: usize| {
            let bytes = block[at..].first_chunk();
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let version = number(VERSION_AT);
        if version != self.version {
            return Err(Unreadable::OtherVersion(version));
        }
        if number(CHECKSUM_AT) != self.checksum(block) {
            return Err(Unreadable::Damaged);
        }
        match T::read_from_prefix(&block[CONTENT_AT..]) {
            Ok((content, _)) => Ok(content),
            Err(_) => Err(Unreadable::Foreign),
        }
    }

    /// CRC-32C of the covered prefix, with the checksum itself taken as zero.
    fn checksum(&self, block: &[u8]) -> u32 {
        let before = crc32c::crc32c(&block[..CHECKSUM_AT]);
        let zeroed = crc32c::crc32c_append(before, &[0; CONTENT_AT - CHECKSUM_AT]);
        crc32c::crc32c_append(zeroed, &block[CONTENT_AT..self.covered_bytes])
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{CHECKSUM_AT, CONTENT_AT, Format};

    /// Gives `block` the checksum that belongs to what it holds.
    pub(crate) fn reseal(format: &Format, block: &mut [u8]) {
        let checksum = format.checksum(block).to_le_bytes();
        block[CHECKSUM_AT..CONTENT_AT].copy_from_slice(&checksum);
    }
}
