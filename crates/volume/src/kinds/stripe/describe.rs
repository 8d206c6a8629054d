//! What the first block of a disk says of the stripe or concat that it belongs to.

use serde::Serialize;

use super::superblock::{Layout, Superblock, SuperblockRefusal};

/// A child of a stripe or concat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SetMember {
    /// `stripe` or `concat`.
    pub kind: &'static str,
    /// Its identity.
    pub volume: String,
    /// The place of this child, from 0.
    pub child: u32,
    /// How many there are.
    pub children: u32,
    /// Of a stripe: its unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit_bytes: Option<u32>,
    /// How much of the disk is used for data.
    pub data_bytes: u64,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
}

/// What a first block is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Described {
    /// A superblock.
    Member(SetMember),
    /// A superblock that this release cannot read, and why.
    Unreadable(String),
    /// Something else.
    Other,
}

/// Describes the first block of a disk.
pub(crate) fn describe(block: &[u8]) -> Described {
    let superblock = match Superblock::decode(block) {
        Ok(superblock) => superblock,
        Err(
            SuperblockRefusal::Blank
            | SuperblockRefusal::Foreign
            | SuperblockRefusal::OtherKind(..),
        ) => {
            return Described::Other;
        }
        Err(unreadable) => return Described::Unreadable(unreadable.to_string()),
    };
    Described::Member(SetMember {
        kind: superblock.layout.name(),
        volume: superblock.volume.to_string(),
        child: superblock.child_index,
        children: superblock.child_count,
        unit_bytes: match superblock.layout {
            Layout::Stripe { unit_bytes } => Some(unit_bytes),
            Layout::Concat => None,
        },
        data_bytes: superblock.usable_bytes,
        created_unix_s: superblock.created_unix_s,
    })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::kinds::stripe::superblock::SUPERBLOCK_BYTES;

    #[test]
    fn a_child_says_which_one_it_is_of_what() {
        let superblock = Superblock {
            volume: Uuid::from_u128(9),
            child_index: 1,
            child_count: 2,
            layout: Layout::Stripe {
                unit_bytes: 64 << 10,
            },
            usable_bytes: 32 << 20,
            created_unix_s: 5,
        };
        let Described::Member(member) = describe(&superblock.encode()) else {
            panic!("it is a child");
        };
        assert_eq!(
            (member.kind, member.child, member.children),
            ("stripe", 1, 2)
        );
        assert_eq!(
            (member.unit_bytes, member.data_bytes),
            (Some(64 << 10), 32 << 20)
        );
        assert_eq!(describe(&vec![0; SUPERBLOCK_BYTES]), Described::Other);
        let mut damaged = superblock.encode();
        damaged[100] ^= 1;
        assert!(matches!(describe(&damaged), Described::Unreadable(_)));
    }
}
