//! What the connections of a lane have in common, and the lanes of a server.

use std::{rc::Rc, sync::Arc};

use engine::{
    cross::{OneshotSender, Sender},
    net::DetachedStream,
};
use unit::{LaneUnits, Luns};

use crate::{config::Limits, notices::Notices, places::Places, tls::Tls};

/// The number of the unit for every nexus.
pub(crate) const LUN: u32 = 0;

/// What the connections of a lane have in common.
pub(crate) struct Service {
    pub(crate) units: Rc<LaneUnits>,
    pub(crate) luns: Rc<Luns>,
    pub(crate) volume: String,
    pub(crate) read_only: bool,
    pub(crate) limits: Limits,
    pub(crate) tls: Option<Tls>,
    pub(crate) everywhere: Arc<Everywhere>,
}

/// What all lanes share of a server; touched when connections come and go.
pub(crate) struct Everywhere {
    pub(crate) places: Places<Guest>,
    pub(crate) notices: Notices,
}

/// A connection in its handshake, as the door knows it.
pub(crate) struct Guest {
    pub(crate) peer: String,
    /// Where it is.
    pub(crate) lane: Sender<Request>,
}

/// What a lane is asked.
pub(crate) enum Request {
    /// Serve this connection.
    Serve(Newcomer),
    /// End this connection, which is in its handshake: another one needs its place.
    MakeRoom(u64),
    /// Answer what was accepted, then end all connections.
    Stop(OneshotSender<()>),
}

/// A connection that has been let in.
pub(crate) struct Newcomer {
    pub(crate) id: u64,
    /// For people: who it is.
    pub(crate) peer: String,
    pub(crate) stream: DetachedStream,
}
