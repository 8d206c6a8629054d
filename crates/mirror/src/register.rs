//! The register: one record, of one sector, that says who owns a mirror and which copies are in sync. It is changed by
//! compare-and-swap alone, and each change raises its version by one.
//!
//! A swap whose answer is lost is sent again unchanged until one is answered (rule 1). It may have landed the first
//! time; then the answer shows the swap's own record, which its nonce distinguishes from another node's of the same
//! version.

use uuid::Uuid;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian::U64};

use crate::{
    block::{Format, Unreadable},
    copy_set::{COPIES_MAX, CopySet},
};

/// The length of a record in bytes: one sector, which no disk tears.
pub const RECORD_BYTES: usize = 512;

const FORMAT: Format = Format {
    kind: *b"REGISTER",
    version: 1,
    len_bytes: RECORD_BYTES,
};

/// What the register holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// The mirror that it belongs to.
    pub mirror: Uuid,
    /// Raised by one with each swap.
    pub version: u64,
    /// Chosen at random by each process: tells apart two records of one version.
    pub nonce: u64,
    /// Raised by one with each claim; 0 before the first.
    pub epoch: u64,
    /// The node that owns the mirror; nil before the first claim.
    pub owner: Uuid,
    /// How many copies there are.
    pub copies: u8,
    /// The copies in sync: never empty.
    pub in_sync: CopySet,
    /// The version that last brought all copies in sync.
    pub all_in_sync_since: u64,
    /// Raised by one after each heartbeat that the copies in sync have kept with the record before: one that keeps a record of two
    /// or more fewer was set back.
    pub beats: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Stored {
    mirror: [u8; 16],
    owner: [u8; 16],
    version: U64,
    nonce: U64,
    epoch: U64,
    all_in_sync_since: U64,
    copies: u8,
    in_sync: u8,
    /// The low six bytes: zero in what earlier releases wrote.
    beats: [u8; BEATS_BYTES],
}

/// The length of the number of heartbeats in bytes: enough for ever.
const BEATS_BYTES: usize = 6;

/// Why a register must not be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegisterRefusal {
    /// No record of a mirror.
    #[error("the register has no record: {0}; name the register that the mirror was created with")]
    Unreadable(#[from] Unreadable),
    /// A record that contradicts itself.
    #[error("the register's record contradicts itself: {0}")]
    Contradictory(&'static str),
    /// That of another mirror.
    #[error(
        "the register belongs to mirror {found}, not to {expected}: name the register of this mirror"
    )]
    Foreign {
        /// Whose it is.
        found: Uuid,
        /// Whose was wanted.
        expected: Uuid,
    },
    /// Older than what was seen before: it was restored from a backup, or is a copy.
    #[error(
        "the register is at version {found}, but this mirror has been seen at version {seen}: the register was restored \
         from an older state or is another one; name the right one, or take the mirror over with --force"
    )]
    Older {
        /// Its version.
        found: u64,
        /// The newest that was seen.
        seen: u64,
    },
    /// Of the version that was seen before, but another record.
    #[error(
        "the register has another record of version {0} than was seen before: there are two registers of this mirror; \
         name the right one"
    )]
    Forked(u64),
}

impl Record {
    /// The first record of a mirror of `copies` copies, which are equal.
    ///
    /// # Panics
    /// If there are too many copies or none.
    pub fn first(mirror: Uuid, copies: usize, nonce: u64) -> Record {
        assert!(
            (1..=COPIES_MAX).contains(&copies),
            "a mirror has 1 to {COPIES_MAX} copies"
        );
        Record {
            mirror,
            version: 1,
            nonce,
            epoch: 0,
            owner: Uuid::nil(),
            copies: copies as u8,
            in_sync: CopySet::first(copies),
            all_in_sync_since: 1,
            beats: 0,
        }
    }

    /// What a swap with this `nonce` makes of it at least.
    #[must_use]
    pub fn next(self, nonce: u64) -> Record {
        Record {
            version: self.version + 1,
            nonce,
            ..self
        }
    }

    /// Every copy, in sync or not.
    pub fn all(&self) -> CopySet {
        CopySet::first(self.copies.into())
    }

    /// The sector, [`RECORD_BYTES`] long.
    pub fn encode(&self) -> Vec<u8> {
        FORMAT.seal(&self.stored())
    }

    /// The record in `sector`.
    ///
    /// # Errors
    /// If there is none, or one that contradicts itself.
    pub fn decode(sector: &[u8]) -> Result<Record, RegisterRefusal> {
        Record::from_stored(&FORMAT.open(sector)?)
    }

    pub(crate) fn stored(&self) -> Stored {
        Stored {
            mirror: *self.mirror.as_bytes(),
            owner: *self.owner.as_bytes(),
            version: self.version.into(),
            nonce: self.nonce.into(),
            epoch: self.epoch.into(),
            all_in_sync_since: self.all_in_sync_since.into(),
            copies: self.copies,
            in_sync: self.in_sync.bits(),
            beats: std::array::from_fn(|at| self.beats.to_le_bytes()[at]),
        }
    }

    pub(crate) fn from_stored(stored: &Stored) -> Result<Record, RegisterRefusal> {
        let record = Record {
            mirror: Uuid::from_bytes(stored.mirror),
            version: stored.version.get(),
            nonce: stored.nonce.get(),
            epoch: stored.epoch.get(),
            owner: Uuid::from_bytes(stored.owner),
            copies: stored.copies,
            in_sync: CopySet::from_bits(stored.in_sync),
            all_in_sync_since: stored.all_in_sync_since.get(),
            beats: stored
                .beats
                .iter()
                .rev()
                .fold(0, |beats, &byte| beats << 8 | u64::from(byte)),
        };
        if !(1..=COPIES_MAX).contains(&record.copies.into()) {
            return Err(RegisterRefusal::Contradictory(
                "it has no copies or too many",
            ));
        }
        if record.in_sync.is_empty() || !record.in_sync.is_within(record.all()) {
            return Err(RegisterRefusal::Contradictory(
                "no copy is in sync, or one that there is not",
            ));
        }
        if record.all_in_sync_since > record.version {
            return Err(RegisterRefusal::Contradictory(
                "all copies were in sync later than it was written",
            ));
        }
        Ok(record)
    }

    /// Whether this record, which the register of `mirror` has, may be used by a node or copy that has seen `seen`
    /// (rule 1).
    ///
    /// # Errors
    /// If it is another mirror's, or not what follows `seen`.
    pub fn check(&self, mirror: Uuid, seen: Option<&Record>) -> Result<(), RegisterRefusal> {
        if self.mirror != mirror {
            return Err(RegisterRefusal::Foreign {
                found: self.mirror,
                expected: mirror,
            });
        }
        match seen {
            Some(seen) if seen.version > self.version => Err(RegisterRefusal::Older {
                found: self.version,
                seen: seen.version,
            }),
            Some(seen) if seen.version == self.version && seen != self => {
                Err(RegisterRefusal::Forked(self.version))
            }
            _ => Ok(()),
        }
    }
}

/// A compare-and-swap that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Swap {
    /// What the register must hold for it to land.
    pub expect: Record,
    /// What it holds then.
    pub new: Record,
}

/// What an answer says about a swap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SwapVerdict {
    /// It landed, now or when it was sent before.
    Won,
    /// Another node's swap landed instead: it never will.
    Lost,
    /// It did not land and still may: it is sent again, unchanged. The register may also be older than what the swap expects:
    /// then it was set back, and its right record may return.
    Again,
}

impl Swap {
    /// A swap of `expect` for `new`.
    ///
    /// # Panics
    /// If `new` is not of the next version of the same mirror.
    pub fn new(expect: Record, new: Record) -> Swap {
        assert_eq!(
            new.version,
            expect.version + 1,
            "a swap raises the version by one"
        );
        assert_eq!(
            new.mirror, expect.mirror,
            "a register belongs to one mirror"
        );
        Swap { expect, new }
    }

    /// What a register that holds `held` does with it: it holds the result afterwards.
    pub fn land(&self, held: Record) -> Record {
        if held == self.expect { self.new } else { held }
    }

    /// What became of it, if the register held `found` after an attempt.
    pub fn judge(&self, found: &Record) -> SwapVerdict {
        if *found == self.new {
            SwapVerdict::Won
        } else if *found == self.expect || found.version < self.expect.version {
            SwapVerdict::Again
        } else {
            SwapVerdict::Lost
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy_set::CopyId;

    fn first() -> Record {
        Record::first(Uuid::from_u128(7), 2, 11)
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = Record {
            mirror: Uuid::from_u128(1 << 100 | 5),
            version: u64::MAX,
            nonce: 3,
            epoch: 9,
            owner: Uuid::from_u128(12),
            copies: 3,
            in_sync: CopySet::from(CopyId::new(2)),
            all_in_sync_since: 4,
            beats: 0x0102_0304_0506,
        };
        let sector = record.encode();
        assert_eq!(sector.len(), RECORD_BYTES);
        assert_eq!(Record::decode(&sector), Ok(record));
    }

    #[test]
    fn no_changed_byte_goes_unnoticed() {
        let sector = first().encode();
        for at in 0..sector.len() {
            let mut changed = sector.clone();
            changed[at] ^= 0x10;
            assert!(Record::decode(&changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn what_is_no_record_is_told_apart() {
        let unreadable = |sector: &[u8]| Record::decode(sector).expect_err("there is no record");
        assert_eq!(unreadable(&[0; 512]), Unreadable::Blank.into());
        assert_eq!(unreadable(&[7; 512]), Unreadable::Foreign.into());
        assert_eq!(
            unreadable(&first().encode()[..511]),
            Unreadable::Foreign.into()
        );
        let mut newer = first().encode();
        newer[16] = 2;
        assert_eq!(unreadable(&newer), Unreadable::Version(2).into());
        let none = Record {
            in_sync: CopySet::EMPTY,
            ..first()
        };
        assert!(matches!(
            unreadable(&none.encode()),
            RegisterRefusal::Contradictory(_)
        ));
    }

    #[test]
    fn an_older_foreign_or_forked_register_is_refused() {
        let (mirror, seen) = (first().mirror, first().next(5));
        assert_eq!(first().check(mirror, None), Ok(()));
        assert_eq!(seen.check(mirror, Some(&seen)), Ok(()));
        assert_eq!(seen.next(6).check(mirror, Some(&seen)), Ok(()));
        let older = first().check(mirror, Some(&seen));
        assert_eq!(older, Err(RegisterRefusal::Older { found: 1, seen: 2 }));
        let forked = first().next(6).check(mirror, Some(&seen));
        assert_eq!(forked, Err(RegisterRefusal::Forked(2)));
        let foreign = first().check(Uuid::from_u128(8), None);
        assert!(matches!(foreign, Err(RegisterRefusal::Foreign { .. })));
    }

    #[test]
    fn a_swap_that_is_sent_twice_lands_once() {
        let swap = Swap::new(first(), first().next(5));
        let once = swap.land(first());
        assert_eq!(once, swap.new);
        assert_eq!(swap.land(once), once);
        assert_eq!(swap.judge(&once), SwapVerdict::Won);
        assert_eq!(swap.judge(&first()), SwapVerdict::Again);
    }

    #[test]
    fn of_two_swaps_of_one_version_one_wins() {
        let (a, b) = (first().next(5), first().next(6));
        let (a, b) = (Swap::new(first(), a), Swap::new(first(), b));
        let held = b.land(a.land(first()));
        assert_eq!(
            (a.judge(&held), b.judge(&held)),
            (SwapVerdict::Won, SwapVerdict::Lost)
        );
    }
}
