//! Files without a name: they take their space with them when the process ends, however it ends.

use std::{fs::File, path::Path};

use crate::{Error, Result};

/// A new file on the file system of `directory`, to read and write, that never has a name or has
/// lost it already.
///
/// # Errors
/// The system's, with the directory.
pub(crate) fn nameless_file(directory: &Path) -> Result<File> {
    tempfile::tempfile_in(directory).map_err(|source| Error::File {
        path: directory.to_owned(),
        source,
    })
}
