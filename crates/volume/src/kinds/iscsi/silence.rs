//! Whether the target of a session is silent: it has been asked to answer, and the answer is overdue. New requests go
//! another way from then on, long before the session counts as lost.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// The state of a session's target, as its own lane and the home lane see it.
#[derive(Clone, Debug, Default)]
pub(super) struct Silence(Arc<AtomicBool>);

// Relaxed: a request may as well be sent the old way for a moment longer.
impl Silence {
    /// Its answer is overdue.
    pub(super) fn begin(&self) {
        self.0.store(true, Relaxed);
    }

    /// Something has come from it.
    pub(super) fn end(&self) {
        // Most of what comes breaks no silence, and only looks at the shared word.
        if self.is_on() {
            self.0.store(false, Relaxed);
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.load(Relaxed)
    }
}
