//! The disk under the database: the operations that SQLite's files need from a volume, and no more. It is
//! synchronous because SQLite is. An implementation may leave a write in flight until `flush`, like a disk
//! with a volatile cache.

use std::{cell::RefCell, io};

/// The unit of all I/O on a [`DatabaseDisk`], in bytes: the physical block that volumes report.
pub const BLOCK_BYTES: usize = 4096;

/// A disk of a fixed size. Offsets and lengths must be multiples of [`BLOCK_BYTES`] within it; anything else
/// fails with `InvalidInput`.
pub trait DatabaseDisk {
    /// Its size in bytes.
    fn len_bytes(&self) -> u64;

    /// Fills `buffer` from `offset`. The read sees every earlier write.
    ///
    /// # Errors
    /// The disk's errors, unchanged.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes `bytes` at `offset`. Until the next flush, a power cut may lose any of its 512-byte sectors. If
    /// a write fails only after this has returned, every later call must fail, because reads could no longer
    /// return what was written.
    ///
    /// # Errors
    /// The disk's error, from this or an earlier write.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Returns when every earlier write is on persistent media.
    ///
    /// # Errors
    /// An error of the flush, or of any earlier write.
    fn flush(&self) -> io::Result<()>;
}

/// A disk in memory, for tests and for measuring what SQLite itself costs.
#[derive(Debug)]
pub struct MemoryDisk(RefCell<Vec<u8>>);

impl MemoryDisk {
    /// A disk of zeros; its size is rounded down to whole blocks.
    pub fn new(len_bytes: u64) -> Self {
        Self(RefCell::new(vec![
            0;
            len_bytes as usize / BLOCK_BYTES
                * BLOCK_BYTES
        ]))
    }
}

impl DatabaseDisk for MemoryDisk {
    fn len_bytes(&self) -> u64 {
        self.0.borrow().len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let range = checked_range(self.len_bytes(), offset, buffer.len())?;
        buffer.copy_from_slice(&self.0.borrow()[range]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = checked_range(self.len_bytes(), offset, bytes.len())?;
        self.0.borrow_mut()[range].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The range of an I/O on a disk of `disk_bytes`, if it is aligned and in bounds.
pub(crate) fn checked_range(
    disk_bytes: u64,
    offset: u64,
    len: usize,
) -> io::Result<std::ops::Range<usize>> {
    let end = offset
        .checked_add(len as u64)
        .filter(|end| *end <= disk_bytes);
    let aligned = offset % BLOCK_BYTES as u64 == 0 && len % BLOCK_BYTES == 0;
    match end {
        Some(end) if aligned => Ok(offset as usize..end as usize),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{len} bytes at {offset} are not whole blocks within {disk_bytes} bytes"),
        )),
    }
}
