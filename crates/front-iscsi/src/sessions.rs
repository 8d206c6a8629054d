//! The sessions of the whole server, whatever lane they are on: who is logged in where, so that a
//! new login of the same initiator port can end the old session first (reinstatement, RFC 7143
//! §6.3.5). Beside them is what else lanes share of logins: the limits on connections, failed
//! authentications, and the rates of the log.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use engine::cross::{OneshotReceiver, Sender, oneshot};
use iscsi::Isid;

use crate::{
    admission::{Admission, Places},
    failures::Failures,
    notices::Notices,
    request::Request,
};

/// The initiator port and target port of a session (RFC 7143 §4.4.3: what may exist once).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SessionKey {
    pub(crate) initiator_name: String,
    pub(crate) isid: Isid,
    pub(crate) target_name: String,
    pub(crate) portal_group_tag: u16,
}

struct Entry {
    connection: u64,
    tsih: u16,
    lane: Sender<Request>,
}

#[derive(Default)]
struct State {
    by_key: HashMap<SessionKey, Entry>,
    last_tsih: u16,
}

/// A connection before login: how to tell it to leave.
pub(crate) struct Arrival {
    pub(crate) peer: SocketAddr,
    pub(crate) lane: Sender<Request>,
}

/// Shared by all lanes; touched at login and logout, never for an I/O.
pub(crate) struct Sessions {
    state: Mutex<State>,
    pub(crate) admission: Admission<Arrival>,
    pub(crate) failures: Failures,
    pub(crate) notices: Notices,
}

impl Sessions {
    pub(crate) fn new(places: Places) -> Self {
        Sessions {
            state: Mutex::default(),
            admission: Admission::new(places),
            failures: Failures::default(),
            notices: Notices::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters `connection` under `key` if nobody is there, and gives its TSIH. Otherwise asks the
    /// older session to end: wait for the answer, then try again.
    pub(crate) fn enter(
        &self,
        key: &SessionKey,
        connection: u64,
        lane: &Sender<Request>,
    ) -> Result<u16, OneshotReceiver<()>> {
        let mut state = self.lock();
        if let Some(older) = state.by_key.get(key) {
            let (done, ended) = oneshot();
            let request = Request::EndSession {
                connection: older.connection,
                done,
            };
            if older.lane.send(request).is_ok() {
                return Err(ended);
            }
        }
        // 0 means "no session" (RFC 7143 §11.12.6).
        let tsih = state.last_tsih.checked_add(1).unwrap_or(1);
        state.last_tsih = tsih;
        state.by_key.insert(
            key.clone(),
            Entry {
                connection,
                tsih,
                lane: lane.clone(),
            },
        );
        Ok(tsih)
    }

    /// Whether the session under `key` is the one that an initiator calls `tsih`.
    pub(crate) fn has(&self, key: &SessionKey, tsih: u16) -> bool {
        let state = self.lock();
        state
            .by_key
            .get(key)
            .is_some_and(|entry| entry.tsih == tsih)
    }

    /// Takes the entry of `connection` out, if it still is the one under `key`.
    pub(crate) fn remove(&self, key: &SessionKey, connection: u64) {
        let mut state = self.lock();
        if state
            .by_key
            .get(key)
            .is_some_and(|entry| entry.connection == connection)
        {
            state.by_key.remove(key);
        }
    }
}
