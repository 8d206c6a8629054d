//! State shared by the connections of one lane, state shared by all lanes, and the requests sent to lanes.

use std::{rc::Rc, sync::Arc};

use engine::{cross::OneshotSender, net::TcpStream, sync::Budget};
use front::{Accepts, Admission, Arrival, Limit, Listener, Newcomer, Peer, Tls};
use unit::{LaneUnits, Luns};

use crate::{config::NbdLimits, notices::NbdNotices};

/// The unit's number in every nexus.
pub(crate) const LUN: u32 = 0;

/// State shared by the connections of one lane.
pub(crate) struct NbdService {
    pub(crate) units: Rc<LaneUnits>,
    pub(crate) luns: Rc<Luns>,
    pub(crate) volume: String,
    pub(crate) read_only: bool,
    pub(crate) limits: NbdLimits,
    pub(crate) tls: Option<Tls>,
    /// The lane's turn to have a thread sign. Its connections take it in the order in which they came.
    pub(crate) signing: Rc<Budget>,
    pub(crate) everywhere: Arc<Everywhere>,
}

/// State of a server shared by all lanes; used only when connections come and go.
pub(crate) struct Everywhere {
    pub(crate) admission: Admission<Arrival<AcceptPolicy>>,
    pub(crate) notices: NbdNotices,
}

/// A request to a lane.
pub(crate) enum LaneMessage {
    /// Serve this connection.
    Serve(Newcomer<String>),
    /// End this connection, which is in its handshake, to make room for another.
    MakeRoom(u64),
    /// Answer the requests already accepted, then end all connections.
    Stop(OneshotSender<()>),
}

/// What the acceptor has to know.
pub(crate) struct AcceptPolicy {
    pub(crate) everywhere: Arc<Everywhere>,
    pub(crate) limits: NbdLimits,
}

impl Accepts for AcceptPolicy {
    type Request = LaneMessage;
    type Ends = String;
    const BEFORE_SESSION: &'static str = "was still in its handshake";

    fn admission(&self) -> &Admission<Arrival<AcceptPolicy>> {
        &self.everywhere.admission
    }

    fn ends(listener: &Listener, stream: &TcpStream) -> Option<(Peer, String)> {
        listener.peer(stream)
    }

    fn serve(newcomer: Newcomer<String>) -> LaneMessage {
        LaneMessage::Serve(newcomer)
    }

    fn make_room(id: u64) -> LaneMessage {
        LaneMessage::MakeRoom(id)
    }

    fn limit(&self, limit: Limit) -> String {
        let limit = match limit {
            Limit::Logins => self.limits.handshakes_max,
            Limit::LoginsPerPeer => self.limits.handshakes_per_peer_max,
        };
        limit.to_string()
    }

    fn sessions_max(&self) -> Option<usize> {
        Some(self.limits.connections_max)
    }
}
