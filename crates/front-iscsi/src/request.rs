//! The requests that lanes send each other about connections.

use std::{fmt, net::SocketAddr};

use engine::cross::OneshotSender;
use front::Newcomer;

use crate::{config::ServerConfig, report::SessionReport};

/// A request to another lane.
pub(crate) enum LaneRequest {
    /// Serve this connection.
    Serve(Newcomer<Ends>),
    /// Close a connection that has not logged in, to make room for others.
    MakeRoom { connection: u64 },
    /// End a connection, and report when all its I/O has ended.
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
    /// Prepare to serve `config`, and report whether that is possible.
    Prepare {
        config: ServerConfig,
        done: OneshotSender<Result<(), String>>,
    },
    /// Discard the prepared configuration.
    Forget { done: OneshotSender<()> },
    /// Serve the prepared configuration, and report when everything no longer served has ended.
    Commit { done: OneshotSender<()> },
    /// Answer the commands already accepted, then end all connections.
    Stop { done: OneshotSender<()> },
}

/// The addresses of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) peer: SocketAddr,
    /// The portal's address as seen by the peer.
    pub(crate) local: SocketAddr,
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(f)
    }
}
