//! How much of a file's length is allocated, and how much its file system has left.

use std::{os::unix::fs::MetadataExt, path::Path};

use rustix::fs::statvfs;

use crate::description::Space;

/// The unit of a file's allocated blocks (stat(2)).
const STAT_BLOCK_BYTES: u64 = 512;

/// Of the regular file at `path`; `None` of anything else, and where nothing can be found out.
pub(crate) fn of(path: &Path) -> Option<Space> {
    let file = path.metadata().ok().filter(|file| file.is_file())?;
    let system = statvfs(path).ok()?;
    Some(Space {
        allocated_bytes: file.blocks() * STAT_BLOCK_BYTES,
        free_bytes: system.f_bavail.saturating_mul(system.f_frsize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_file_has_what_was_written_and_what_is_left() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk.img");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(1 << 30).expect("a sparse file");
        let space = of(&path).expect("a regular file");
        assert!(space.allocated_bytes < 1 << 20, "{space:?}");
        assert!(space.free_bytes > 0, "{space:?}");
        assert_eq!(of(directory.path()), None);
        assert_eq!(of(&directory.path().join("none")), None);
    }
}
