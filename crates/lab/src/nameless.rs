//! Files without a name: their space is freed when the process ends, however it ends.

use std::{fs::File, path::Path};

use crate::{LabError, LabResult};

/// Creates a file on the file system of `directory`, open for reading and writing, that either never had a
/// name or has already been unlinked.
///
/// # Errors
/// The system's error, with the directory.
pub(crate) fn nameless_file(directory: &Path) -> LabResult<File> {
    tempfile::tempfile_in(directory).map_err(|source| LabError::File {
        path: directory.to_owned(),
        source,
    })
}
