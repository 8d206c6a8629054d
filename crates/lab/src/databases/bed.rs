//! What a user names for a database to be placed on.

use std::path::PathBuf;

/// What a database is placed on.
#[derive(Clone, Debug)]
pub(crate) enum Bed {
    /// In a new directory inside this one.
    Directory(PathBuf),
    /// On a file system on this file or device.
    Disk(PathBuf),
    /// On a file system on this volume of a configuration, attached by this program.
    Volume {
        binary: PathBuf,
        configuration: PathBuf,
        volume: String,
    },
}

impl Bed {
    /// Whether it is a file system that has to be mounted first.
    pub(super) fn is_mounted(&self) -> bool {
        !matches!(self, Bed::Directory(_))
    }
}
