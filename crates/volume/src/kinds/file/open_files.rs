//! The files of a graph that are open, to look at them again.

use std::sync::{Arc, Weak};

use super::OpenFile;

/// The open files; what nobody has any more is forgotten.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles(Vec<Weak<OpenFile>>);

impl OpenFiles {
    pub(super) fn add(&mut self, file: &Arc<OpenFile>) {
        self.0.retain(|file| file.strong_count() > 0);
        self.0.push(Arc::downgrade(file));
    }

    /// Those that are still open.
    pub(crate) fn open(&self) -> impl Iterator<Item = Arc<OpenFile>> {
        self.0.iter().filter_map(Weak::upgrade)
    }
}
