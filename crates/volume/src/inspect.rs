//! What a disk is, told from its first and its last MiB: whether it belongs to a stripe, concat or mirror or is a register, who owns
//! that, and what others have put on it. Nothing is claimed, locked or written.

use std::path::Path;

use engine::LaneHandle;
use mirror::{
    Unreadable,
    copy::{Header, METADATA_BYTES, MetadataBlock},
    register::Record,
};
use serde::Serialize;
use set::{FoundLabel, LABEL_AT, LABEL_BYTES, Label, envelope::BLOCK_BYTES};

use crate::{
    Error, ErrorKind, Result,
    config::Volumes,
    graph::Graph,
    kinds::{
        mirror::records,
        stripe::{Described, describe},
    },
};

pub use crate::kinds::stripe::SetMember;

/// How much of each end is looked at, in bytes: where our labels are.
pub const END_BYTES: u64 = 1 << 20;
const _: () = assert!(METADATA_BYTES == END_BYTES && LABEL_AT < END_BYTES);

/// The ends of a disk.
#[derive(Clone, Debug)]
pub struct DiskEnds {
    /// The length of the disk, in bytes.
    pub len_bytes: u64,
    /// The first [`END_BYTES`], or all of a shorter disk.
    pub start: Vec<u8>,
    /// The last [`END_BYTES`], or all of a shorter disk.
    pub end: Vec<u8>,
}

/// What a disk is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// The length of the disk, in bytes.
    pub len_bytes: u64,
    /// Whether its first MiB is all zeroes.
    pub is_blank: bool,
    /// The stripe or concat that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<SetMember>,
    /// Who owns that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<SetOwner>,
    /// The mirror that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<CopyOfMirror>,
    /// The mirrors whose register is on it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub registered: Vec<RegisteredMirror>,
    /// What others have put on it, such as `ext4`, if it is known here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'static str>,
    /// Labels of ours that cannot be read, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
}

/// What a member says of its set's owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SetOwner {
    /// The owner's identity; absent: it was released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What the owner is, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Since when, in seconds since 1970 by its clock.
    pub since_unix_s: u64,
    /// The last claim that took this member.
    pub generation: u64,
}

/// A copy of a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyOfMirror {
    /// The identity of the mirror.
    pub mirror: String,
    /// The place of this copy, from 0.
    pub copy: usize,
    /// The length of the data.
    pub data_bytes: u64,
}

/// What a register says of one mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RegisteredMirror {
    /// The identity of the mirror.
    pub mirror: String,
    /// Raised by one with each claim.
    pub epoch: u64,
    /// The node that owns it; absent: none has claimed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl RegisteredMirror {
    fn of(record: &Record) -> RegisteredMirror {
        RegisteredMirror {
            mirror: record.mirror.to_string(),
            epoch: record.epoch,
            owner: (!record.owner.is_nil()).then(|| record.owner.to_string()),
        }
    }
}

/// What the disk with these ends is.
pub fn inspect(ends: &DiskEnds) -> Inspection {
    let mut unreadable = Vec::new();
    let set = match ends.start.get(..BLOCK_BYTES).map(describe) {
        Some(Described::Member(member)) => Some(member),
        Some(Described::Unreadable(why)) => {
            unreadable.push(why);
            None
        }
        Some(Described::Other) | None => None,
    };
    let label = ends
        .start
        .get(LABEL_AT as usize..LABEL_AT as usize + LABEL_BYTES);
    let owner = match label.map(Label::decode) {
        Some(FoundLabel::Label(label)) => Some(owner_of(&label)),
        Some(FoundLabel::Unreadable(why)) => {
            unreadable.push(why);
            None
        }
        _ => None,
    };
    let mirror = match header_of(ends) {
        Some(Ok(header)) => Some(CopyOfMirror {
            mirror: header.mirror.to_string(),
            copy: header.copy.place(),
            data_bytes: header.data_bytes,
        }),
        Some(Err(why @ (Unreadable::Damaged | Unreadable::Version(_)))) => {
            unreadable.push(format!("its last block: {why}"));
            None
        }
        _ => None,
    };
    Inspection {
        len_bytes: ends.len_bytes,
        is_blank: ends.start.iter().all(|byte| *byte == 0),
        content: match set {
            // What is there is a part of something.
            Some(_) => None,
            None => content(&ends.start),
        },
        set,
        owner,
        mirror,
        registered: records(&ends.start)
            .iter()
            .map(RegisteredMirror::of)
            .collect(),
        unreadable,
    }
}

fn owner_of(label: &Label) -> SetOwner {
    SetOwner {
        owner: (!label.is_released()).then(|| label.owner.to_string()),
        name: label.name.clone(),
        since_unix_s: label.since_unix_s,
        generation: label.generation.claimed,
    }
}

fn header_of(ends: &DiskEnds) -> Option<std::result::Result<Header, Unreadable>> {
    // A disk without room for the metadata is no copy.
    let end_at = ends.len_bytes.checked_sub(METADATA_BYTES)?;
    let at = (MetadataBlock::Header.at(ends.len_bytes) - end_at) as usize;
    let block = ends.end.get(at..at + mirror::copy::BLOCK_BYTES)?;
    Some(Header::decode(block, ends.len_bytes))
}

/// What others have put on a disk that begins like this, by the magic numbers of their formats.
fn content(start: &[u8]) -> Option<&'static str> {
    let has = |at: usize, magic: &[u8]| start.get(at..at + magic.len()) == Some(magic);
    /// `INCOMPAT_EXTENTS` of an ext superblock: ext4 makes it, its predecessors do not know it.
    const EXTENTS: u8 = 0x40;
    let known: [(usize, &[u8], &'static str); 10] = [
        (0, b"XFSB", "xfs"),
        (0, b"LUKS\xba\xbe", "LUKS"),
        (0x1_0040, b"_BHRfS_M", "btrfs"),
        (512, b"LABELONE", "LVM"),
        (512, b"EFI PART", "a partition table (GPT)"),
        (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of an md array"),
        (4086, b"SWAPSPACE2", "swap space"),
        (3, b"NTFS    ", "ntfs"),
        (82, b"FAT32   ", "vfat"),
        (510, &[0x55, 0xaa], "a partition table (MBR)"),
    ];
    if has(0x438, &[0x53, 0xef]) {
        let has_extents = start.get(0x460).is_some_and(|bits| bits & EXTENTS != 0);
        return Some(if has_extents { "ext4" } else { "ext2 or ext3" });
    }
    known
        .iter()
        .find(|(at, magic, _)| has(*at, magic))
        .map(|(.., name)| *name)
}

/// The ends of the disk at `url`, and the length of its blocks in bytes. `settings` are more of an `iscsi` volume, each
/// preceded by a comma. `lane` is the current one.
///
/// # Errors
/// What is wrong with the settings, or why it cannot be read.
pub async fn remote_ends(url: &str, settings: &str, lane: &LaneHandle) -> Result<(DiskEnds, u32)> {
    let wrong =
        |error: &dyn std::fmt::Display| Error::new(ErrorKind::Configuration, error.to_string());
    let text = format!(
        "disk.iscsi = {{ url = {}{settings} }}",
        toml::Value::from(url)
    );
    let volumes: Volumes = toml::from_str(&text).map_err(|error| wrong(&error.message()))?;
    let mut graph = Graph::new(volumes, Path::new("")).map_err(|error| wrong(&error.message()))?;
    let read = read_ends(&mut graph, lane).await;
    graph.close().await;
    read
}

async fn read_ends(graph: &mut Graph, lane: &LaneHandle) -> Result<(DiskEnds, u32)> {
    let opened = graph.open("disk", lane).await;
    let tree = opened.map_err(|error| Error::new(ErrorKind::Unreachable, error.message()))?;
    let volume = tree.on_lane().await?;
    let len_bytes = volume.shape().len_bytes();
    let len = len_bytes.min(END_BYTES);
    let start = volume.read(0, len as usize).await?.to_vec();
    let end = volume.read(len_bytes - len, len as usize).await?.to_vec();
    let ends = DiskEnds {
        len_bytes,
        start,
        end,
    };
    Ok((ends, volume.shape().block_size_bytes))
}

#[cfg(test)]
mod tests {
    use mirror::CopyId;
    use set::Generation;
    use uuid::Uuid;

    use super::*;

    const LEN: u64 = 64 << 20;

    fn blank() -> DiskEnds {
        DiskEnds {
            len_bytes: LEN,
            start: vec![0; END_BYTES as usize],
            end: vec![0; END_BYTES as usize],
        }
    }

    #[test]
    fn what_is_on_a_disk_is_told() {
        let found = inspect(&blank());
        assert!(found.is_blank && found.set.is_none() && found.content.is_none());
        for (at, magic, name) in [
            (0, &b"XFSB"[..], "xfs"),
            (0x438, &[0x53, 0xef], "ext2 or ext3"),
            (510, &[0x55, 0xaa], "a partition table (MBR)"),
        ] {
            let mut ends = blank();
            ends.start[at..at + magic.len()].copy_from_slice(magic);
            let found = inspect(&ends);
            assert_eq!((found.content, found.is_blank), (Some(name), false));
        }
    }

    #[test]
    fn a_disk_of_any_length_is_told() {
        for len in [
            0,
            1,
            511,
            4095,
            4096,
            32767,
            32768,
            END_BYTES - 1,
            END_BYTES,
        ] {
            let found = inspect(&DiskEnds {
                len_bytes: len,
                start: vec![0; len as usize],
                end: vec![0; len as usize],
            });
            assert!(found.is_blank && found.mirror.is_none(), "{len}: {found:?}");
        }
    }

    #[test]
    fn a_register_says_whose_it_is() {
        let mut record = Record::first(Uuid::from_u128(7), 2, 1);
        record.owner = Uuid::from_u128(9);
        let mut ends = blank();
        let block = record.encode();
        ends.start[8192..8192 + block.len()].copy_from_slice(&block);
        let [found] = &inspect(&ends).registered[..] else {
            panic!("one mirror is registered there");
        };
        assert_eq!(found.mirror, Uuid::from_u128(7).to_string());
        assert_eq!(found.owner, Some(Uuid::from_u128(9).to_string()));
    }

    #[test]
    fn a_copy_of_a_mirror_says_which() {
        let mut ends = blank();
        let header = Header::new(
            Uuid::from_u128(7),
            CopyId::new(1),
            LEN - METADATA_BYTES,
            512,
        );
        let at = (MetadataBlock::Header.at(LEN) - (LEN - END_BYTES)) as usize;
        let block = header.encode(LEN);
        ends.end[at..at + block.len()].copy_from_slice(&block);
        let found = inspect(&ends).mirror.expect("it is a copy");
        let expected = (Uuid::from_u128(7).to_string(), 1, LEN - METADATA_BYTES);
        assert_eq!((found.mirror, found.copy, found.data_bytes), expected);
    }

    #[test]
    fn a_released_member_has_no_owner() {
        let mut ends = blank();
        let generation = Generation {
            claimed: 3,
            complete: 3,
        };
        let block = Label::released(generation).encode();
        ends.start[LABEL_AT as usize..].copy_from_slice(&block);
        let owner = inspect(&ends).owner.expect("there is a label");
        assert_eq!((owner.owner, owner.generation), (None, 3));
    }
}
