//! The files of a graph that are open, to look at them again; and those that were made for a change that may
//! have to be taken back.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use super::OpenFile;

/// The open files; what nobody has any more is forgotten.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    all: Vec<Weak<OpenFile>>,
    /// Those that were made since a trial began, kept open and with that locked; `None`: this is no trial.
    made: Option<Vec<Arc<OpenFile>>>,
}

impl OpenFiles {
    pub(super) fn add(&mut self, file: &Arc<OpenFile>) {
        self.all.retain(|file| file.strong_count() > 0);
        self.all.push(Arc::downgrade(file));
        if let Some(made) = self.made.as_mut().filter(|_| file.is_new()) {
            made.push(file.clone());
        }
    }

    /// Those that are still open.
    pub(crate) fn open(&self) -> impl Iterator<Item = Arc<OpenFile>> {
        self.all.iter().filter_map(Weak::upgrade)
    }

    /// Whether `path` leads to one of those. Blocks briefly.
    pub(super) fn are_at(&self, path: &Path) -> bool {
        self.open().any(|file| file.is_at(path))
    }

    /// Files that are made from now on may have to go again.
    pub(crate) fn begin_trial(&mut self) {
        self.made = Some(Vec::new());
    }

    /// What was made stays.
    pub(crate) fn keep_made(&mut self) {
        self.made = None;
    }

    /// Removes what was made, which nobody has used. Gives the paths; one that cannot be removed is told
    /// to the log.
    pub(crate) fn remove_made(&mut self) -> Vec<PathBuf> {
        let mut removed = Vec::new();
        for file in self.made.take().into_iter().flatten() {
            let path = file.path().to_owned();
            match file.remove() {
                Ok(()) => removed.push(path),
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "a file that was made in vain stays");
                }
            }
        }
        removed
    }
}
