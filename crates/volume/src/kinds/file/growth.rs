//! A file that grows while it is open. The user says when to check (SIGHUP); the leaf then has its new length on
//! every lane, and so have the layers above it.

use std::{io, path::PathBuf};

use super::{OpenFile, open::configuration};
use crate::{Error, Len, Result};

/// A file whose new length the leaf has adopted.
#[derive(Clone, Debug)]
pub struct Grown {
    /// The file's path.
    pub path: PathBuf,
    /// The leaf's previous length, in bytes.
    pub from_bytes: u64,
    /// Its current length, shared with the volumes that follow it.
    pub len: Len,
}

impl OpenFile {
    /// The file's current length, in bytes. Blocks for as long as its file system takes.
    ///
    /// # Errors
    /// Any error the system reports.
    pub fn len_bytes_now(&self) -> io::Result<u64> {
        self.medium.io.len_bytes_now()
    }

    /// Adopts the length that was `found` if the file has grown; `None`: it has not.
    ///
    /// # Errors
    /// Why the length is not followed, and what to do: it is unknown, the file is shorter than the volume, a configured
    /// size limits it, or its end lies within a block.
    pub fn follow_length(&self, found: io::Result<u64>) -> Result<Option<Grown>> {
        let shown = self.path.display();
        let found =
            found.map_err(|error| Error::io(format_args!("the length of {shown}"), &error))?;
        let len = self.shape.len_bytes();
        let opened = self.opened_bytes;
        let unit = u64::from(self.align_bytes.max(self.shape.block_size_bytes));
        if found < len {
            return Err(configuration(format!(
                "{shown} was truncated: it has {found} bytes, but {len} are served. Data beyond \
                 its end is lost, and I/O to it fails. A disk cannot shrink: restore the file's \
                 length (truncate -s {len}) and check the data"
            )));
        }
        if self.has_size && found > opened {
            return Err(configuration(format!(
                "{shown} has grown from {opened} to {found} bytes, but its configured size keeps \
                 the volume at {len}; set size = \"{}B\" or remove size, then restart",
                found / unit * unit
            )));
        }
        if self.has_size || found == len {
            return Ok(None);
        }
        if found % unit != 0 {
            return Err(configuration(format!(
                "{shown} has grown from {len} to {found} bytes, which is not a multiple of {unit}; \
                 extend it (truncate -s {}) and try again",
                found.next_multiple_of(unit)
            )));
        }
        self.shape.len.grow(found);
        Ok(Some(Grown {
            path: self.path.clone(),
            from_bytes: len,
            len: self.shape.len.clone(),
        }))
    }
}
