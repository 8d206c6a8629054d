//! Why a front does not serve.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
};

use crate::address::Address;

/// Why a front does not start, or does not change what it serves.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// An address could not be bound.
    #[error("cannot listen on {address}: {cause}; {mend}")]
    Address {
        /// The address.
        address: Address,
        /// What is wrong.
        cause: String,
        /// What the administrator should check.
        mend: &'static str,
    },
    /// The address overlaps another of this front, which listens there until the new configuration is in force.
    #[error(
        "cannot listen on {address}: this daemon already listens on {other}; remove that portal \
         and apply, then add this one"
    )]
    Ours {
        /// The address.
        address: SocketAddr,
        /// The address that is listened on already.
        other: SocketAddr,
    },
    /// A lane could not show a unit.
    #[error("{0}")]
    Unit(String),
    /// A reason that only this kind of front has.
    #[error("{0}")]
    Own(String),
    /// It serves what it was started with.
    #[error(
        "this front cannot change what it serves: stop it, then start it with the new configuration"
    )]
    Fixed,
}

impl StartError {
    /// The error for binding `address`, which the system refused with `error`.
    pub fn address(address: Address, error: &io::Error) -> StartError {
        StartError::Address {
            mend: match &address {
                Address::Unix(_) => mend_path(error.kind()),
                Address::Tcp(tcp) => mend(tcp.port(), error.kind()),
                Address::Name(_, port) => mend(*port, error.kind()),
            },
            address,
            cause: error.to_string(),
        }
    }
}

/// Advice for a port that cannot be bound.
fn mend(port: u16, kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied if port < 1024 => {
            "ports below 1024 require a privilege: choose 1024 or above, or give this process \
             CAP_NET_BIND_SERVICE"
        }
        ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: use one that it has, or 0.0.0.0 for all"
        }
        ErrorKind::AddrInUse => {
            "another program listens there (`ss -ltnp` shows which): stop it, or choose another \
             port"
        }
        _ => "choose another address, or make sure that this process may listen there",
    }
}

/// Advice for the path of a socket.
fn mend_path(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::AddrInUse => {
            "another program listens there: stop it, remove the socket, or choose another path"
        }
        ErrorKind::AlreadyExists => {
            "the path exists and is not a socket: remove the file, or choose another path"
        }
        ErrorKind::NotFound => "create its directory first, or choose another path",
        ErrorKind::InvalidInput => {
            "the path of a socket has at most 107 bytes: choose a shorter one"
        }
        _ => "choose another path, or make sure that this process may create it",
    }
}
