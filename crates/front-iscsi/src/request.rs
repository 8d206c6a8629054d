//! What lanes ask of each other about connections.

use std::net::SocketAddr;

use engine::{cross::OneshotSender, net::DetachedStream};

/// What other lanes ask of this one.
pub(crate) enum Request {
    /// Serve this connection.
    Serve(Newcomer),
    /// End that connection, which has not logged in: others need its place.
    MakeRoom { connection: u64 },
    /// End that connection and say when all its I/O has ended.
    EndSession {
        connection: u64,
        done: OneshotSender<()>,
    },
    /// End all sessions of a target.
    EndTarget { target: usize },
    /// Finish what was accepted, then end all connections.
    Stop { done: OneshotSender<()> },
}

/// A connection that has been let in.
pub(crate) struct Newcomer {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    /// The portal's address as the peer knows it.
    pub(crate) local: SocketAddr,
    pub(crate) stream: DetachedStream,
}
