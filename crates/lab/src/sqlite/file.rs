//! One file in its extent: SQLite reads and writes any bytes at any offset, the disk sees whole blocks.
//!
//! Consecutive writes are gathered into one run, which is written to the disk when it is long enough, when a
//! write or read elsewhere requires it, or at a sync. So the journal's records (a page between two four-byte
//! numbers) become large aligned writes, and a stripe sees requests that span it. Only the blocks at a run's
//! two ends ever need a read before they are written.

use std::{io, rc::Rc};

use super::{
    disk::{BLOCK_BYTES, DatabaseDisk},
    layout::DiskExtent,
};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A run of this length is written to the disk: long enough for every child of a stripe to take part, short
/// enough that its start is in flight while SQLite produces more.
const RUN_BYTES: usize = 512 << 10;

/// The granularity at which a file tracks what was written, in bytes.
pub(crate) const CHUNK_BYTES: u64 = 1 << 20;

/// Why a file operation failed.
#[derive(Debug)]
pub(crate) enum FileError {
    /// Its extent is full.
    Full,
    /// The disk failed.
    Disk(io::Error),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// A file. Its size is the one SQLite sees; the layout makes the size durable.
pub(crate) struct DatabaseFile {
    disk: Rc<dyn DatabaseDisk>,
    extent: DiskExtent,
    size: u64,
    run: Unwritten,
    /// For each chunk, whether it was written since [`DatabaseFile::forget_written`].
    written: Vec<bool>,
}

/// Bytes not yet written to the disk: `bytes[from..]` belongs at `start + from`.
#[derive(Default)]
struct Unwritten {
    /// Offset in the file, a multiple of the block size.
    start: u64,
    /// Where in the first block the run starts.
    from: usize,
    bytes: Vec<u8>,
}

impl Unwritten {
    fn begin(&self) -> u64 {
        self.start + self.from as u64
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn overlaps(&self, offset: u64, len: u64) -> bool {
        !self.bytes.is_empty() && offset < self.end() && self.start < offset + len
    }
}

impl DatabaseFile {
    /// The file of `size` bytes in `extent`.
    pub(crate) fn new(disk: Rc<dyn DatabaseDisk>, extent: DiskExtent, size: u64) -> Self {
        let written = vec![true; extent.len.div_ceil(CHUNK_BYTES) as usize];
        Self {
            disk,
            extent,
            size,
            run: Unwritten::default(),
            written,
        }
    }

    /// Its size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Fills `buffer` from `offset` and returns how many bytes the file had there; the rest is filled with
    /// zeros.
    pub(crate) fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        let len = self.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let (wanted, beyond) = buffer.split_at_mut(len);
        beyond.fill(0);
        if len == 0 {
            return Ok(0);
        }
        if self.run.overlaps(offset, len as u64) {
            self.drain()?;
        }
        if offset % BLOCK == 0 && len % BLOCK_BYTES == 0 {
            self.disk.read_at(self.extent.offset + offset, wanted)?;
        } else {
            let start = offset / BLOCK * BLOCK;
            let end = (offset + len as u64).next_multiple_of(BLOCK);
            let mut blocks = vec![0; (end - start) as usize];
            self.disk.read_at(self.extent.offset + start, &mut blocks)?;
            let within = (offset - start) as usize;
            wanted.copy_from_slice(&blocks[within..within + len]);
        }
        Ok(len)
    }

    /// Writes `bytes` at `offset`; a gap after the file's end is filled with zeros.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        let end = offset
            .checked_add(bytes.len() as u64)
            .ok_or(FileError::Full)?;
        if end > self.extent.len {
            return Err(FileError::Full);
        }
        while self.size < offset {
            let zeros = [0; BLOCK_BYTES];
            let gap = (offset - self.size).min(BLOCK) as usize;
            self.append_to_run(self.size, &zeros[..gap])?;
        }
        self.append_to_run(offset, bytes)
    }

    /// Sets the size; any new part reads as zeros.
    pub(crate) fn truncate(&mut self, size: u64) -> Result<(), FileError> {
        if size > self.size {
            return self.write(size, &[]);
        }
        if self.run.end() > size {
            self.drain()?;
        }
        self.size = size;
        Ok(())
    }

    /// Adopts the disk's contents up to `size` as the file's contents.
    pub(crate) fn adopt_size(&mut self, size: u64) {
        self.run = Unwritten::default();
        self.size = size.min(self.extent.len);
    }

    /// Empties the file without writing anything.
    pub(crate) fn clear(&mut self) {
        self.run = Unwritten::default();
        self.size = 0;
    }

    /// Writes everything to the disk (whose flush makes it durable).
    pub(crate) fn drain(&mut self) -> Result<(), FileError> {
        self.write_whole_blocks()?;
        if self.run.bytes.is_empty() {
            return Ok(());
        }
        let mut block = [0; BLOCK_BYTES];
        if self.run.from > 0 || self.size > self.run.end() {
            self.disk
                .read_at(self.extent.offset + self.run.start, &mut block)?;
        }
        block[self.run.from..self.run.bytes.len()]
            .copy_from_slice(&self.run.bytes[self.run.from..]);
        self.write_out(self.run.start, &block)?;
        self.run.bytes.clear();
        self.run.from = 0;
        Ok(())
    }

    fn append_to_run(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        let run = &self.run;
        if !run.bytes.is_empty() && !(run.begin()..=run.end()).contains(&offset) {
            self.drain()?;
        }
        let run = &mut self.run;
        if run.bytes.is_empty() {
            run.start = offset / BLOCK * BLOCK;
            run.from = (offset - run.start) as usize;
            run.bytes.resize(run.from, 0);
        }
        let at = (offset - run.start) as usize;
        let known = (run.bytes.len() - at).min(bytes.len());
        run.bytes[at..at + known].copy_from_slice(&bytes[..known]);
        run.bytes.extend_from_slice(&bytes[known..]);
        self.size = self.size.max(offset + bytes.len() as u64);
        if self.run.bytes.len() >= RUN_BYTES {
            self.write_whole_blocks()
        } else {
            Ok(())
        }
    }

    /// Writes the run up to its last whole block; the rest starts the next run.
    fn write_whole_blocks(&mut self) -> Result<(), FileError> {
        let whole = self.run.bytes.len() / BLOCK_BYTES * BLOCK_BYTES;
        if whole == 0 {
            return Ok(());
        }
        if self.run.from > 0 {
            let mut block = [0; BLOCK_BYTES];
            self.disk
                .read_at(self.extent.offset + self.run.start, &mut block)?;
            self.run.bytes[..self.run.from].copy_from_slice(&block[..self.run.from]);
            self.run.from = 0;
        }
        // Moved out of `self` during the write to avoid a copy. After an error it stays in the run, because
        // the disk may hold stale bytes there, which must never be read as ours.
        let mut bytes = std::mem::take(&mut self.run.bytes);
        let result = self.write_out(self.run.start, &bytes[..whole]);
        if result.is_ok() {
            bytes.drain(..whole);
            self.run.start += whole as u64;
        }
        self.run.bytes = bytes;
        result
    }

    fn write_out(&mut self, start: u64, blocks: &[u8]) -> Result<(), FileError> {
        let (first, last) = (
            start / CHUNK_BYTES,
            (start + blocks.len() as u64 - 1) / CHUNK_BYTES,
        );
        self.written[first as usize..=last as usize].fill(true);
        Ok(self.disk.write_at(self.extent.offset + start, blocks)?)
    }

    /// The numbers of the chunks written since [`DatabaseFile::forget_written`]; all of them if it was never called.
    pub(crate) fn written_chunks(&self) -> Vec<u64> {
        let written = self.written.iter().enumerate();
        written
            .filter_map(|(chunk, written)| written.then_some(chunk as u64))
            .collect()
    }

    /// Marks every chunk as written.
    pub(crate) fn remember_all_as_written(&mut self) {
        self.written.fill(true);
    }

    /// Makes the current contents the baseline from which changes are tracked.
    pub(crate) fn forget_written(&mut self) {
        self.written.fill(false);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::disk::MemoryDisk, *};
    use engine::random::SplitMix64;

    #[test]
    fn a_file_holds_what_a_vector_would() {
        for seed in 0..60 {
            let mut random = SplitMix64::new(seed);
            let extent = DiskExtent {
                offset: 8192,
                len: 2 << 20,
            };
            let disk = Rc::new(MemoryDisk::new(4 << 20));
            // Stale bytes from earlier use must never show.
            disk.write_at(8192, &vec![0xAA; 2 << 20]).unwrap();
            let mut file = DatabaseFile::new(disk.clone(), extent, 0);
            let mut model: Vec<u8> = Vec::new();
            for step in 0..300u64 {
                let near = random.below(model.len() as u64 + 5_000);
                let offset = if random.one_in(2) {
                    model.len() as u64
                } else {
                    near
                };
                let len = match random.below(3) {
                    0 => random.below(16),
                    1 => random.below(9_000),
                    _ => 4096 * random.below(8),
                };
                match random.below(10) {
                    0 => file.drain().unwrap(),
                    1 => {
                        file.truncate(near).unwrap();
                        model.resize(near as usize, 0);
                    }
                    2..=4 => {
                        let mut got = vec![1; len as usize];
                        let read = file.read(offset, &mut got).unwrap();
                        let from = (offset as usize).min(model.len());
                        let want = &model[from..(from + len as usize).min(model.len())];
                        assert_eq!(read, want.len(), "seed {seed} step {step}");
                        assert!(got[..read] == *want && got[read..].iter().all(|b| *b == 0));
                    }
                    _ if offset + len > extent.len => {
                        assert!(matches!(
                            file.write(offset, &vec![0; len as usize]),
                            Err(FileError::Full)
                        ));
                    }
                    _ => {
                        let bytes = vec![step as u8; len as usize];
                        file.write(offset, &bytes).unwrap();
                        let end = (offset + len) as usize;
                        model.resize(model.len().max(end), 0);
                        model[offset as usize..end].copy_from_slice(&bytes);
                    }
                }
                assert_eq!(file.size(), model.len() as u64, "seed {seed} step {step}");
            }
            file.drain().unwrap();
            let mut reopened = DatabaseFile::new(disk, extent, file.size());
            let mut all = vec![0; model.len()];
            reopened.read(0, &mut all).unwrap();
            assert!(all == model, "seed {seed}");
        }
    }

    #[test]
    fn only_written_chunks_are_remembered() {
        let disk = Rc::new(MemoryDisk::new(8 << 20));
        let mut file = DatabaseFile::new(
            disk,
            DiskExtent {
                offset: 0,
                len: 8 << 20,
            },
            0,
        );
        assert_eq!(file.written_chunks().len(), 8);
        file.write(0, &vec![1; 5 << 20]).unwrap();
        file.drain().unwrap();
        file.forget_written();
        file.write(3 * CHUNK_BYTES - 10, &[2; 20]).unwrap();
        file.drain().unwrap();
        assert_eq!(file.written_chunks(), [2, 3]);
    }
}
