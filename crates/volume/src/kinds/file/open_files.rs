//! The open files of a graph, so that their lengths and paths can be checked again.

use std::sync::{Arc, Weak};

use super::{OpenFile, made::Made};

/// The open files; those no longer in use drop out.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    all: Vec<Weak<OpenFile>>,
    /// What is created during a trial; `None`: there is no trial.
    trial: Option<Arc<Made>>,
}

impl OpenFiles {
    pub(super) fn add(&mut self, file: &Arc<OpenFile>) {
        self.all.retain(|file| file.strong_count() > 0);
        self.all.push(Arc::downgrade(file));
    }

    /// Those still open.
    pub(crate) fn open(&self) -> impl Iterator<Item = Arc<OpenFile>> {
        self.all.iter().filter_map(Weak::upgrade)
    }

    /// Starts a trial: files created from now on may have to be removed again.
    pub(crate) fn begin_trial(&mut self) {
        self.trial = Some(Arc::default());
    }

    /// Where files created during the trial are recorded; `None`: there is no trial.
    pub(super) fn trial(&self) -> Option<&Arc<Made>> {
        self.trial.as_ref()
    }

    /// Ends the trial; returns the files created during it.
    pub(crate) fn end_trial(&mut self) -> Option<Arc<Made>> {
        self.trial.take()
    }
}
