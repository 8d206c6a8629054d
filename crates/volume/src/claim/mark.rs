//! The mark of a claim: the last block of a child's reserved MiB, which names the child's owner. It fits in one
//! sector, so a power cut leaves the old mark or the new one, but never a mixture.
//!
//! The block is wrapped in an [envelope](crate::envelope). A mark is read from a disk that anybody may have written,
//! so nothing in it is trusted beyond its format.

use uuid::Uuid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian::U64};

use crate::envelope::{BLOCK_BYTES, Format, Unreadable};

/// The position of the mark on a child, in bytes.
pub(crate) const MARK_AT: u64 = (1 << 20) - MARK_BYTES as u64;
/// The length that is read and written, in bytes: no block is larger.
pub(crate) const MARK_BYTES: usize = BLOCK_BYTES;
/// The version that this release writes and reads.
const VERSION: u32 = 1;
/// The smallest sector: the mark fits in it, and the rest of its block is zero.
const SECTOR_BYTES: usize = 512;
/// The longest name of an owner, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 256;

const FORMAT: Format = Format {
    kind: *b"claim\0\0\0",
    version: VERSION,
    covered_bytes: SECTOR_BYTES,
};

/// Who has claimed a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Random: distinguishes this claim from every other one.
    pub(crate) nonce: u128,
    /// The owner's identity: that of a state directory, or random.
    pub(crate) owner: Uuid,
    /// The boot of the owner's machine; nil if unknown.
    pub(crate) boot: Uuid,
    /// When the claim began, in seconds since 1970 by the owner's clock; for people only, no decision depends on it.
    pub(crate) since_unix_s: u64,
    /// The owner's name, for people.
    pub(crate) name: String,
}

/// What a child has in the mark's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Mark(Mark),
    /// A mark that this release cannot read, and why. Its owner may be alive.
    Unreadable(String),
    /// A mark that nobody can read: if its owner were alive, it would have given up.
    Damaged,
    /// Data that no release wrote as a mark.
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
}

impl Mark {
    /// Encodes the block to write, [`MARK_BYTES`] long.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut name = [0; NAME_BYTES_MAX];
        let len = whole_characters(&self.name, NAME_BYTES_MAX);
        name[..len].copy_from_slice(&self.name.as_bytes()[..len]);
        FORMAT.seal(&OnDisk {
            nonce: self.nonce.to_le_bytes(),
            owner: self.owner.into_bytes(),
            boot: self.boot.into_bytes(),
            since_unix_s: self.since_unix_s.into(),
            name,
        })
    }

    /// Decodes the block in the mark's place.
    pub(crate) fn decode(block: &[u8]) -> Found {
        let on_disk: OnDisk = match FORMAT.open(block) {
            Ok(on_disk) => on_disk,
            Err(Unreadable::Blank) => return Found::Nothing,
            Err(Unreadable::Foreign | Unreadable::OtherKind(_)) => return Found::Data,
            Err(Unreadable::OtherVersion(version)) => {
                return Found::Unreadable(format!(
                    "an unknown owner (claim of version {version}; this release supports version \
                     {VERSION})"
                ));
            }
            Err(Unreadable::Damaged) => return Found::Damaged,
        };
        let name = String::from_utf8_lossy(&on_disk.name);
        Found::Mark(Mark {
            nonce: u128::from_le_bytes(on_disk.nonce),
            owner: Uuid::from_bytes(on_disk.owner),
            boot: Uuid::from_bytes(on_disk.boot),
            since_unix_s: on_disk.since_unix_s.get(),
            // It is printed to terminals, and anybody may have written it.
            name: name.chars().filter(|c| !c.is_control()).collect(),
        })
    }

    /// The key of the claim's reservations. The upper half identifies the owner, which can thus recognise what it had
    /// reserved but not yet marked before a crash; the lower half identifies the claim.
    pub(crate) fn key(&self) -> u64 {
        let own = u64::from(crc32c::crc32c(self.owner.as_bytes()));
        own << 32 | u64::from((self.nonce as u32).max(1))
    }

    /// Who the owner is and since when, for a message.
    pub(crate) fn describe(&self) -> String {
        let since = utc(self.since_unix_s);
        format!("{} since {since} (owner {})", self.name, self.owner)
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
    use crate::envelope::CHECKSUM_AT;

    fn example() -> Mark {
        Mark {
            nonce: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
            owner: Uuid::from_u128(7),
            boot: Uuid::from_u128(8),
            since_unix_s: 1_485_907_200,
            name: "db1: sanstone serve -c /etc/sanstone.toml".into(),
        }
    }

    #[test]
    fn it_comes_back_and_lies_in_one_sector_where_version_1_put_it() {
        let block = example().encode();
        assert_eq!(Mark::decode(&block), Found::Mark(example()));
        let version_1 = [
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
        let (written, rest) = block.split_at(version_1.len());
        assert_eq!(written, version_1);
        assert!(rest.iter().all(|&byte| byte == 0));
        assert_eq!(block.len(), MARK_BYTES);
    }

    #[test]
    fn a_name_is_cut_between_characters_and_says_nothing_to_a_terminal() {
        let mark = Mark {
            name: format!("a\u{1b}[31m{}", "é".repeat(200)),
            ..example()
        };
        let Found::Mark(read) = Mark::decode(&mark.encode()) else {
            panic!("a mark was written");
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
            match (bit / 8, Mark::decode(&damaged)) {
                (0..16, Found::Data) | (16..20, Found::Unreadable(_)) | (20.., Found::Damaged) => {}
                (at, found) => panic!("byte {at}: {found:?}"),
            }
        }
        assert_eq!(Mark::decode(&[0; MARK_BYTES]), Found::Nothing);
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
                    let sum = FORMAT.checksum(&block).to_le_bytes();
                    block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum);
                }
            }
            match Mark::decode(&block) {
                Found::Mark(mark) => {
                    prop_assert!(begins_well && sum_is_right);
                    prop_assert!(!mark.describe().chars().any(char::is_control));
                    Mark::decode(&mark.encode());
                }
                Found::Data => prop_assert!(!begins_well || block.len() < SECTOR_BYTES),
                _ => {}
            }
        }
    }
}
