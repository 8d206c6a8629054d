//! A session on a lane other than the home lane, from that lane's side.

use std::rc::Rc;

use super::{
    cdb::CdbBytes,
    in_flight::InFlight,
    session::{Data, Reply, Session},
};
use crate::{Error, ErrorKind, Result};

/// A lane's own session with the logical unit.
pub(super) struct Own {
    pub(super) session: Rc<Session>,
    pub(super) in_flight: InFlight,
}

/// How a session has ended.
#[derive(Clone, Debug)]
pub(super) struct SessionEnd {
    pub(super) error: Error,
    /// Writes were outstanding at the target.
    pub(super) left_writes: bool,
}

impl SessionEnd {
    /// How `session` has ended, if it has.
    pub(super) fn of(session: &Session) -> Option<SessionEnd> {
        session.error().map(|error| SessionEnd {
            error,
            left_writes: session.has_left_writes(),
        })
    }
}

impl Own {
    /// Whether requests may be sent on it by a lane that knows of `doubts` of its doubts: it is not over, it leads to the
    /// disk as far as we know, its target is not silent, and has not asked for a logout.
    pub(super) fn takes_requests(&self, doubts: u64) -> bool {
        let session = &self.session;
        !session.is_over()
            && session.doubts() == doubts
            && !session.is_asked_to_log_out()
            && !session.silence().is_on()
    }

    /// Sends a command once.
    pub(super) async fn execute(&self, cdb: &CdbBytes, data: Data) -> Result<Reply> {
        let running = self.in_flight.begin();
        let replied = self.session.execute(self.session.lun(), cdb, data).await;
        if replied.is_ok() {
            running.answered();
        }
        replied
    }
}

/// Ends the session when dropped, which happens when the home lane no longer needs it.
pub(super) struct OwnedSession(pub(super) Rc<Own>);

impl Drop for OwnedSession {
    fn drop(&mut self) {
        let message = "the session is no longer used";
        let error = Error::new(ErrorKind::Unreachable, message);
        self.0.session.end(error);
    }
}
