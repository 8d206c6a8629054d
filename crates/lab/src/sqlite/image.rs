//! A fresh copy in little time: the loaded database is kept once as a file on this machine, and
//! putting it back writes only what has changed since. Both are outside every timed run.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use super::Store;
use crate::{Error, Result};

/// The database of one store at one time.
pub struct Image {
    /// Without a name in the directory: it goes with the process, however that ends.
    file: File,
    path: PathBuf,
    bytes: u64,
    /// Tells images of this process apart.
    id: u64,
}

impl Image {
    /// Copies a store's database to a nameless file in `directory`.
    ///
    /// # Errors
    /// The disk's or the directory's.
    pub fn capture(store: &Store, directory: &Path) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("sanstone-image-{}-{id}", std::process::id()));
        let failed = |source| Error::File {
            path: path.clone(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(failed)?;
        std::fs::remove_file(&path).map_err(failed)?;
        store
            .files
            .read_main(id, |chunk| file.write_all(chunk).map_err(failed))?;
        Ok(Self {
            file,
            bytes: store.database_bytes(),
            path,
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
                self.file
                    .read_exact_at(buffer, offset)
                    .map_err(|source| Error::File {
                        path: self.path.clone(),
                        source,
                    })
            })
    }
}
