//! What the connections of a lane have in common, and the lanes of a server.

use std::{
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize},
    },
};

use engine::{cross::OneshotSender, net::DetachedStream};
use unit::{LaneUnits, Luns};

use crate::{config::Limits, notices::Notices, tls::Tls};

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
#[derive(Default)]
pub(crate) struct Everywhere {
    pub(crate) connections: AtomicUsize,
    pub(crate) next_id: AtomicU64,
    pub(crate) notices: Notices,
}

/// What a lane is asked.
pub(crate) enum Request {
    /// Serve this connection.
    Serve(Newcomer),
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
