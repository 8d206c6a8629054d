//! What lies at the end of each copy, behind the data: so that a disk in use becomes a copy in place, and one copy
//! alone is readable by anything else. From the end backwards, in blocks of 4 KiB:
//!
//! ```text
//!  data │ … zero … │ bitmap ×4 │ kept ×2 │ floor ×2 │ header │
//!       └────────────────── METADATA_BYTES ────────────────────┘
//! ```
//!
//! A disk that becomes longer keeps all of it where it is, and has a [`Signpost`] in its last block, where otherwise the header
//! would be.
//!
//! The [`Header`] changes only when the mirror is given another length. The [`Floor`] is written by whoever serves the copy, the rest by the mirror's owner. What
//! changes as a whole has two slots that are written in turn ([`newest`]), so that a torn write leaves the older one.
//! A block of the bitmap has one; if it is torn, all of it counts as marked.

use uuid::Uuid;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use crate::{
    block::{Format, Unreadable},
    copy_set::{COPIES_MAX, CopyId},
    key::FenceKey,
    planted::{Bug, is_planted},
    register::{Record, RegisterRefusal, Stored},
};

/// Bytes at the end of each copy that hold no data.
pub const METADATA_BYTES: u64 = 1 << 20;
/// The length of each block in bytes: no disk's block is larger.
pub const BLOCK_BYTES: usize = 4096;
/// How many blocks the bitmap has.
pub const BITMAP_BLOCKS: usize = 4;
/// How many regions one of them marks.
pub const REGIONS_PER_BLOCK: usize = 4096;
/// The smallest region in bytes.
const REGION_BYTES_MIN: u64 = 64 << 10;

/// A block of a copy's metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetadataBlock {
    /// The [`Header`].
    Header,
    /// A slot, 0 or 1, of the [`Floor`].
    Floor(usize),
    /// A slot, 0 or 1, of [`CopyState`].
    Kept(usize),
    /// A block of the bitmap.
    Bitmap(usize),
}

impl MetadataBlock {
    /// Where it begins on a copy of `copy_bytes`, metadata included, in bytes.
    pub fn at(self, copy_bytes: u64) -> u64 {
        let from_the_end = match self {
            MetadataBlock::Header => 0,
            MetadataBlock::Floor(slot) => 1 + slot,
            MetadataBlock::Kept(slot) => 3 + slot,
            MetadataBlock::Bitmap(block) => 5 + block,
        };
        copy_bytes - (from_the_end as u64 + 1) * BLOCK_BYTES as u64
    }
}

const fn format(kind: [u8; 8]) -> Format {
    Format {
        kind,
        version: 1,
        len_bytes: BLOCK_BYTES,
    }
}
const HEADER: Format = format(*b"MIRRORHD");
const SIGNPOST: Format = format(*b"MIRRORSP");
const FLOOR: Format = format(*b"MIRRORFL");
const KEPT: Format = format(*b"MIRRORKP");
const BITMAP: Format = format(*b"MIRRORBM");

/// Which copy of which mirror this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The mirror.
    pub mirror: Uuid,
    /// The copy's place in it.
    pub copy: CopyId,
    /// The length of the data, from the copy's first byte.
    pub data_bytes: u64,
    /// The length of the region that a bit of the bitmap stands for: a power of two.
    pub region_bytes: u64,
    /// The length of the blocks in which it is used: a power of two, and no copy's own are longer.
    pub block_bytes: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct StoredHeader {
    mirror: [u8; 16],
    data_bytes: U64,
    region_bytes: U64,
    copy: U32,
    block_bytes: U32,
    /// Where this block ends on the copy. What a copy is made of, as the last disk of a stripe, has the same block, and is
    /// none: it lies elsewhere there.
    end_bytes: U64,
}

impl Header {
    /// The header of `copy` of a mirror with `data_bytes` of data in blocks of `block_bytes`. Regions are as small as the bitmap
    /// allows.
    pub fn new(mirror: Uuid, copy: CopyId, data_bytes: u64, block_bytes: u64) -> Header {
        let regions_max = (BITMAP_BLOCKS * REGIONS_PER_BLOCK) as u64;
        let region_bytes = data_bytes.div_ceil(regions_max).max(REGION_BYTES_MIN);
        Header {
            mirror,
            copy,
            data_bytes,
            region_bytes: region_bytes.next_power_of_two(),
            block_bytes,
        }
    }

    /// How many regions the data has.
    pub fn regions(&self) -> usize {
        self.data_bytes.div_ceil(self.region_bytes) as usize
    }

    /// The block of [`MetadataBlock::Header`], which ends at `end_bytes`.
    pub fn encode(&self, end_bytes: u64) -> Vec<u8> {
        HEADER.seal(&StoredHeader {
            mirror: *self.mirror.as_bytes(),
            data_bytes: self.data_bytes.into(),
            region_bytes: self.region_bytes.into(),
            copy: (self.copy.place() as u32).into(),
            block_bytes: (self.block_bytes as u32).into(),
            end_bytes: end_bytes.into(),
        })
    }

    /// The header in `block`, which ends at `end_bytes`.
    ///
    /// # Errors
    /// If there is none of what has this block there.
    pub fn decode(block: &[u8], end_bytes: u64) -> Result<Header, Unreadable> {
        let stored: StoredHeader = HEADER.open(block)?;
        let copy = stored.copy.get() as usize;
        let header = Header {
            mirror: Uuid::from_bytes(stored.mirror),
            copy: CopyId::new(copy.min(COPIES_MAX - 1)),
            data_bytes: stored.data_bytes.get(),
            region_bytes: stored.region_bytes.get(),
            block_bytes: stored.block_bytes.get().into(),
        };
        let Header {
            mirror,
            data_bytes,
            block_bytes,
            ..
        } = header;
        let is_ours = header == Header::new(mirror, header.copy, data_bytes, block_bytes);
        let has_blocks = block_bytes.is_power_of_two() && block_bytes <= BLOCK_BYTES as u64;
        let is_here = stored.end_bytes.get() == end_bytes;
        (is_ours && has_blocks && is_here && copy < COPIES_MAX)
            .then_some(header)
            .ok_or(Unreadable::Foreign)
    }
}

/// What the last block of a copy that has become longer says of the place where its metadata ends. Whoever serves the disk
/// writes it, before anybody learns of the new length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signpost {
    /// Where the block of the [`Header`] ends.
    pub end_bytes: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct StoredSignpost {
    end_bytes: U64,
}

impl Signpost {
    /// The block in the place of [`MetadataBlock::Header`].
    pub fn encode(self) -> Vec<u8> {
        SIGNPOST.seal(&StoredSignpost {
            end_bytes: self.end_bytes.into(),
        })
    }

    /// The signpost in `block`.
    ///
    /// # Errors
    /// If there is none.
    pub fn decode(block: &[u8]) -> Result<Signpost, Unreadable> {
        let stored: StoredSignpost = SIGNPOST.open(block)?;
        Ok(Signpost {
            end_bytes: stored.end_bytes.get(),
        })
    }
}

/// The highest key that the copy was ever fenced with. Whoever serves it keeps it, durably, before a registration is
/// answered, and serves, registers and resets nobody below it, whatever else it has lost (rule 4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Floor {
    /// `None` before the first fence.
    pub key: Option<FenceKey>,
}

impl Floor {
    /// Whether a nexus with `key` may register, reset, read and write.
    pub fn admits(&self, key: FenceKey) -> bool {
        self.key.is_none_or(|floor| key >= floor)
    }

    /// The floor once `key` has registered.
    pub fn raised_to(self, key: FenceKey) -> Floor {
        if is_planted(Bug::NoFloor) {
            return self;
        }
        Floor {
            key: self.key.max(Some(key)),
        }
    }

    /// The block that is written `sequence`th, to slot `sequence % 2` of [`MetadataBlock::Floor`].
    pub fn encode(&self, sequence: u64) -> Vec<u8> {
        FLOOR.seal(&StoredFloor {
            sequence: sequence.into(),
            key: self.key.map_or(0, FenceKey::raw).into(),
        })
    }

    /// The floor in `block`, and its sequence number.
    ///
    /// # Errors
    /// If there is none.
    pub fn decode(block: &[u8]) -> Result<(u64, Floor), Unreadable> {
        let stored: StoredFloor = FLOOR.open(block)?;
        let key = FenceKey::from_raw(stored.key.get());
        Ok((stored.sequence.get(), Floor { key }))
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct StoredFloor {
    sequence: U64,
    key: U64,
}

/// What the owner keeps on a copy beside the bitmap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CopyState {
    /// The newest record that was seen when this was written.
    pub record: Record,
    /// The record's `all_in_sync_since` when the copy was last in sync together with all others: while it is still the
    /// same, what the copy has missed is marked in the bitmaps of those in sync.
    pub in_sync_since: u64,
    /// The owner's last heartbeat on each copy, this one included, when this was written (rule 13).
    pub heartbeats: [u64; COPIES_MAX],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct StoredKept {
    sequence: U64,
    record: Stored,
    in_sync_since: U64,
    heartbeats: [U64; COPIES_MAX],
    end_bytes: U64,
}

impl CopyState {
    /// What a copy of a new mirror keeps: it is in sync if the record says so.
    pub fn first(record: Record) -> CopyState {
        CopyState {
            record,
            in_sync_since: record.all_in_sync_since,
            heartbeats: [0; COPIES_MAX],
        }
    }

    /// The block that is written `sequence`th, to slot `sequence % 2` of [`MetadataBlock::CopyState`], on a copy whose metadata ends
    /// at `end_bytes`.
    pub fn encode(&self, sequence: u64, end_bytes: u64) -> Vec<u8> {
        KEPT.seal(&StoredKept {
            sequence: sequence.into(),
            record: self.record.stored(),
            in_sync_since: self.in_sync_since.into(),
            heartbeats: self.heartbeats.map(U64::from),
            end_bytes: end_bytes.into(),
        })
    }

    /// What is kept in `block`, and its sequence number.
    ///
    /// # Errors
    /// If there is nothing, or a record that contradicts itself.
    pub fn decode(block: &[u8]) -> Result<(u64, CopyState), RegisterRefusal> {
        let stored: StoredKept = KEPT.open(block)?;
        let kept = CopyState {
            record: Record::from_stored(&stored.record)?,
            in_sync_since: stored.in_sync_since.get(),
            heartbeats: stored.heartbeats.map(U64::get),
        };
        Ok((stored.sequence.get(), kept))
    }

    /// Where the metadata of the copy ended as `block` was written, and its sequence number; `None`: it is none.
    pub fn end_of(block: &[u8]) -> Option<(u64, u64)> {
        let stored: StoredKept = KEPT.open(block).ok()?;
        Some((stored.sequence.get(), stored.end_bytes.get()))
    }
}

/// Of two slots that are written in turn, the newer one that is whole.
///
/// # Errors
/// If neither is: that of the first.
pub fn newest<T, E>(slots: [Result<(u64, T), E>; 2]) -> Result<(u64, T), E> {
    match slots {
        [Ok(a), Ok(b)] => Ok(if a.0 > b.0 { a } else { b }),
        [Ok(one), Err(_)] | [Err(_), Ok(one)] => Ok(one),
        [Err(why), Err(_)] => Err(why),
    }
}

/// The bits of one block of the bitmap, bit 0 of byte 0 for the first region.
pub type Bits = [u8; REGIONS_PER_BLOCK / 8];

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct StoredBits {
    bits: Bits,
}

/// The block of [`MetadataBlock::Bitmap`] with `bits`.
pub fn encode_bits(bits: &Bits) -> Vec<u8> {
    BITMAP.seal(&StoredBits { bits: *bits })
}

/// The bits in `block`; all are set if it is torn or holds anything else.
pub fn decode_bits(block: &[u8]) -> Bits {
    let stored = BITMAP.open(block);
    stored.map_or([0xFF; REGIONS_PER_BLOCK / 8], |stored: StoredBits| {
        stored.bits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record::first(Uuid::from_u128(7), 2, 11)
    }

    #[test]
    fn no_two_blocks_share_a_place() {
        let slots = (0..2).flat_map(|slot| [MetadataBlock::Floor(slot), MetadataBlock::Kept(slot)]);
        let blocks = slots.chain((0..BITMAP_BLOCKS).map(MetadataBlock::Bitmap));
        let mut at: Vec<u64> = blocks
            .chain([MetadataBlock::Header])
            .map(|place| place.at(1 << 30))
            .collect();
        at.sort_unstable();
        assert!(
            at.windows(2)
                .all(|pair| pair[1] - pair[0] == BLOCK_BYTES as u64),
            "{at:?}"
        );
        assert!(at[0] >= (1 << 30) - METADATA_BYTES);
        assert_eq!(at.last(), Some(&((1 << 30) - BLOCK_BYTES as u64)));
    }

    #[test]
    fn the_bitmap_covers_disks_of_any_length() {
        for data_bytes in [4096, 1 << 20, 1 << 30, (1 << 40) + 4096, 1 << 50] {
            let header = Header::new(Uuid::from_u128(7), CopyId::new(1), data_bytes, 512);
            assert!(
                header.regions() <= BITMAP_BLOCKS * REGIONS_PER_BLOCK,
                "{header:?}"
            );
            let end_bytes = data_bytes + METADATA_BYTES;
            let block = header.encode(end_bytes);
            assert_eq!(Header::decode(&block, end_bytes), Ok(header));
            let elsewhere = Header::decode(&block, end_bytes + 4096);
            assert_eq!(elsewhere, Err(Unreadable::Foreign));
        }
        let blank = Header::decode(&[0; BLOCK_BYTES], 4096);
        assert_eq!(blank, Err(Unreadable::Blank));
    }

    #[test]
    fn a_torn_slot_leaves_the_older_one() {
        let older = CopyState::first(record());
        let newer = CopyState {
            in_sync_since: 2,
            ..older
        };
        let (a, mut b) = (older.encode(6, 1 << 20), newer.encode(7, 1 << 20));
        let read = |a: &[u8], b: &[u8]| newest([CopyState::decode(a), CopyState::decode(b)]);
        assert_eq!(read(&a, &b), Ok((7, newer)));
        assert_eq!(read(&b, &a), Ok((7, newer)));
        b[512..].fill(0xEE);
        assert_eq!(read(&a, &b), Ok((6, older)));
        assert!(read(&b, &b).is_err());
    }

    #[test]
    fn a_floor_admits_nobody_below_it() {
        let [first, again, second] = [(1, 0), (1, 1), (2, 0)].map(|(e, n)| FenceKey::new(e, n));
        let floor = Floor::default();
        assert!(floor.admits(first));
        let floor = floor.raised_to(again);
        assert!(!floor.admits(first) && floor.admits(again) && floor.admits(second));
        assert_eq!(floor.raised_to(first), floor);
        assert_eq!(Floor::decode(&floor.encode(3)), Ok((3, floor)));
        let none = Floor::default();
        assert_eq!(Floor::decode(&none.encode(0)), Ok((0, none)));
    }

    #[test]
    fn a_signpost_is_no_header_and_a_header_no_signpost() {
        let signpost = Signpost { end_bytes: 3 << 20 };
        let block = signpost.encode();
        assert_eq!(Signpost::decode(&block), Ok(signpost));
        assert_eq!(Header::decode(&block, 2 << 20), Err(Unreadable::Foreign));
        let header = Header::new(Uuid::from_u128(7), CopyId::new(1), 1 << 20, 4096);
        let header = header.encode(2 << 20);
        assert_eq!(Signpost::decode(&header), Err(Unreadable::Foreign));
    }

    #[test]
    fn a_torn_block_of_the_bitmap_counts_as_all_marked() {
        let mut bits = [0; REGIONS_PER_BLOCK / 8];
        bits[3] = 0x40;
        let mut block = encode_bits(&bits);
        assert_eq!(decode_bits(&block), bits);
        block[2000] = 1;
        assert_eq!(decode_bits(&block), [0xFF; REGIONS_PER_BLOCK / 8]);
        assert_eq!(
            decode_bits(&[0; BLOCK_BYTES]),
            [0xFF; REGIONS_PER_BLOCK / 8]
        );
    }
}
