//! How often the log speaks of clients: what anybody can cause by connecting has a rate, and a line says how many
//! were left out before it.

use std::sync::{Mutex, PoisonError};

use engine::{
    Instant,
    rate::{Rate, Suppressed},
};

/// What a line is about; each has a rate of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notice {
    /// A client comes or leaves in good order.
    Client,
    /// A connection is refused, ended or could not be accepted.
    Trouble,
}

/// Shared by all lanes; touched when connections come and go.
#[derive(Default, Debug)]
pub(crate) struct Notices(Mutex<[Rate; 2]>);

impl Notices {
    /// Whether a line of this kind may be written now: then how many were left out before it.
    pub(crate) fn may_say(&self, notice: Notice, now: Instant) -> Option<Suppressed> {
        let mut rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rates[notice as usize].take(now)
    }
}
