//! The superblock of a child of a stripe or concat: the first block of the child's reserved first MiB. It says which
//! volume the child belongs to, as which child, and how the data is laid out. The MiB's last block holds the owner's
//! mark (`claim`); the rest is zero and reserved for later versions. Data begins after the MiB.
//!
//! The block is wrapped in an [envelope](set::envelope).

use uuid::Uuid;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use set::envelope::{BLOCK_BYTES, Format, Unreadable};

/// Bytes at the start of each child that hold no data.
pub(super) const RESERVED_BYTES: u64 = 1 << 20;
/// Bytes of the superblock itself.
pub(super) const SUPERBLOCK_BYTES: usize = BLOCK_BYTES;
/// The version that this release writes and reads.
pub(super) const VERSION: u32 = 1;
/// The most children that a volume may have.
pub(super) const CHILDREN_MAX: usize = 256;
/// The smallest unit, in bytes: no block size is larger.
pub(super) const UNIT_BYTES_MIN: u32 = 4096;
/// The largest unit, in bytes: a whole unit must fit in one request.
pub(super) const UNIT_BYTES_MAX: u32 = 1 << 30;

/// The data length of a concat's child is a multiple of this, in bytes, so that what is aligned in the volume is also
/// aligned on the child.
pub(super) const GRAIN_BYTES: u64 = 64 << 10;

/// How data is laid out on the children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A stripe: the children take turns, unit by unit. The unit is a power of two and at least 4,096.
    Stripe {
        /// The unit in bytes.
        unit_bytes: u32,
    },
    /// A concat: one child after the other, each with its full length.
    Concat,
}

impl Layout {
    /// The name of the kind.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Layout::Stripe { .. } => "stripe",
            Layout::Concat => "concat",
        }
    }

    /// The unit of a child's data length, in bytes.
    pub(super) fn grain_bytes(&self) -> u64 {
        match self {
            Layout::Stripe { unit_bytes } => (*unit_bytes).into(),
            Layout::Concat => GRAIN_BYTES,
        }
    }

    fn format(&self) -> Format {
        match self {
            Layout::Stripe { .. } => STRIPE,
            Layout::Concat => CONCAT,
        }
    }
}

const STRIPE: Format = format(*b"stripe\0\0");
const CONCAT: Format = format(*b"concat\0\0");

const fn format(kind: [u8; 8]) -> Format {
    Format {
        kind,
        version: VERSION,
        covered_bytes: SUPERBLOCK_BYTES,
    }
}

/// The validated content of a child's superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    /// The identity of the stripe or concat.
    pub(super) volume: Uuid,
    pub(super) child_index: u32,
    pub(super) child_count: u32,
    pub(super) layout: Layout,
    /// Bytes of data: on each child of a stripe, on this child of a concat.
    pub(super) usable_bytes: u64,
    /// When the volume was created, in seconds since 1970.
    pub(super) created_unix_s: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct OnDisk {
    volume: [u8; 16],
    child_index: U32,
    child_count: U32,
    /// Zero for a concat.
    unit_bytes: U32,
    zero: U32,
    usable_bytes: U64,
    created_unix_s: U64,
}

/// Why a child's first block is not a superblock that this release can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SuperblockRefusal {
    #[error(
        "it is blank; to make it part of a new volume, run `sanstone volume create -c FILE NAME`, and \
         to add it to a concat `sanstone volume grow`, or `sanstone apply` while the concat is used; otherwise find the child \
         that belongs here"
    )]
    Blank,
    #[error(
        "it holds something other than a Sanstone superblock; find the child that belongs here. A new child of a concat is \
         blank: erase its first MiB. `sanstone volume create -c FILE NAME --force` makes all children anew, and their data is lost"
    )]
    Foreign,
    #[error(
        "it belongs to a Sanstone volume of kind {0:?}, not to a {1}; list it in the volume that \
         it belongs to"
    )]
    OtherKind(String, &'static str),
    #[error(
        "its superblock has version {0}, but this release supports version {VERSION}; use the \
         release that created it, or a newer one"
    )]
    OtherVersion(u32),
    #[error("its superblock is damaged ({0}); restore the child's first MiB from a copy")]
    Damaged(String),
}

impl Superblock {
    /// Encodes the block to write, [`SUPERBLOCK_BYTES`] long.
    pub(super) fn encode(&self) -> Vec<u8> {
        let unit_bytes = match self.layout {
            Layout::Stripe { unit_bytes } => unit_bytes,
            Layout::Concat => 0,
        };
        self.layout.format().seal(&OnDisk {
            volume: self.volume.into_bytes(),
            child_index: self.child_index.into(),
            child_count: self.child_count.into(),
            unit_bytes: unit_bytes.into(),
            zero: 0.into(),
            usable_bytes: self.usable_bytes.into(),
            created_unix_s: self.created_unix_s.into(),
        })
    }

    /// Decodes a child's first block; `block` has [`SUPERBLOCK_BYTES`].
    pub(super) fn decode(block: &[u8]) -> Result<Self, SuperblockRefusal> {
        let (on_disk, is_concat): (OnDisk, bool) = match STRIPE.open(block) {
            Err(Unreadable::OtherKind(_)) => (CONCAT.open(block)?, true),
            opened => (opened?, false),
        };
        let layout = match (is_concat, on_disk.unit_bytes.get()) {
            (false, unit_bytes) => Layout::Stripe { unit_bytes },
            (true, 0) => Layout::Concat,
            (true, unit) => {
                return Err(SuperblockRefusal::Damaged(format!(
                    "a concat with units of {unit}"
                )));
            }
        };
        let this = Superblock {
            volume: Uuid::from_bytes(on_disk.volume),
            child_index: on_disk.child_index.get(),
            child_count: on_disk.child_count.get(),
            layout,
            usable_bytes: on_disk.usable_bytes.get(),
            created_unix_s: on_disk.created_unix_s.get(),
        };
        this.check().map_err(SuperblockRefusal::Damaged)?;
        Ok(this)
    }

    fn check(&self) -> Result<(), String> {
        let Superblock {
            child_index: index,
            child_count: count,
            layout,
            usable_bytes: usable,
            ..
        } = self;
        if *count == 0 || *count as usize > CHILDREN_MAX || index >= count {
            return Err(format!("it says child {index} of {count}"));
        }
        if let Layout::Stripe { unit_bytes: unit } = layout {
            if !unit.is_power_of_two() || !(UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(unit) {
                return Err(format!("it says a unit of {unit} bytes"));
            }
        }
        let grain = layout.grain_bytes();
        let whole = *usable > 0 && usable % grain == 0;
        // The reserved MiB and the data, times the number of children, must be a valid file offset.
        let all = usable
            .checked_add(RESERVED_BYTES)
            .and_then(|len| len.checked_mul(u64::from(*count)));
        if !whole || all.is_none_or(|all| all > i64::MAX as u64) {
            return Err(format!(
                "it says {usable} bytes of data on a child in units of {grain}"
            ));
        }
        Ok(())
    }
}

impl From<Unreadable> for SuperblockRefusal {
    fn from(unreadable: Unreadable) -> SuperblockRefusal {
        match unreadable {
            Unreadable::Blank => SuperblockRefusal::Blank,
            Unreadable::Foreign => SuperblockRefusal::Foreign,
            Unreadable::OtherKind(kind) => SuperblockRefusal::OtherKind(kind, "stripe or concat"),
            Unreadable::OtherVersion(version) => SuperblockRefusal::OtherVersion(version),
            Unreadable::Damaged => {
                SuperblockRefusal::Damaged("its checksum does not match".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Superblock {
        Superblock {
            volume: Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
            child_index: 1,
            child_count: 2,
            layout: Layout::Stripe {
                unit_bytes: 64 << 10,
            },
            usable_bytes: 5 << 20,
            created_unix_s: 1_485_907_200,
        }
    }

    #[test]
    fn it_comes_back_and_lies_where_version_1_put_it() {
        let block = example().encode();
        assert_eq!(Superblock::decode(&block), Ok(example()));
        let version_1 = [
            &b"SANSTONEstripe\0\0"[..],
            &[1, 0, 0, 0],
            &0xa1f6_5e06_u32.to_le_bytes(), // checksum
            &0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes(),
            &[1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
            &(5_u64 << 20).to_le_bytes(),
            &1_485_907_200_u64.to_le_bytes(),
        ]
        .concat();
        let (written, rest) = block.split_at(version_1.len());
        assert_eq!(written, version_1);
        assert!(rest.iter().all(|&byte| byte == 0));
        assert_eq!(block.len(), SUPERBLOCK_BYTES);
    }

    #[test]
    fn that_of_a_concat_comes_back_and_is_no_stripes() {
        let concat = Superblock {
            layout: Layout::Concat,
            ..example()
        };
        let block = concat.encode();
        assert_eq!(Superblock::decode(&block), Ok(concat));
        assert_eq!(block[..16], *b"SANSTONEconcat\0\0");
        assert_eq!(block[48..52], [0; 4], "no unit");
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let block = example().encode();
        for bit in (0..128 * 8).chain([SUPERBLOCK_BYTES * 8 - 1]) {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let refused = Superblock::decode(&damaged).expect_err("a bit was flipped");
            match bit / 8 {
                0..8 => assert_eq!(refused, SuperblockRefusal::Foreign),
                8..16 => assert!(matches!(refused, SuperblockRefusal::OtherKind(..))),
                16..20 => assert!(matches!(refused, SuperblockRefusal::OtherVersion(_))),
                _ => assert!(matches!(refused, SuperblockRefusal::Damaged(_))),
            }
        }
        let blank = Superblock::decode(&[0; SUPERBLOCK_BYTES]);
        assert_eq!(blank, Err(SuperblockRefusal::Blank));
    }

    #[test]
    fn a_sound_checksum_does_not_excuse_nonsense() {
        let nonsense: [fn(&mut Superblock); 8] = [
            |s| s.child_count = 0,
            |s| s.child_index = 2,
            |s| s.layout = Layout::Stripe { unit_bytes: 12_288 },
            |s| s.layout = Layout::Stripe { unit_bytes: 512 },
            |s| s.usable_bytes = 1000,
            |s| (s.layout, s.usable_bytes) = (Layout::Concat, (1 << 20) + 4096),
            |s| s.usable_bytes = 1 << 63,
            |s| (s.child_index, s.child_count, s.usable_bytes) = (0, 1, u64::MAX - 65_535),
        ];
        for spoil in nonsense {
            let mut superblock = example();
            spoil(&mut superblock);
            let refused = Superblock::decode(&superblock.encode());
            assert!(
                matches!(refused, Err(SuperblockRefusal::Damaged(_))),
                "{superblock:?}"
            );
        }
    }
}
