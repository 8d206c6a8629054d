//! What lanes ask of each other about connections.

use std::net::SocketAddr;

use engine::{cross::OneshotSender, net::DetachedStream};

use crate::{config::ServerConfig, report::SessionReport};

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
    /// Describe all sessions.
    Report {
        done: OneshotSender<Vec<SessionReport>>,
    },
    /// End all sessions of a target.
    EndTarget { target: String },
    /// Make ready to serve what `config` says, and say whether that can be.
    Prepare {
        config: ServerConfig,
        done: OneshotSender<Result<(), String>>,
    },
    /// Do not serve what was made ready.
    Forget { done: OneshotSender<()> },
    /// Serve what was made ready, and say so when what is served no more has ended.
    Commit { done: OneshotSender<()> },
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
