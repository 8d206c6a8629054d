//! A test's private directory, removed at its end. `SANSTONE_KEEP=1` keeps it for inspection.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A fresh directory that lives as long as this value.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// Makes an empty directory below the system's one for temporary files (`TMPDIR`).
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn new() -> Directory {
        Directory::below(&std::env::temp_dir())
    }

    /// The same in memory (`/dev/shm`), for backing files whose speed must not count.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn in_memory() -> Directory {
        Directory::below(Path::new("/dev/shm"))
    }

    fn below(parent: &Path) -> Directory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("sanstone-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        Directory(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file in it; the file itself is not touched.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file in it and returns its path.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, contents)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        path
    }

    /// Writes a file that only its user may read, as one with a secret has to be; returns its path.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn secret(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.write(name, contents);
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, private).expect("it is ours");
        path
    }

    /// Makes a sparse file of `size_bytes` zeroes in it and returns its path.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn sparse(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.join(name);
        std::fs::File::create(&path)
            .and_then(|file| file.set_len(size_bytes))
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        path
    }
}

impl Default for Directory {
    fn default() -> Directory {
        Directory::new()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if std::env::var_os("SANSTONE_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
