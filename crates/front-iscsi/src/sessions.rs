//! The registry of all sessions of the server, on whatever lane: which initiator port is logged in where, so that a
//! new login of the same port can first end the old session (reinstatement, RFC 7143 §6.3.5). Also holds the rest of
//! the login state that lanes share: connection limits, failed authentications, and log rate limits.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{
    cross::{OneshotReceiver, Sender, oneshot},
    net::TcpStream,
};
use front::{Accepts, Admission, Arrival, Limit, Listener, Newcomer, Peer, PlaceLimits};
use iscsi::Isid;

use crate::{
    failures::Failures,
    notices::IscsiNotices,
    portals,
    request::{Ends, LaneRequest},
};

/// The initiator port and target port of a session; at most one session may exist for each pair (RFC 7143 §4.4.3).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SessionKey {
    pub(crate) initiator_name: String,
    pub(crate) isid: Isid,
    pub(crate) target_name: String,
    pub(crate) portal_group_tag: u16,
}

struct LiveSession {
    connection: u64,
    tsih: u16,
    lane: Sender<LaneRequest>,
}

#[derive(Default)]
struct SessionTable {
    by_key: HashMap<SessionKey, LiveSession>,
    last_tsih: u16,
}

/// Shared by all lanes; used at login and logout, never for an I/O.
pub(crate) struct Sessions {
    state: Mutex<SessionTable>,
    pub(crate) admission: Admission<Arrival<AcceptPolicy>>,
    pub(crate) failures: Failures,
    pub(crate) notices: IscsiNotices,
}

impl Sessions {
    pub(crate) fn new(places: PlaceLimits) -> Self {
        Sessions {
            state: Mutex::default(),
            admission: Admission::new(places),
            failures: Failures::default(),
            notices: IscsiNotices::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers `connection` under `key` if the key is free, and returns its TSIH. Otherwise asks the older session
    /// to end; the caller waits for the answer, then tries again.
    pub(crate) fn enter(
        &self,
        key: &SessionKey,
        connection: u64,
        lane: &Sender<LaneRequest>,
    ) -> Result<u16, OneshotReceiver<()>> {
        let mut state = self.lock();
        if let Some(older) = state.by_key.get(key) {
            let (done, ended) = oneshot();
            let request = LaneRequest::EndSession {
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
            LiveSession {
                connection,
                tsih,
                lane: lane.clone(),
            },
        );
        Ok(tsih)
    }

    /// Whether a session with this TSIH is registered under `key`.
    pub(crate) fn has(&self, key: &SessionKey, tsih: u16) -> bool {
        let state = self.lock();
        state
            .by_key
            .get(key)
            .is_some_and(|entry| entry.tsih == tsih)
    }

    /// Removes the entry of `connection`, if it is still the one registered under `key`.
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

/// What the acceptor has to know: connections wait for a place at the end of their login, where they can be told.
pub(crate) struct AcceptPolicy(pub(crate) Arc<Sessions>);

impl Accepts for AcceptPolicy {
    type Request = LaneRequest;
    type Ends = Ends;
    const BEFORE_SESSION: &'static str = "had not logged in";

    fn admission(&self) -> &Admission<Arrival<AcceptPolicy>> {
        &self.0.admission
    }

    fn ends(_: &Listener, stream: &TcpStream) -> Option<(Peer, Ends)> {
        let (local, peer) = stream.addresses().ok()?;
        let (local, peer) = (portals::plain(local), portals::plain(peer));
        Some((Peer::of(peer.ip()), Ends { peer, local }))
    }

    fn serve(newcomer: Newcomer<Ends>) -> LaneRequest {
        LaneRequest::Serve(newcomer)
    }

    fn make_room(connection: u64) -> LaneRequest {
        LaneRequest::MakeRoom { connection }
    }

    fn limit(&self, limit: Limit) -> String {
        let limit = match limit {
            Limit::Logins => "limits.logins",
            Limit::LoginsPerPeer => "limits.logins_per_peer",
        };
        limit.to_owned()
    }

    fn sessions_max(&self) -> Option<usize> {
        None
    }
}
