//! Rate limits for log lines about clients: anybody can trigger them by connecting, so each kind is limited, and a
//! line says how many were suppressed before it.

use std::sync::{Mutex, PoisonError};

use engine::{
    Instant,
    rate::{Rate, Suppressed},
};

/// A kind of log line; each has its own rate limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notice {
    /// A client connected, or left in good order.
    Client,
    /// A connection was refused, ended early, or could not be accepted.
    Trouble,
}

/// Shared by all lanes; used only when connections come and go.
#[derive(Default, Debug)]
pub(crate) struct Notices(Mutex<[Rate; 2]>);

impl Notices {
    /// Whether a line of this kind may be written now, and if so, how many were suppressed before it.
    pub(crate) fn may_say(&self, notice: Notice, now: Instant) -> Option<Suppressed> {
        let mut rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rates[notice as usize].take(now)
    }
}
