//! Where a front listens: an address, a name or a path.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use engine::zone;

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
