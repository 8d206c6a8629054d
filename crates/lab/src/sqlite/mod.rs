//! Runs SQLite on our disks without a file system. `disk` is what it needs of a volume, `layout` assigns
//! space to its files, `file` and `files` implement them, `vfs` presents them to SQLite, and this module
//! opens databases with the settings that every set-up shares.

mod disk;
mod file;
mod files;
mod image;
mod layout;
#[cfg(test)]
mod power_cut;
mod settings;
#[cfg(test)]
mod tests;
mod vfs;

use std::rc::Rc;

pub(crate) use disk::checked_range;
pub use disk::{BLOCK_BYTES, DatabaseDisk, MemoryDisk};
pub use image::Image;
pub use settings::Settings;

use crate::{LabError, LabResult};

/// A disk with the layout on it, holding one database.
pub struct DatabaseStore {
    files: Rc<files::Files>,
}

impl DatabaseStore {
    /// Writes an empty layout; any existing database is lost.
    ///
    /// # Errors
    /// The disk is too small, or fails.
    pub fn format(disk: Rc<dyn DatabaseDisk>) -> LabResult<Self> {
        Ok(Self {
            files: Rc::new(files::Files::format(disk)?),
        })
    }

    /// Opens the layout on the disk.
    ///
    /// # Errors
    /// The disk has no layout, or one of another version or size, or fails.
    pub fn open(disk: Rc<dyn DatabaseDisk>) -> LabResult<Self> {
        Ok(Self {
            files: Rc::new(files::Files::open_disk(disk)?),
        })
    }

    /// The disk size in bytes that a database of `database_bytes` needs for all of its files.
    pub fn disk_bytes_for(database_bytes: u64) -> u64 {
        layout::disk_bytes_for(database_bytes)
    }

    /// The size of the main database file in bytes.
    pub fn database_bytes(&self) -> u64 {
        self.files.size(layout::MAIN)
    }

    /// Opens the database, creating it if there is none; the first statement rolls back a transaction
    /// interrupted by a crash. Only one can be open at a time.
    ///
    /// # Errors
    /// SQLite's errors, including that the database is already open.
    pub fn database(&self, settings: &Settings) -> LabResult<Database> {
        let registration = vfs::RegisteredVfs::new(self.files.clone())?;
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE
            | rusqlite::OpenFlags::SQLITE_OPEN_CREATE
            | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let name = registration.name();
        let connection = rusqlite::Connection::open_with_flags_and_vfs(vfs::MAIN_NAME, flags, name)
            .map_err(|error| self.failed("opening the database", error))?;
        let files = self.files.clone();
        let database = Database {
            connection,
            _registration: registration,
            files,
        };
        settings.apply(&database)?;
        Ok(database)
    }

    fn failed(&self, doing: &str, source: rusqlite::Error) -> LabError {
        LabError::Sqlite {
            doing: doing.into(),
            source,
            disk: self.files.take_disk_error(),
        }
    }
}

/// An open database.
pub struct Database {
    // Declared before the registration: fields drop in order, and the connection uses the registration until
    // it closes.
    connection: rusqlite::Connection,
    _registration: vfs::RegisteredVfs,
    files: Rc<files::Files>,
}

impl Database {
    /// The connection, for everything else that SQLite can do.
    pub fn connection(&self) -> &rusqlite::Connection {
        &self.connection
    }

    /// Runs `body`; its error includes that it happened while `doing`, and the disk's error.
    ///
    /// # Errors
    /// The body's error.
    pub fn run<'a, T>(
        &'a self,
        doing: &str,
        body: impl FnOnce(&'a rusqlite::Connection) -> rusqlite::Result<T>,
    ) -> LabResult<T> {
        body(&self.connection).map_err(|source| LabError::Sqlite {
            doing: doing.into(),
            source,
            disk: self.files.take_disk_error(),
        })
    }

    /// Runs statements that return no rows.
    ///
    /// # Errors
    /// SQLite's error, with the disk's error that caused it.
    pub fn execute(&self, sql: &str) -> LabResult<()> {
        self.run(sql, |connection| connection.execute_batch(sql))
    }
}
