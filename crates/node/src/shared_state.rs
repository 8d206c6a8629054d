//! The state directory as a running program uses it: locked and worked on where that holds up no lane, because it is
//! files that are read and written.

use std::sync::{Arc, Mutex, PoisonError};

use engine::{Duration, blocking, time};

use crate::{StateError, state::StateDirectory};

/// How long recording new lengths may take when the state directory's disk stalls.
const NOTE_LIMIT: Duration = Duration::from_secs(5);

/// The state of a daemon or of an attached volume. It is locked on helper threads only, which hold it for as long as
/// they use files.
#[derive(Clone)]
pub(crate) struct SharedState(Arc<Mutex<StateDirectory>>);

impl SharedState {
    pub(crate) fn new(state: StateDirectory) -> SharedState {
        SharedState(Arc::new(Mutex::new(state)))
    }

    /// Runs `work` on the state where it holds up no lane: it uses files, or waits for others that do.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut StateDirectory) -> T + Send + 'static,
    ) -> Result<T, StateError> {
        let state = self.0.clone();
        aside(move || work(&mut state.lock().unwrap_or_else(PoisonError::into_inner))).await
    }

    /// Records the lengths of the files that have grown while they are used: a shorter file would be another one. A
    /// failure is only logged.
    pub(crate) async fn note_growth(&self) {
        let noting = self.run(StateDirectory::note_growth);
        match time::timeout(NOTE_LIMIT, noting).await {
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error)) | Err(error)) => {
                tracing::warn!(%error, "the new lengths of the files were not recorded");
            }
            None => tracing::warn!(
                "the new lengths of the files were not recorded within {NOTE_LIMIT:?}"
            ),
        }
    }
}

/// Runs `work`, which uses the files of a state directory, where it holds up no lane.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StateError> {
    let done = blocking::run(blocking::WorkKind::Files, work).await;
    done.map_err(StateError::io(
        "running work on the state directory".to_owned(),
    ))
}
