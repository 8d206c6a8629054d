//! The label of a member: the last block of a member's reserved MiB. It names the set's owner, and says in which
//! generation of the set the member was last claimed, so that an older copy of a member is told from the member. It
//! fits in one sector, so a power cut leaves the old label or the new one, but never a mixture.
//!
//! The block is wrapped in an [envelope](crate::envelope). It is read from a disk that anybody may have written, so
//! nothing in it is trusted beyond its format. Version 1, which has no generation, is still read.

use uuid::Uuid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian::U64};

use crate::envelope::{BLOCK_BYTES, Format, Unreadable};

/// The position of the label on a member, in bytes.
pub const LABEL_AT: u64 = (1 << 20) - LABEL_BYTES as u64;
/// The length that is read and written, in bytes: no block is larger.
pub const LABEL_BYTES: usize = BLOCK_BYTES;
/// The version that this release writes.
const VERSION: u32 = 2;
/// The smallest sector: the label fits in it, and the rest of its block is zero.
const SECTOR_BYTES: usize = 512;
/// The longest name of an owner, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// More claims than any set sees.
const CLAIMS_MAX: u64 = 1 << 48;

const FORMAT: Format = Format {
    kind: *b"claim\0\0\0",
    version: VERSION,
    covered_bytes: SECTOR_BYTES,
};

/// Without a generation.
const FORMAT_1: Format = Format {
    version: 1,
    ..FORMAT
};

/// How far a member has come with its set. Each claim of the set raises both, first one and then the other, on every
/// member, before any data is written under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generation {
    /// The last claim that took this member.
    pub claimed: u64,
    /// The last claim of which this member knows that it took every member.
    pub complete: u64,
}

impl Generation {
    /// That of every member once `claim` has taken them all.
    pub(crate) fn completed(claim: u64) -> Generation {
        Generation {
            claimed: claim,
            complete: claim,
        }
    }
}

/// What a member says of its set's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Random: distinguishes this claim from every other one.
    pub nonce: u128,
    /// The owner's identity: that of a state directory, or random; nil: there is no owner.
    pub owner: Uuid,
    /// The boot of the owner's machine; nil if unknown.
    pub boot: Uuid,
    /// When the claim began, in seconds since 1970 by the owner's clock; for people only, no decision depends on it.
    pub since_unix_s: u64,
    /// The owner's name, for people.
    pub name: String,
    /// How far the member has come.
    pub generation: Generation,
}

/// What a member has in the label's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundLabel {
    /// Zeroes: it was never claimed, or released by a release that had no generations.
    Nothing,
    /// A label.
    Label(Label),
    /// A label that this release cannot read, and why. Its owner may be alive.
    Unreadable(String),
    /// A label that nobody can read: if its owner were alive, it would have given up.
    Damaged,
    /// Data that no release wrote as a label.
    Data,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct OnDisk {
    nonce: [u8; 16],
    owner: [u8; 16],
    boot: [u8; 16],
    since_unix_s: U64,
    /// UTF-8, padded with zeroes.
    name: [u8; NAME_BYTES_MAX],
    /// Zero in version 1, as is what follows.
    claimed: U64,
    complete: U64,
}

impl Label {
    /// The label of a member that nobody owns.
    pub fn released(generation: Generation) -> Label {
        Label {
            nonce: 0,
            owner: Uuid::nil(),
            boot: Uuid::nil(),
            since_unix_s: 0,
            name: String::new(),
            generation,
        }
    }

    /// Whether nobody owns the member.
    pub fn is_released(&self) -> bool {
        self.owner.is_nil()
    }

    /// Encodes the block to write, [`LABEL_BYTES`] long.
    pub fn encode(&self) -> Vec<u8> {
        let mut name = [0; NAME_BYTES_MAX];
        let len = whole_characters(&self.name, NAME_BYTES_MAX);
        name[..len].copy_from_slice(&self.name.as_bytes()[..len]);
        FORMAT.seal(&OnDisk {
            nonce: self.nonce.to_le_bytes(),
            owner: self.owner.into_bytes(),
            boot: self.boot.into_bytes(),
            since_unix_s: self.since_unix_s.into(),
            name,
            claimed: self.generation.claimed.into(),
            complete: self.generation.complete.into(),
        })
    }

    /// Decodes the block in the label's place.
    pub fn decode(block: &[u8]) -> FoundLabel {
        let on_disk: Result<OnDisk, _> = match FORMAT.open(block) {
            Err(Unreadable::OtherVersion(1)) => FORMAT_1.open(block),
            opened => opened,
        };
        let on_disk = match on_disk {
            Ok(on_disk) => on_disk,
            Err(Unreadable::Blank) => return FoundLabel::Nothing,
            Err(Unreadable::Foreign | Unreadable::OtherKind(_)) => return FoundLabel::Data,
            Err(Unreadable::OtherVersion(version)) => {
                return FoundLabel::Unreadable(format!(
                    "an unknown owner (claim of version {version}; this release supports versions up to {VERSION})"
                ));
            }
            Err(Unreadable::Damaged) => return FoundLabel::Damaged,
        };
        let name = String::from_utf8_lossy(&on_disk.name);
        let (claimed, complete) = (on_disk.claimed.get(), on_disk.complete.get());
        if complete > claimed || claimed > CLAIMS_MAX {
            return FoundLabel::Damaged;
        }
        FoundLabel::Label(Label {
            nonce: u128::from_le_bytes(on_disk.nonce),
            owner: Uuid::from_bytes(on_disk.owner),
            boot: Uuid::from_bytes(on_disk.boot),
            since_unix_s: on_disk.since_unix_s.get(),
            // It is printed to terminals, and anybody may have written it.
            name: name.chars().filter(|c| !c.is_control()).collect(),
            generation: Generation { claimed, complete },
        })
    }

    /// The key of the claim's reservations. The upper half identifies the owner, which can thus recognise what it had
    /// reserved but not yet labelled before a crash; the lower half identifies the claim. The highest bit is clear: a
    /// mirror's fences have it set, and a target that keeps a copy judges by that who makes one.
    pub fn key(&self) -> u64 {
        let own = u64::from(crc32c::crc32c(self.owner.as_bytes()) & !(1 << 31));
        own << 32 | u64::from((self.nonce as u32).max(1))
    }

    /// Who the owner is and since when, for a message.
    pub fn describe(&self) -> String {
        let since = utc(self.since_unix_s);
        format!("{} since {since} (owner {})", self.name, self.owner)
    }
}

impl FoundLabel {
    /// How far the member has come, as far as this release can tell.
    pub fn generation(&self) -> Generation {
        match self {
            FoundLabel::Label(label) => label.generation,
            _ => Generation::default(),
        }
    }
}

/// The length of the longest prefix of `text` of at most `len` bytes that does not split a character.
fn whole_characters(text: &str, len: usize) -> usize {
    let mut end = len.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}

/// Formats as `2026-11-22 20:45:07 UTC` (days to a date: Howard Hinnant's `civil_from_days`).
fn utc(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Nobody reads dates more than 190 million years away.
    let shifted = days.min(1 << 36) + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::envelope::tests::reseal;

    fn example() -> Label {
        Label {
            nonce: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
            owner: Uuid::from_u128(7),
            boot: Uuid::from_u128(8),
            since_unix_s: 1_485_907_200,
            name: "db1: sanstone serve -c /etc/sanstone.toml".into(),
            generation: Generation {
                claimed: 3,
                complete: 2,
            },
        }
    }

    /// The example as version 1 wrote it: it begins with this, and the rest is zero.
    fn version_1() -> Vec<u8> {
        let mut block = [
            &b"SANSTONEclaim\0\0\0"[..],
            &[1, 0, 0, 0],
            &0x50d1_12da_u32.to_le_bytes(), // checksum
            &0x0123_4567_89ab_cdef_0011_2233_4455_6677_u128.to_le_bytes(),
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8],
            &1_485_907_200_u64.to_le_bytes(),
            b"db1: sanstone serve -c /etc/sanstone.toml",
        ]
        .concat();
        block.resize(LABEL_BYTES, 0);
        block
    }

    #[test]
    fn it_comes_back_and_lies_in_one_sector() {
        let block = example().encode();
        assert_eq!(Label::decode(&block), FoundLabel::Label(example()));
        assert_eq!(block.len(), LABEL_BYTES);
        assert!(block[SECTOR_BYTES..].iter().all(|&byte| byte == 0));
        let numbers = [3_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat();
        assert_eq!(&block[336..352], &numbers, "where version 2 put them");
        assert_eq!(&block[24..336], &version_1()[24..336]);
    }

    #[test]
    fn version_1_is_read_as_of_no_generation() {
        let read = Label::decode(&version_1());
        let generation = Generation::default();
        let example = Label {
            generation,
            ..example()
        };
        assert_eq!(read, FoundLabel::Label(example));
    }

    #[test]
    fn a_generation_that_no_claim_made_is_damage() {
        let of = |claimed, complete| {
            let generation = Generation { claimed, complete };
            Label::decode(&Label::released(generation).encode())
        };
        assert!(matches!(of(CLAIMS_MAX, CLAIMS_MAX), FoundLabel::Label(_)));
        assert_eq!(of(CLAIMS_MAX + 1, 0), FoundLabel::Damaged);
        assert_eq!(of(3, 4), FoundLabel::Damaged);
    }

    #[test]
    fn a_released_label_keeps_the_generation_alone() {
        let generation = example().generation;
        let FoundLabel::Label(read) = Label::decode(&Label::released(generation).encode()) else {
            panic!("a label was written");
        };
        assert!(read.is_released() && !example().is_released());
        assert_eq!(read.generation, generation);
    }

    #[test]
    fn a_name_is_cut_between_characters_and_says_nothing_to_a_terminal() {
        let label = Label {
            name: format!("a\u{1b}[31m{}", "é".repeat(200)),
            ..example()
        };
        let FoundLabel::Label(read) = Label::decode(&label.encode()) else {
            panic!("a label was written");
        };
        assert!(read.name.starts_with("a[31mé") && read.name.ends_with('é'));
        assert!(read.name.len() < NAME_BYTES_MAX);
    }

    #[test]
    fn a_time_is_a_date() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_485_907_200), "2017-02-01 00:00:00 UTC");
        utc(u64::MAX);
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let block = example().encode();
        for bit in 0..SECTOR_BYTES * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            match (bit / 8, Label::decode(&damaged)) {
                (0..16, FoundLabel::Data)
                | (16..20, FoundLabel::Unreadable(_) | FoundLabel::Damaged)
                | (20.., FoundLabel::Damaged) => {}
                (at, found) => panic!("byte {at}: {found:?}"),
            }
        }
        assert_eq!(Label::decode(&[0; LABEL_BYTES]), FoundLabel::Nothing);
    }

    proptest! {
        #[test]
        fn whatever_lies_there_is_read_without_harm(
            mut block in prop::collection::vec(any::<u8>(), 0..1024),
            begins_well in any::<bool>(),
            sum_is_right in any::<bool>(),
        ) {
            if begins_well && block.len() >= SECTOR_BYTES {
                block[..20].copy_from_slice(&example().encode()[..20]);
                if sum_is_right {
                    reseal(&FORMAT, &mut block);
                }
            }
            match Label::decode(&block) {
                FoundLabel::Label(label) => {
                    prop_assert!(begins_well && sum_is_right);
                    prop_assert!(!label.describe().chars().any(char::is_control));
                    Label::decode(&label.encode());
                }
                FoundLabel::Data => prop_assert!(!begins_well || block.len() < SECTOR_BYTES),
                _ => {}
            }
        }
    }
}
