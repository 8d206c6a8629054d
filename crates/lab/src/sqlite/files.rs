//! The files of one database as a small file system: which exist, which are open, and what a sync or a delete
//! makes durable. This is all safe code with Rust errors; `vfs` translates it for SQLite.
//!
//! SQLite's rollback journal relies on these guarantees: after `sync` returns, the file's contents and size
//! survive a power cut; after `delete` returns, the journal stays deleted, which is the moment a transaction
//! is committed. In between, a power cut can only bring back the file's size from the last sync, never bytes
//! that were not written to this file.

use std::{
    cell::{Cell, RefCell, RefMut},
    io,
    rc::Rc,
};

use super::{
    disk::DatabaseDisk,
    file::{CHUNK_BYTES, DatabaseFile, FileError},
    layout::{Durable, FILES, JOURNAL, Layout, MAIN, TEMP},
};
use crate::LabResult;

/// The kinds of files that SQLite opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// The database itself.
    Main,
    /// Its rollback journal.
    Journal,
    /// A temporary database: VACUUM's copy, a large sort's or view's table.
    TempDatabase,
    /// Any other temporary file: a sorter's runs, a statement's journal.
    Temp,
}

/// Why a file could not be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// It does not exist.
    Missing,
    /// It is already open, or all temporary files are in use.
    Busy,
}

/// The files on one disk.
pub(crate) struct Files {
    disk: Rc<dyn DatabaseDisk>,
    layout: Layout,
    files: [RefCell<DatabaseFile>; FILES],
    open: [Cell<bool>; FILES],
    /// Whether the journal exists now; the layout records whether it does after a power cut.
    journal_exists: Cell<bool>,
    /// The image relative to which the main file's changes are tracked.
    base: Cell<Option<u64>>,
    /// The disk's last error, for the message: SQLite passes on only that there was one.
    disk_error: RefCell<Option<String>>,
}

impl Files {
    /// Writes an empty layout to `disk`.
    pub(crate) fn format(disk: Rc<dyn DatabaseDisk>) -> LabResult<Self> {
        let layout = Layout::format(disk.clone())?;
        Ok(Self::new(disk, layout))
    }

    /// Opens a formatted disk.
    pub(crate) fn open_disk(disk: Rc<dyn DatabaseDisk>) -> LabResult<Self> {
        let layout = Layout::open(disk.clone())?;
        Ok(Self::new(disk, layout))
    }

    fn new(disk: Rc<dyn DatabaseDisk>, layout: Layout) -> Self {
        let Durable {
            main_bytes,
            journal_bytes,
        } = layout.durable();
        let size = |index| match index {
            MAIN => main_bytes,
            JOURNAL => journal_bytes.unwrap_or(0),
            _ => 0,
        };
        let file = |index: usize| {
            RefCell::new(DatabaseFile::new(
                disk.clone(),
                layout.extents[index],
                size(index),
            ))
        };
        let files = std::array::from_fn(file);
        let journal_exists = Cell::new(journal_bytes.is_some());
        let open = [const { Cell::new(false) }; FILES];
        let (base, disk_error) = (Cell::new(None), RefCell::new(None));
        Self {
            disk,
            layout,
            files,
            open,
            journal_exists,
            base,
            disk_error,
        }
    }

    /// Opens a file and returns its index.
    pub(crate) fn open(
        &self,
        kind: FileKind,
        create: bool,
    ) -> std::result::Result<usize, OpenError> {
        let index = match kind {
            FileKind::Main => self.closed([MAIN])?,
            FileKind::Journal if !create && !self.journal_exists.get() => {
                return Err(OpenError::Missing);
            }
            FileKind::Journal => self.closed([JOURNAL])?,
            FileKind::TempDatabase => self.closed(TEMP..FILES)?,
            // Other temporary files take the longest extent last, to leave it to VACUUM.
            FileKind::Temp => self.closed((TEMP + 1..FILES).chain([TEMP]))?,
        };
        if kind == FileKind::Journal {
            self.journal_exists.set(true);
        }
        self.open[index].set(true);
        Ok(index)
    }

    /// The first of `indices` that is not open.
    fn closed(
        &self,
        indices: impl IntoIterator<Item = usize>,
    ) -> std::result::Result<usize, OpenError> {
        indices
            .into_iter()
            .find(|index| !self.open[*index].get())
            .ok_or(OpenError::Busy)
    }

    /// Closes a file; a temporary file is deleted.
    pub(crate) fn close(&self, index: usize) -> std::result::Result<(), FileError> {
        self.open[index].set(false);
        if index >= TEMP {
            self.file(index).clear();
            return Ok(());
        }
        self.noted(self.file(index).drain())
    }

    /// Whether any file is open.
    pub(crate) fn any_open(&self) -> bool {
        self.open.iter().any(Cell::get)
    }

    /// Whether the journal exists.
    pub(crate) fn journal_exists(&self) -> bool {
        self.journal_exists.get()
    }

    /// Size of an open file in bytes.
    pub(crate) fn size(&self, index: usize) -> u64 {
        self.file(index).size()
    }

    /// Reads; see [`DatabaseFile::read`].
    pub(crate) fn read(
        &self,
        index: usize,
        offset: u64,
        buffer: &mut [u8],
    ) -> std::result::Result<usize, FileError> {
        self.noted(self.file(index).read(offset, buffer))
    }

    /// Writes; see [`DatabaseFile::write`].
    pub(crate) fn write(
        &self,
        index: usize,
        offset: u64,
        bytes: &[u8],
    ) -> std::result::Result<(), FileError> {
        self.noted(self.file(index).write(offset, bytes))
    }

    /// Sets a file's size; the next sync makes it durable.
    pub(crate) fn truncate(&self, index: usize, size: u64) -> std::result::Result<(), FileError> {
        self.noted(self.file(index).truncate(size))
    }

    /// Makes a file's contents and then its size durable. Does nothing for a temporary file.
    pub(crate) fn sync(&self, index: usize) -> std::result::Result<(), FileError> {
        if index >= TEMP {
            return Ok(());
        }
        self.noted(self.make_durable(index))
    }

    fn make_durable(&self, index: usize) -> std::result::Result<(), FileError> {
        self.file(index).drain()?;
        self.disk.flush()?;
        let mut durable = self.layout.durable();
        match index {
            MAIN => durable.main_bytes = self.size(MAIN),
            _ => durable.journal_bytes = Some(self.size(JOURNAL)),
        }
        Ok(self.layout.set_durable(durable)?)
    }

    /// Deletes the journal durably.
    pub(crate) fn delete_journal(&self) -> std::result::Result<(), FileError> {
        self.file(JOURNAL).clear();
        self.journal_exists.set(false);
        let durable = Durable {
            journal_bytes: None,
            ..self.layout.durable()
        };
        self.noted(self.layout.set_durable(durable).map_err(FileError::from))
    }

    /// Calls `chunk` with each MiB of the main file in order, to record it as image `image`.
    pub(crate) fn read_main(
        &self,
        image: u64,
        mut chunk: impl FnMut(&[u8]) -> LabResult<()>,
    ) -> LabResult<()> {
        let size = self.size(MAIN);
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        let mut offset = 0;
        while offset < size {
            let len = (size - offset).min(CHUNK_BYTES) as usize;
            self.read(MAIN, offset, &mut buffer[..len])
                .map_err(into_error)?;
            chunk(&buffer[..len])?;
            offset += len as u64;
        }
        self.base.set(Some(image));
        self.file(MAIN).forget_written();
        Ok(())
    }

    /// Replaces the main file with image `image` of `size` bytes and deletes the journal. Writes only chunks
    /// that changed since the file held this image; `read` fills a buffer from an offset of the image.
    /// Returns the number of bytes written.
    pub(crate) fn replace_main(
        &self,
        image: u64,
        size: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> LabResult<()>,
    ) -> LabResult<u64> {
        self.file(MAIN).drain().map_err(into_error)?;
        if self.base.replace(None) != Some(image) {
            self.file(MAIN).remember_all_as_written();
        }
        let changed = self.file(MAIN).written_chunks();
        self.file(JOURNAL).clear();
        // Unwritten chunks still hold the image on the disk, even past the end of a file that was shortened.
        self.file(MAIN).adopt_size(size);
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        let mut written = 0;
        for offset in changed.into_iter().map(|chunk| chunk * CHUNK_BYTES) {
            if offset >= size {
                break;
            }
            let len = (size - offset).min(CHUNK_BYTES) as usize;
            read(offset, &mut buffer[..len])?;
            self.write(MAIN, offset, &buffer[..len])
                .map_err(into_error)?;
            written += len as u64;
        }
        self.file(MAIN).drain().map_err(into_error)?;
        self.disk.flush()?;
        self.journal_exists.set(false);
        self.layout.set_durable(Durable {
            main_bytes: size,
            journal_bytes: None,
        })?;
        self.base.set(Some(image));
        self.file(MAIN).forget_written();
        Ok(written)
    }

    /// Takes the disk's last error.
    pub(crate) fn take_disk_error(&self) -> Option<String> {
        self.disk_error.borrow_mut().take()
    }

    fn file(&self, index: usize) -> RefMut<'_, DatabaseFile> {
        self.files[index].borrow_mut()
    }

    fn noted<T>(
        &self,
        result: std::result::Result<T, FileError>,
    ) -> std::result::Result<T, FileError> {
        if let Err(FileError::Disk(error)) = &result {
            *self.disk_error.borrow_mut() = Some(error.to_string());
        }
        result
    }
}

fn into_error(error: FileError) -> crate::LabError {
    match error {
        FileError::Disk(error) => crate::LabError::Disk(error),
        FileError::Full => crate::LabError::Disk(io::Error::new(
            io::ErrorKind::StorageFull,
            "the volume is too small",
        )),
    }
}
