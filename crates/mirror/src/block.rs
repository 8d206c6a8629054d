//! The frame of everything that a mirror keeps on a disk: magic, kind, version and checksum, at the same places in every
//! kind and version, so that an older release can tell a newer format from damage. All numbers are little-endian.

use zerocopy::{FromBytes, Immutable, IntoBytes};

const MAGIC: [u8; 8] = *b"SANSTONE";
const KIND_AT: usize = 8;
const VERSION_AT: usize = 16;
const CHECKSUM_AT: usize = 20;
const CONTENT_AT: usize = 24;

/// One kind of block, in the version that this release writes and reads.
pub(crate) struct Format {
    /// Padded with zeroes.
    pub(crate) kind: [u8; 8],
    pub(crate) version: u32,
    pub(crate) len_bytes: usize,
}

/// Why a block says nothing to this release.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unreadable {
    /// All zeroes.
    #[error("it is blank")]
    Blank,
    /// Something else than a block of this kind.
    #[error("it holds something else")]
    Foreign,
    /// Of a version that this release does not know.
    #[error(
        "its format is version {0}, which this release does not know: use the release that wrote it, or a newer one"
    )]
    Version(u32),
    /// Its checksum does not match: it is torn or damaged.
    #[error("it is damaged: its checksum does not match")]
    Damaged,
}

impl Format {
    /// The block with `content`.
    pub(crate) fn seal(&self, content: &(impl IntoBytes + Immutable)) -> Vec<u8> {
        let mut block = Vec::with_capacity(self.len_bytes);
        block.extend(MAGIC);
        block.extend(self.kind);
        block.extend(self.version.to_le_bytes());
        block.extend([0; CONTENT_AT - CHECKSUM_AT]);
        block.extend(content.as_bytes());
        assert!(
            block.len() <= self.len_bytes,
            "a block has room for its content"
        );
        block.resize(self.len_bytes, 0);
        let checksum = checksum(&block);
        block[CHECKSUM_AT..CONTENT_AT].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// The content of `block`.
    pub(crate) fn open<T: FromBytes>(&self, block: &[u8]) -> Result<T, Unreadable> {
        let block = block.get(..self.len_bytes).ok_or(Unreadable::Foreign)?;
        if block.iter().all(|&byte| byte == 0) {
            return Err(Unreadable::Blank);
        }
        if !block.starts_with(&MAGIC) || block[KIND_AT..VERSION_AT] != self.kind {
            return Err(Unreadable::Foreign);
        }
        let number = |at: usize| {
            let bytes = block[at..].first_chunk();
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        // Another version may be summed otherwise.
        if number(VERSION_AT) != self.version {
            return Err(Unreadable::Version(number(VERSION_AT)));
        }
        if number(CHECKSUM_AT) != checksum(block) {
            return Err(Unreadable::Damaged);
        }
        let content = T::read_from_prefix(&block[CONTENT_AT..]);
        content
            .map(|(content, _)| content)
            .map_err(|_| Unreadable::Foreign)
    }
}

/// CRC-32C of the block, with the checksum itself taken as zero.
fn checksum(block: &[u8]) -> u32 {
    let before = crc32c::crc32c(&block[..CHECKSUM_AT]);
    let zeroed = crc32c::crc32c_append(before, &[0; CONTENT_AT - CHECKSUM_AT]);
    crc32c::crc32c_append(zeroed, &block[CONTENT_AT..])
}
