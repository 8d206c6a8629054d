//! The on-disk layout of the database's files: a fixed set of files in fixed extents, and a header that
//! records the sizes of the permanent ones.
//!
//! ```text
//! | slot 0 | slot 1 | main database | rollback journal | temp 0 | temp 1 | temp 2 | temp 3 |
//! ```
//!
//! The header has two slots, written alternately with increasing sequence numbers. It fits in one 512-byte
//! sector, so a power cut leaves it either old or new, and a write never touches the other slot, so one valid
//! slot always remains. As in good file systems, a file's size (or its existence) becomes durable only
//! *after* the bytes it covers. Otherwise a new journal could come back with the contents of its predecessor,
//! which SQLite would take for a transaction to roll back.
//!
//! Version 1, little endian: magic, version, CRC-32C of the 512 bytes with this field zero, sequence, disk
//! size, size of the main file, size of the journal (all ones: no journal), then offset and length of each
//! extent.

use std::{cell::Cell, io, rc::Rc};

use super::disk::{BLOCK_BYTES, DatabaseDisk};
use crate::{LabError, LabResult};

const MAGIC: [u8; 8] = *b"SANSQLDB";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 512;
const SLOTS: u64 = 2;
const NO_JOURNAL: u64 = u64::MAX;

/// Number of files.
pub(crate) const FILES: usize = 6;
/// The main database.
pub(crate) const MAIN: usize = 0;
/// Its rollback journal.
pub(crate) const JOURNAL: usize = 1;
/// The first temporary file: as long as the main file, for VACUUM's copy.
pub(crate) const TEMP: usize = 2;

/// Division of the space, in 64ths. VACUUM journals everything it overwrites, so the journal needs the main
/// file's length plus the record headers. A large sort uses two files.
const SHARES: [u64; FILES] = [14, 15, 14, 9, 9, 3];

/// A smaller disk cannot hold a useful database.
const DISK_BYTES_MIN: u64 = 4 << 20;

/// A range of the disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskExtent {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The header's record of the permanent files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Durable {
    /// Size of the main database in bytes.
    pub(crate) main_bytes: u64,
    /// Size of the journal in bytes, if it exists.
    pub(crate) journal_bytes: Option<u64>,
}

/// The layout of an open disk.
pub(crate) struct Layout {
    disk: Rc<dyn DatabaseDisk>,
    pub(crate) extents: [DiskExtent; FILES],
    sequence: Cell<u64>,
    durable: Cell<Durable>,
}

impl Layout {
    /// Writes an empty layout; any existing database is lost.
    pub(crate) fn format(disk: Rc<dyn DatabaseDisk>) -> LabResult<Self> {
        let extents = extents(disk.len_bytes())?;
        let empty = Durable {
            main_bytes: 0,
            journal_bytes: None,
        };
        // Both slots, so that no header of an older database survives with a higher sequence number.
        for slot in 0..SLOTS {
            disk.write_at(slot * BLOCK_BYTES as u64, &[0; BLOCK_BYTES])?;
        }
        disk.flush()?;
        let layout = Self {
            disk,
            extents,
            sequence: Cell::new(0),
            durable: Cell::new(empty),
        };
        layout.commit(empty)?;
        Ok(layout)
    }

    /// Reads the layout of a formatted disk.
    pub(crate) fn open(disk: Rc<dyn DatabaseDisk>) -> LabResult<Self> {
        let mut best: Option<(u64, Durable, [DiskExtent; FILES])> = None;
        let mut reason = "it has no Sanstone header; format it first".to_string();
        for slot in 0..SLOTS {
            let mut block = [0; BLOCK_BYTES];
            disk.read_at(slot * BLOCK_BYTES as u64, &mut block)?;
            match decode(&block[..HEADER_BYTES], disk.len_bytes()) {
                Ok(header) if best.as_ref().is_none_or(|best| best.0 < header.0) => {
                    best = Some(header);
                }
                Ok(_) => {}
                Err(Some(why)) => reason = why,
                Err(None) => {}
            }
        }
        let (sequence, durable, extents) = best.ok_or(LabError::Layout(reason))?;
        Ok(Self {
            disk,
            extents,
            sequence: Cell::new(sequence),
            durable: Cell::new(durable),
        })
    }

    /// The current durable state.
    pub(crate) fn durable(&self) -> Durable {
        self.durable.get()
    }

    /// Updates the durable state if it differs. The bytes it covers must have been flushed before.
    pub(crate) fn set_durable(&self, durable: Durable) -> io::Result<()> {
        if durable == self.durable.get() {
            Ok(())
        } else {
            self.commit(durable)
        }
    }

    fn commit(&self, durable: Durable) -> io::Result<()> {
        let sequence = self.sequence.get() + 1;
        let mut block = [0; BLOCK_BYTES];
        let header = encode(sequence, self.disk.len_bytes(), durable, &self.extents);
        block[..HEADER_BYTES].copy_from_slice(&header);
        self.disk
            .write_at(sequence % SLOTS * BLOCK_BYTES as u64, &block)?;
        self.disk.flush()?;
        self.sequence.set(sequence);
        self.durable.set(durable);
        Ok(())
    }
}

fn extents(disk_bytes: u64) -> LabResult<[DiskExtent; FILES]> {
    if disk_bytes < DISK_BYTES_MIN {
        return Err(LabError::Layout(format!(
            "it has {disk_bytes} bytes and a database needs at least {DISK_BYTES_MIN}"
        )));
    }
    let share = (disk_bytes - SLOTS * BLOCK_BYTES as u64) / SHARES.iter().sum::<u64>();
    let share = share / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let mut offset = SLOTS * BLOCK_BYTES as u64;
    Ok(SHARES.map(|shares| {
        let extent = DiskExtent {
            offset,
            len: shares * share,
        };
        offset += extent.len;
        extent
    }))
}

/// The disk size, in bytes, whose main file can hold `main_bytes`.
pub(crate) fn disk_bytes_for(main_bytes: u64) -> u64 {
    let share = main_bytes
        .div_ceil(SHARES[MAIN])
        .next_multiple_of(BLOCK_BYTES as u64);
    (share * SHARES.iter().sum::<u64>() + SLOTS * BLOCK_BYTES as u64).max(DISK_BYTES_MIN)
}

fn encode(
    sequence: u64,
    disk_bytes: u64,
    durable: Durable,
    extents: &[DiskExtent; FILES],
) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let journal = durable.journal_bytes.unwrap_or(NO_JOURNAL);
    let numbers = [sequence, disk_bytes, durable.main_bytes, journal];
    let numbers = numbers
        .into_iter()
        .chain(extents.iter().flat_map(|e| [e.offset, e.len]));
    for (place, number) in header[16..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    let checksum = crc32c::crc32c(&header);
    header[12..16].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Decodes a header into its sequence, sizes and extents. `Err(None)`: there is no header. `Err(Some)`: this
/// disk or this release cannot use it.
fn decode(
    header: &[u8],
    disk_bytes: u64,
) -> std::result::Result<(u64, Durable, [DiskExtent; FILES]), Option<String>> {
    let mut unchecked = header.to_vec();
    unchecked[12..16].fill(0);
    let checksum = crc32c::crc32c(&unchecked).to_le_bytes();
    if header[..8] != MAGIC || header[12..16] != checksum {
        return Err(None);
    }
    if header[8..12] != VERSION.to_le_bytes() {
        return Err(Some(format!(
            "its layout is not version {VERSION}; use the release that wrote it, or format it"
        )));
    }
    let mut numbers = header[16..].chunks_exact(8).map(|bytes| {
        bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    });
    let mut next = || numbers.next().unwrap_or_default();
    let (sequence, written_for, main_bytes, journal) = (next(), next(), next(), next());
    if written_for != disk_bytes {
        return Err(Some(format!(
            "its layout was made for {written_for} bytes and it has {disk_bytes}; format it"
        )));
    }
    let extents = [(); FILES].map(|()| DiskExtent {
        offset: next(),
        len: next(),
    });
    let journal_bytes = (journal != NO_JOURNAL).then_some(journal);
    let fits = |extent: &DiskExtent| {
        extent
            .offset
            .checked_add(extent.len)
            .is_some_and(|end| end <= disk_bytes)
    };
    let sizes_fit = main_bytes <= extents[MAIN].len
        && journal_bytes.is_none_or(|bytes| bytes <= extents[JOURNAL].len);
    if !extents.iter().all(fits) || !sizes_fit {
        return Err(Some(
            "its header's sizes contradict each other; format it".into(),
        ));
    }
    Ok((
        sequence,
        Durable {
            main_bytes,
            journal_bytes,
        },
        extents,
    ))
}

#[cfg(test)]
mod tests {
    use super::{super::disk::MemoryDisk, *};

    fn disk() -> Rc<MemoryDisk> {
        Rc::new(MemoryDisk::new(8 << 20))
    }

    #[test]
    fn the_newest_whole_slot_counts() {
        let disk = disk();
        let layout = Layout::format(disk.clone()).unwrap();
        for main_bytes in [4096, 8192, 12288] {
            layout
                .set_durable(Durable {
                    main_bytes,
                    journal_bytes: Some(7),
                })
                .unwrap();
        }
        assert_eq!(
            Layout::open(disk.clone()).unwrap().durable().main_bytes,
            12288
        );
        // Tear the newest slot (sequence 4, slot 0): the previous one must be used.
        let mut block = [0; BLOCK_BYTES];
        disk.read_at(0, &mut block).unwrap();
        block[40] ^= 1;
        disk.write_at(0, &block).unwrap();
        let layout = Layout::open(disk.clone()).unwrap();
        assert_eq!(
            layout.durable(),
            Durable {
                main_bytes: 8192,
                journal_bytes: Some(7)
            }
        );
        // And the next header must go to the torn slot.
        layout
            .set_durable(Durable {
                main_bytes: 1,
                journal_bytes: None,
            })
            .unwrap();
        assert_eq!(Layout::open(disk).unwrap().durable().main_bytes, 1);
    }

    #[test]
    fn extents_follow_each_other_within_the_disk() {
        for bytes in [DISK_BYTES_MIN, 10_000_384, 1 << 33] {
            let mut end = SLOTS * BLOCK_BYTES as u64;
            for extent in extents(bytes).unwrap() {
                assert_eq!(extent.offset, end);
                assert!(extent.len > 0 && extent.len % BLOCK_BYTES as u64 == 0);
                end += extent.len;
            }
            assert!(end <= bytes);
        }
        assert!(extents(disk_bytes_for(300 << 20)).unwrap()[MAIN].len >= 300 << 20);
    }

    #[test]
    fn a_foreign_blank_or_resized_disk_is_refused_with_the_reason() {
        let why = |disk: Rc<MemoryDisk>| Layout::open(disk).err().unwrap().to_string();
        assert!(why(disk()).contains("format it first"));
        let formatted = disk();
        Layout::format(formatted.clone()).unwrap();
        let larger = Rc::new(MemoryDisk::new(16 << 20));
        let mut block = [0; BLOCK_BYTES];
        formatted.read_at(BLOCK_BYTES as u64, &mut block).unwrap();
        larger.write_at(BLOCK_BYTES as u64, &block).unwrap();
        assert!(why(larger).contains("made for 8388608 bytes"));
        let too_small: Rc<dyn DatabaseDisk> = Rc::new(MemoryDisk::new(1 << 20));
        assert!(Layout::format(too_small).is_err());
    }
}
