//! The configuration of an NBD server: where it listens, what it serves, and its limits.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use engine::{Duration, zone};
use front::{Places, Tls};

/// The address to listen on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A TCP address and port; port 0 picks a free one.
    Tcp(SocketAddr),
    /// A host name, on whose addresses it listens, and a port.
    Name(String, u16),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// The string is not a valid listening address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is not a listening address: write `unix:PATH`, or a host and port such as \
     `127.0.0.1:10809`, `[::]:10809` or `localhost:10809`; a link-local address needs its interface, as in \
     `[fe80::1%eth0]:10809`"
)]
pub struct NoAddress(String);

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Address, NoAddress> {
        let none = || NoAddress(text.to_owned());
        match text.strip_prefix("unix:") {
            Some("") => Err(none()),
            Some(path) => Ok(Address::Unix(path.into())),
            None => match zone::parse(text) {
                Some(address) if zone::is_needed(address.ip()) && zone::of(address).is_none() => {
                    Err(none())
                }
                Some(address) => Ok(Address::Tcp(address)),
                None => name_of(text).ok_or_else(none),
            },
        }
    }
}

/// `storage1:10809`
fn name_of(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    // Digits and dots alone are an address that is mistyped.
    let is_name = host.chars().all(is_plain)
        && host.chars().any(|c| c.is_ascii_alphabetic())
        && host.starts_with(|c: char| c.is_ascii_alphanumeric());
    let port = port.parse().ok()?;
    is_name.then(|| Address::Name(host.to_owned(), port))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Name(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Limits on what clients may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
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

impl Limits {
    /// The places that they provide.
    pub(crate) fn places(&self) -> Places {
        Places {
            sessions: self.connections_max,
            reserved: 0,
            logins: self.handshakes_max,
            logins_per_peer: self.handshakes_per_peer_max,
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 256,
            handshakes_max: 512,
            handshakes_per_peer_max: 256,
            requests_max: 128,
            handshake_time: Duration::from_secs(10),
            peer_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(60),
        }
    }
}

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The volume's name, which is also the export's name.
    pub volume: String,
    /// The relative target port identifier under which the volume knows this server.
    pub relative_port: u16,
    /// Whether writes are refused even if the volume accepts them.
    pub read_only: bool,
    /// Limits on what clients may use.
    pub limits: Limits,
    /// If set, TLS is mandatory for every client.
    pub tls: Option<Tls>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for text in [
            "unix:/run/db.sock",
            "127.0.0.1:10809",
            "[::1]:10809",
            "[fe80::1%1]:10809",
            "localhost:10809",
            "storage-1.example:0",
        ] {
            let address: Address = text.parse().expect("it is one");
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "",
            "unix:",
            "127.0.0.1",
            "10809",
            "/run/db.sock",
            "localhost",
            "localhost:",
            "localhost:70000",
            "127.1:10809",
            ":10809",
            "::1:10809",
            "[fe80::1]:10809",
            "[fe80::1%no-such-thing]:10809",
            "-a:10809",
            "a b:10809",
        ] {
            let error = text.parse::<Address>().expect_err("it is none");
            assert!(error.to_string().contains("unix:PATH"), "{error}");
        }
    }
}
