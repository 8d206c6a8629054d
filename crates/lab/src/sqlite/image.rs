//! A fresh copy in little time: the loaded database is kept once as a file on this machine, and
//! putting it back writes only what has changed since. Both are outside every timed run.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU64, Ordering},
};

use super::Store;
use crate::{Error, Result};

/// The database of one store at one time.
pub struct Image {
    file: File,
    bytes: u64,
    /// Tells images of this process apart.
    id: u64,
}

impl Image {
    /// Copies a store's database to `file`, which is empty.
    ///
    /// # Errors
    /// The disk's or the file's.
    pub fn capture(store: &Store, mut file: File) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        store
            .files
            .read_main(id, |chunk| file.write_all(chunk).map_err(failed))?;
        Ok(Self {
            file,
            bytes: store.database_bytes(),
            id,
        })
    }

    /// Size of the database in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes `store` hold the image, durably. A store that holds it already, changed here and
    /// there, gets only the changed MiB written. Returns how many bytes were.
    ///
    /// # Errors
    /// The disk's or the image file's; an open database is refused.
    pub fn restore(&self, store: &Store) -> Result<u64> {
        if store.files.any_open() {
            return Err(Error::Unusable(
                "a copy cannot be put under an open database".into(),
            ));
        }
        store
            .files
            .replace_main(self.id, self.bytes, |offset, buffer| {
                self.file.read_exact_at(buffer, offset).map_err(failed)
            })
    }
}

fn failed(source: io::Error) -> Error {
    Error::File {
        path: "the copy of the database".into(),
        source,
    }
}
