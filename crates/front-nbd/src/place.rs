//! Where clients connect: a Unix socket, or a TCP socket for each address of a host.

use std::io::{self, ErrorKind};

use engine::{
    Duration,
    blocking::look_up_all,
    net::{Credentials, TcpListener, TcpStream, UnixListener},
    store, time,
};
use front::Peer;

use crate::{config::Address, error::StartError};

/// How long binding is retried while the address is in use.
const IN_USE_LIMIT: Duration = Duration::from_secs(2);
/// How long to wait before retrying.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);
/// How long a name may take to be resolved.
const NAME_LIMIT: Duration = Duration::from_secs(10);
/// socket(2): the kernel has no IPv6, or no IPv4.
const EAFNOSUPPORT: i32 = 97;

/// Bound listening sockets. Clients that connect wait until a server accepts them.
pub struct Place(pub(crate) Vec<Listener>);

impl Place {
    /// Listens at `address`, on the current lane; at a name, on each of its addresses that this machine has. Retries for
    /// a while if one is in use: the kernel tears down a ring some time after its process has exited, and until then a
    /// killed server still holds its listening sockets.
    ///
    /// # Errors
    /// [`StartError::Address`]
    pub async fn take(address: &Address) -> Result<Place, StartError> {
        let Address::Name(host, port) = address else {
            let bound = Listener::take(address).await;
            let listener = bound.map_err(|error| not_bound(address, &error))?;
            return Ok(Place(vec![listener]));
        };
        let found = look_up_all(host, *port, NAME_LIMIT).await;
        let found = found.map_err(|error| not_resolved(address, &error))?;
        let (mut port, mut listeners, mut absent) = (*port, Vec::new(), None);
        for found in found {
            let mut each = found;
            each.set_port(port);
            let each = Address::Tcp(each);
            match Listener::take(&each).await {
                Ok(listener) => {
                    if let Listener::Tcp(bound) = &listener {
                        port = bound.local_addr().port();
                    }
                    listeners.push(listener);
                }
                Err(error) if is_absent(&error) => absent = Some(error),
                Err(error) => return Err(not_bound(&each, &error)),
            }
        }
        match absent.filter(|_| listeners.is_empty()) {
            Some(error) => Err(not_bound(address, &error)),
            None => Ok(Place(listeners)),
        }
    }
}

/// A bound listening socket.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(Address, UnixListener),
}

impl Listener {
    /// Listens at an address that is no name, and retries while it is in use.
    async fn take(address: &Address) -> io::Result<Listener> {
        let begun = time::now();
        loop {
            match Listener::bind(address) {
                Err(error)
                    if error.kind() == ErrorKind::AddrInUse
                        && time::now() - begun < IN_USE_LIMIT =>
                {
                    time::sleep(PAUSE_AFTER_ERROR).await;
                }
                bound => return bound,
            }
        }
    }

    fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp(tcp) => TcpListener::bind(*tcp).map(Listener::Tcp),
            Address::Name(..) => unreachable!("its addresses are bound"),
            Address::Unix(path) => {
                // A file that is not a socket will not go away by itself, so retrying is pointless.
                let is_other = |look: store::Look| look.kind != store::Kind::Socket;
                if store::look(path).is_ok_and(is_other) {
                    return Err(ErrorKind::AlreadyExists.into());
                }
                let bound = UnixListener::bind(path);
                bound.map(|listener| Listener::Unix(address.clone(), listener))
            }
        }
    }

    /// The bound address, with the port that the system chose.
    pub(crate) fn address(&self) -> Address {
        match self {
            Listener::Tcp(listener) => Address::Tcp(listener.local_addr()),
            Listener::Unix(address, _) => address.clone(),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<TcpStream> {
        match self {
            Listener::Tcp(listener) => listener.accept().await,
            Listener::Unix(_, listener) => listener.accept().await,
        }
    }

    /// The peer of `stream`, and how the log names it; `None` if it is gone.
    pub(crate) fn peer(&self, stream: &TcpStream) -> Option<(Peer, String)> {
        let address = match self {
            Listener::Tcp(_) => {
                let (_, peer) = stream.addresses().ok()?;
                return Some((Peer::of(peer.ip()), peer.to_string()));
            }
            Listener::Unix(address, _) => address,
        };
        Some(match stream.credentials() {
            Ok(Credentials { pid: 0, uid }) => {
                (Peer::User(Some(uid)), format!("{address} (uid {uid})"))
            }
            Ok(Credentials { pid, uid }) => {
                let name = format!("{address} (pid {pid}, uid {uid})");
                (Peer::User(Some(uid)), name)
            }
            Err(_) => (Peer::User(None), address.to_string()),
        })
    }
}

/// Whether this machine lacks the address, as it lacks `::1` without IPv6.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(EAFNOSUPPORT)
}

fn not_resolved(address: &Address, error: &io::Error) -> StartError {
    StartError::Address {
        address: address.clone(),
        cause: format!("the name cannot be resolved: {error}"),
        mend: "correct it, or write an address of this machine instead, such as 127.0.0.1:10809",
    }
}

fn not_bound(address: &Address, error: &io::Error) -> StartError {
    let is_unix = matches!(address, Address::Unix(_));
    let mend = match error.kind() {
        ErrorKind::AddrInUse if is_unix => {
            "another program listens there: stop it, remove the socket, or choose another path"
        }
        ErrorKind::AlreadyExists if is_unix => {
            "the path exists and is not a socket: remove the file, or choose another path"
        }
        ErrorKind::NotFound if is_unix => "create its directory first, or choose another path",
        ErrorKind::InvalidInput if is_unix => {
            "the path of a socket has at most 107 bytes: choose a shorter one"
        }
        ErrorKind::AddrInUse => {
            "another program listens there (`ss -ltnp` shows which): stop it, or choose another \
             port"
        }
        ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: use one that it has, or 0.0.0.0 for all"
        }
        ErrorKind::PermissionDenied => {
            "choose one where this process may listen; ports below 1024 require a privilege"
        }
        _ => "choose another address, or make sure that this process may listen there",
    };
    StartError::Address {
        address: address.clone(),
        cause: error.to_string(),
        mend,
    }
}
