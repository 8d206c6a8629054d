//! The text of a file that a user has named: a profile, the results of a run. Nothing else is waited for or read without
//! end.

use std::{io, path::Path};

use engine::store;

/// More than any of them has, in bytes.
const BYTES_MAX: usize = 64 << 20;

/// Reads all of it.
///
/// # Errors
/// Those of [`store::read_input`], or that it is not UTF-8.
pub fn read(path: &Path) -> io::Result<String> {
    let bytes = store::read_input(path, BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
