//! A directory for the shares' files. It is removed as soon as every process has opened what it needs. The
//! unlinked files then live as long as the processes, so nothing is left behind however the run ends.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{LabError, LabResult, nameless::nameless_file};

/// The directory; removed when this is dropped, if it still exists.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Removes the directory on drop.
    _own: TempDir,
}

impl Directory {
    /// Creates one in `parent`.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn new_in(parent: &Path) -> LabResult<Directory> {
        let make = || {
            let own = tempfile::Builder::new()
                .prefix("sanstone-demo-")
                .tempdir_in(parent)?;
            // The shares' configurations need an absolute path, wherever they are read from.
            let path = fs::canonicalize(own.path())?;
            Ok(Directory { path, _own: own })
        };
        make().map_err(|source| LabError::File {
            path: parent.to_owned(),
            source,
        })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fails if fewer than `bytes` are free.
    pub(super) fn require(&self, bytes: u64) -> LabResult<()> {
        let stat = rustix::fs::statvfs(&self.path).map_err(|error| self.failed(error.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free >= bytes {
            return Ok(());
        }
        let parent = self.path.parent().unwrap_or(&self.path);
        Err(LabError::Demo(format!(
            "the shares' files need {} MiB and {} has {} MiB free; name a directory with more \
             (--dir DIR), or load fewer rows (--rows N)",
            bytes.div_ceil(1 << 20),
            parent.display(),
            free >> 20,
        )))
    }

    /// Creates a file in it that has already been unlinked.
    pub(super) fn nameless_file(&self) -> LabResult<File> {
        nameless_file(&self.path)
    }

    /// Removes its contents.
    pub(super) fn clear(&self) -> LabResult<()> {
        self.remove()?;
        fs::create_dir(&self.path).map_err(|error| self.failed(error))
    }

    /// Removes it and its contents.
    pub(super) fn remove(&self) -> LabResult<()> {
        fs::remove_dir_all(&self.path).map_err(|error| self.failed(error))
    }

    fn failed(&self, source: std::io::Error) -> LabError {
        LabError::File {
            path: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_its_files_and_says_how_much_space_is_needed() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        let directory = Directory::new_in(parent).unwrap();
        let path = directory.path().to_owned();
        fs::write(path.join("share.img"), "x").unwrap();
        assert!(
            directory
                .nameless_file()
                .unwrap()
                .metadata()
                .unwrap()
                .is_file()
        );
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        directory.clear().unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        directory.require(1).unwrap();
        let error = directory.require(1 << 60).unwrap_err().to_string();
        let needed = format!("{} MiB", 1u64 << 40);
        assert!(
            error.contains(&needed) && error.contains(&*parent.to_string_lossy()),
            "{error}"
        );
        drop(directory);
        assert!(!path.exists());
    }
}
