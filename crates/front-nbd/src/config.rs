//! The configuration of an NBD server: what it serves, and its limits.

use engine::Duration;
use front::{PlaceLimits, Tls};

/// Limits on what clients may use.
#[derive(Clone, Copy, Debug)]
pub struct NbdLimits {
    /// Maximum number of clients past their handshake.
    pub connections_max: usize,
    /// Maximum number of connections in their handshake; beyond it, one makes room for a new one.
    pub handshakes_max: usize,
    /// How many of these one host may have, or one user of a Unix socket.
    pub handshakes_per_peer_max: usize,
    /// Maximum number of open requests per connection, counting those whose replies are still unsent. Further
    /// requests are not read from the socket.
    pub requests_max: usize,
    /// Maximum time from the start of a connection to its transmission phase.
    pub handshake_time: Duration,
    /// How long a client may take to accept replies; twice as long to finish sending a request it has begun.
    pub peer_time: Duration,
    /// After this much silence the kernel probes whether the client is still there (TCP keepalive).
    pub idle_time: Duration,
}

impl NbdLimits {
    /// The places that they provide.
    pub(crate) fn places(&self) -> PlaceLimits {
        PlaceLimits {
            sessions: self.connections_max,
            reserved: 0,
            logins: self.handshakes_max,
            logins_per_peer: self.handshakes_per_peer_max,
        }
    }
}

impl Default for NbdLimits {
    fn default() -> NbdLimits {
        NbdLimits {
            connections_max: 256,
            handshakes_max: 2048,
            handshakes_per_peer_max: 1024,
            requests_max: 128,
            handshake_time: Duration::from_secs(10),
            peer_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(60),
        }
    }
}

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    /// The volume's name, which is also the export's name.
    pub volume: String,
    /// The relative target port identifier under which the volume knows this server.
    pub relative_port: u16,
    /// Whether writes are refused even if the volume accepts them.
    pub read_only: bool,
    /// Limits on what clients may use.
    pub limits: NbdLimits,
    /// If set, TLS is mandatory for every client.
    pub tls: Option<Tls>,
}
