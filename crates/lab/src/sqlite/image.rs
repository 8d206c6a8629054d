//! Fast restoration of a fresh copy: the loaded database is saved once as a local file, and restoring it
//! writes only what has changed since. Both happen outside every timed run.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    sync::atomic::{AtomicU64, Ordering},
};

use super::DatabaseStore;
use crate::{LabError, LabResult};

/// A snapshot of a store's database.
pub struct Image {
    file: File,
    bytes: u64,
    /// Distinguishes the images of this process.
    id: u64,
}

impl Image {
    /// Copies a store's database to `file`, which must be empty.
    ///
    /// # Errors
    /// An error of the disk or the file.
    pub fn capture(store: &DatabaseStore, mut file: File) -> LabResult<Self> {
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

    /// Makes `store` hold the image, durably. If the store holds a modified copy of it, only the changed MiB
    /// are written. Returns the number of bytes written.
    ///
    /// # Errors
    /// An error of the disk or the image file, or the database is open.
    pub fn restore(&self, store: &DatabaseStore) -> LabResult<u64> {
        if store.files.any_open() {
            return Err(LabError::Unusable(
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

fn failed(source: io::Error) -> LabError {
    LabError::File {
        path: "the copy of the database".into(),
        source,
    }
}
