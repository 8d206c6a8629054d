//! State shared by the connections of one lane, state shared by all lanes, and the requests sent to lanes.

use std::{rc::Rc, sync::Arc};

use engine::{
    cross::{OneshotSender, Sender},
    net::DetachedStream,
    sync::Budget,
};
use front::Admission;
use unit::{LaneUnits, Luns};

use crate::{config::Limits, notices::Notices, tls::Tls};

/// The unit's number in every nexus.
pub(crate) const LUN: u32 = 0;

/// State shared by the connections of one lane.
pub(crate) struct Service {
    pub(crate) units: Rc<LaneUnits>,
    pub(crate) luns: Rc<Luns>,
    pub(crate) volume: String,
    pub(crate) read_only: bool,
    pub(crate) limits: Limits,
    pub(crate) tls: Option<Tls>,
    /// The lane's turn to have a thread sign. Its connections take it in the order in which they came.
    pub(crate) signing: Rc<Budget>,
    pub(crate) everywhere: Arc<Everywhere>,
}

/// State of a server shared by all lanes; used only when connections come and go.
pub(crate) struct Everywhere {
    pub(crate) admission: Admission<Guest>,
    pub(crate) notices: Notices,
}

/// A connection, as the accepting side knows it.
pub(crate) struct Guest {
    pub(crate) peer: String,
    /// The lane that serves it.
    pub(crate) lane: Sender<Request>,
}

/// A request to a lane.
pub(crate) enum Request {
    /// Serve this connection.
    Serve(Newcomer),
    /// End this connection, which is in its handshake, to make room for another.
    MakeRoom(u64),
    /// Answer the requests already accepted, then end all connections.
    Stop(OneshotSender<()>),
}

/// A connection that has been admitted.
pub(crate) struct Newcomer {
    pub(crate) id: u64,
    /// Describes the peer, for the log.
    pub(crate) peer: String,
    pub(crate) stream: DetachedStream,
}
