//! The open files of a graph, so that their lengths and paths can be checked again; and the files created for a
//! configuration change that may have to be undone.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use super::OpenFile;

/// The open files; those no longer in use drop out.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    all: Vec<Weak<OpenFile>>,
    /// Those created since a trial began, kept open and therefore locked; `None`: there is no trial.
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

    /// Those still open.
    pub(crate) fn open(&self) -> impl Iterator<Item = Arc<OpenFile>> {
        self.all.iter().filter_map(Weak::upgrade)
    }

    /// Whether `path` leads to one of those. Blocks briefly.
    pub(super) fn are_at(&self, path: &Path) -> bool {
        self.open().any(|file| file.is_at(path))
    }

    /// Starts a trial: files created from now on may have to be removed again.
    pub(crate) fn begin_trial(&mut self) {
        self.made = Some(Vec::new());
    }

    /// Keeps the created files.
    pub(crate) fn keep_made(&mut self) {
        self.made = None;
    }

    /// Removes the created files, which nobody has used. Returns their paths; failures to remove are logged.
    pub(crate) fn remove_made(&mut self) -> Vec<PathBuf> {
        let mut removed = Vec::new();
        for file in self.made.take().into_iter().flatten() {
            let path = file.path().to_owned();
            match file.remove() {
                Ok(()) => removed.push(path),
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error,
                        "a file created by a failed attempt could not be removed");
                }
            }
        }
        removed
    }
}
