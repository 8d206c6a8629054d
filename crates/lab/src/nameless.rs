//! Files without a name: they take their space with them when the process ends, however it ends.

use std::{
    fs::{File, OpenOptions},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{Error, Result};

/// A new file on the file system of `directory`, to read and write, that has lost its name already.
///
/// # Errors
/// The system's, with the path.
pub(crate) fn nameless_file(directory: &Path) -> Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("sanstone-{}-{number}.tmp", std::process::id()));
    let make = || {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    };
    make().map_err(|source| Error::File {
        path: path.clone(),
        source,
    })
}
