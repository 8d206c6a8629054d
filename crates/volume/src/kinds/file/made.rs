//! The files that an attempt creates, so that they can be removed again if it fails. A file is recorded by the call that
//! creates it, and that call may hang for longer than anybody waits for it. If the attempt has been undone meanwhile, the
//! call itself removes what it has created.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use engine::{
    fs::{OpenOptions, SharedFile, remove},
    store,
};

/// The created files by path; `None`: they were removed.
#[derive(Debug)]
pub(crate) struct Made(Mutex<Option<BTreeMap<PathBuf, Created>>>);

/// A created file.
#[derive(Debug)]
struct Created {
    /// Where it is: its path may be a symbolic link.
    place: PathBuf,
    /// Kept open, so that no other file is taken for it.
    file: SharedFile,
    /// Kept open, so that no other process begins to use it; `None`: it could not be locked yet.
    locked: Option<SharedFile>,
}

impl Default for Made {
    fn default() -> Self {
        Made(Mutex::new(Some(BTreeMap::new())))
    }
}

impl Made {
    /// Records that `file` was just created for `path`, at `place`, and is open as `locked` if it has been locked. Blocks.
    ///
    /// # Errors
    /// If the attempt has been undone; the file is removed then.
    pub(super) fn add(
        &self,
        path: &Path,
        place: &Path,
        file: SharedFile,
        locked: Option<SharedFile>,
    ) -> io::Result<()> {
        let place = place.to_owned();
        let created = Created {
            place,
            file,
            locked,
        };
        if let Some(made) = &mut *self.lock() {
            made.insert(path.to_owned(), created);
            return Ok(());
        }
        let _ = created.remove();
        Err(io::Error::other("nobody waits for the file any more"))
    }

    /// Removes all of them, which nobody has used, and from now on what is added. Returns their resolved paths; failures
    /// to remove are logged. Blocks.
    pub(crate) fn undo(&self) -> Vec<PathBuf> {
        let made = self.lock().take().unwrap_or_default();
        let removed = made.into_iter().filter_map(|(path, created)| {
            if let Err(error) = created.remove() {
                tracing::warn!(file = %path.display(), %error,
                    "a file created by a failed attempt could not be removed");
                return None;
            }
            Some(store::resolve(&path).unwrap_or(path))
        });
        removed.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<PathBuf, Created>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Created {
    /// Removes it durably, if it is still at its place.
    ///
    /// # Errors
    /// Also if another process uses it.
    fn remove(self) -> io::Result<()> {
        let lock = OpenOptions {
            write: true,
            lock: true,
            ..OpenOptions::default()
        };
        let _locked = match self.locked {
            Some(locked) => locked,
            None => self.file.reopen(&lock)?,
        };
        if self.file.is_at(&self.place) {
            remove(&self.place)?;
            store::sync(&store::parent_of(&self.place))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use engine::{Lane, LaneConfig};

    use super::*;
    use crate::{graph::tests::graph, scratch::Scratch};

    fn create(path: &Path) -> SharedFile {
        let new = OpenOptions {
            write: true,
            create_new: true,
            ..OpenOptions::default()
        };
        SharedFile::open(path, &new).expect("a new file")
    }

    fn lock(path: &Path) -> io::Result<SharedFile> {
        let lock = OpenOptions {
            write: true,
            lock: true,
            ..OpenOptions::default()
        };
        SharedFile::open(path, &lock)
    }

    #[test]
    fn what_was_created_is_removed_and_nothing_else() {
        let scratch = Scratch::new();
        let path = |name: &str| scratch.file(name);
        let made = Made::default();
        for name in ["free", "used", "replaced"] {
            made.add(&path(name), &path(name), create(&path(name)), None)
                .expect("it is not undone");
        }
        let (locked, file) = (lock(&path("locked")), create(&path("own")));
        made.add(&path("own"), &path("own"), file, locked.ok())
            .expect("it is not undone");
        let used = lock(&path("used"));
        std::fs::remove_file(path("replaced")).expect("it is there");
        let replaced = create(&path("replaced"));
        made.undo();
        let stays = |name: &str| path(name).exists();
        assert_eq!(["free", "own"].map(stays), [false, false]);
        assert_eq!(["used", "replaced"].map(stays), [true, true]);
        drop((used, replaced));
        // The call that creates one more has hung until now.
        let late = create(&path("late"));
        let undone = made.add(&path("late"), &path("late"), late, None);
        undone.expect_err("nobody waits for it");
        assert!(!stays("late"));
    }

    #[test]
    fn a_file_created_through_a_dangling_link_is_removed_again_and_the_link_stays() {
        let scratch = Scratch::new();
        let text = r#"disk.file = { path = "link", size = "1MiB" }"#;
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, scratch.file(at));
        std::fs::create_dir(scratch.file("elsewhere")).expect("room");
        link("elsewhere/on", "link").expect("room");
        link("../there", "elsewhere/on").expect("room");
        let lane = Lane::new(&LaneConfig::default()).expect("a ring");
        lane.block_on(async {
            let mut graph = graph(text, scratch.path());
            graph.begin_trial();
            let tree = graph.open("disk", &lane.handle()).await.expect("it opens");
            assert!(scratch.file("there").exists(), "it is where the links lead");
            drop(tree);
            // By the name that it was asked for.
            let removed = graph.remove_made().await;
            assert_eq!(removed, [scratch.file("link")]);
            assert!(!scratch.file("there").exists(), "it is removed");
            assert!(scratch.file("link").is_symlink() && scratch.file("elsewhere/on").is_symlink());
            graph.begin_trial();
            let tree = graph.open("disk", &lane.handle()).await.expect("it opens");
            graph.keep_made();
            drop(tree);
            assert!(scratch.file("there").exists(), "it stays");
        });
    }
}
