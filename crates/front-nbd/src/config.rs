//! Where a server is, what it serves, and within which limits.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use engine::Duration;

use crate::tls::Tls;

/// Where clients come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// An address and a port of TCP; port 0 takes any free one.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// What was written is no address for a server.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is no place to listen at: write `unix:PATH`, or an address and a port as `127.0.0.1:10809` or `[::]:10809`"
)]
pub struct NoAddress(String);

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Address, NoAddress> {
        let none = || NoAddress(text.to_owned());
        match text.strip_prefix("unix:") {
            Some("") => Err(none()),
            Some(path) => Ok(Address::Unix(path.into())),
            None => text.parse().map(Address::Tcp).map_err(|_| none()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Clients at a time, from the end of their handshake.
    pub connections_max: usize,
    /// Connections in their handshake at a time; the oldest makes room for a further one.
    pub handshakes_max: usize,
    /// Requests of one connection that are open, their replies included: what it sends beyond them waits in the
    /// network.
    pub requests_max: usize,
    /// From a connection's beginning to its transmission.
    pub handshake_time: Duration,
    /// For a client to take its replies; twice as long, to send the rest of what it has begun.
    pub peer_time: Duration,
    /// After so long a silence the system asks whether the client is still there.
    pub idle_time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 256,
            handshakes_max: 64,
            requests_max: 128,
            handshake_time: Duration::from_secs(10),
            peer_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(60),
        }
    }
}

/// What a server serves, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The volume, by its name; it is the export's name as well.
    pub volume: String,
    /// Its number among the ports of the volume.
    pub relative_port: u16,
    /// Writes are refused, whatever the volume takes.
    pub read_only: bool,
    /// What clients may take.
    pub limits: Limits,
    /// With it nobody is served without TLS.
    pub tls: Option<Tls>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for text in ["unix:/run/db.sock", "127.0.0.1:10809", "[::1]:10809"] {
            let address: Address = text.parse().expect("it is one");
            assert_eq!(address.to_string(), text);
        }
        for text in ["", "unix:", "127.0.0.1", "10809", "/run/db.sock"] {
            let error = text.parse::<Address>().expect_err("it is none");
            assert!(error.to_string().contains("unix:PATH"), "{error}");
        }
    }
}
