//! How often the log speaks of clients: what anybody can cause by connecting has a rate, and a line says how many
//! were left out before it.

use std::sync::{Mutex, PoisonError};

use engine::{
    Instant,
    rate::{Rate, Suppressed},
};

/// Shared by all lanes; touched when connections come and go.
#[derive(Default, Debug)]
pub(crate) struct Notices(Mutex<Rate>);

impl Notices {
    /// Whether a line may be written now: then how many were left out before it.
    pub(crate) fn may_say(&self, now: Instant) -> Option<Suppressed> {
        let mut rate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rate.take(now)
    }
}
