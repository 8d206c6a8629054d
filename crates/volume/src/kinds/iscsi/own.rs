//! A session on another lane than the home lane, as that lane has it.

use std::rc::Rc;

use iscsi::LunField;

use super::{
    cdb::Cdb,
    in_flight::InFlight,
    session::{Data, Reply, Session},
};
use crate::{Error, ErrorKind, Result};

/// A lane's own session with the logical unit.
pub(super) struct Own {
    pub(super) session: Rc<Session>,
    pub(super) lun: LunField,
    pub(super) in_flight: InFlight,
}

/// How a session has ended.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) error: Error,
    /// The target had writes of it.
    pub(super) left_writes: bool,
}

impl End {
    /// How `session` has ended, if it has.
    pub(super) fn of(session: &Session) -> Option<End> {
        session.error().map(|error| End {
            error,
            left_writes: session.has_left_writes(),
        })
    }
}

impl Own {
    /// Whether requests may be sent on it: it is not over, and not asked to be.
    pub(super) fn takes_requests(&self) -> bool {
        !self.session.is_over() && !self.session.is_asked_to_log_out()
    }

    /// Sends a command once.
    pub(super) async fn execute(&self, cdb: &Cdb, data: Data) -> Result<Reply> {
        let running = self.in_flight.begin();
        let replied = self.session.execute(self.lun, cdb, data).await;
        if replied.is_ok() {
            running.answered();
        }
        replied
    }
}

/// It ends with this, when the home lane wants it no longer.
pub(super) struct Kept(pub(super) Rc<Own>);

impl Drop for Kept {
    fn drop(&mut self) {
        let message = "nobody uses the session any more";
        let error = Error::new(ErrorKind::Unreachable, message);
        self.0.session.end(error);
    }
}
