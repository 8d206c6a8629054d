//! Listening sockets of a front: TCP, or Unix sockets of this machine.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use engine::{
    Duration,
    net::{Credentials, TcpListener, TcpStream, UnixListener},
    store, time,
};

use crate::peer::Peer;

/// How long binding is retried while the address is in use.
pub const IN_USE_LIMIT: Duration = Duration::from_secs(2);
/// How long to wait before retrying.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A bound listening socket. Clients that connect wait until they are accepted.
pub enum Listener {
    /// At an address of this machine.
    Tcp(TcpListener),
    /// At a path.
    Unix(PathBuf, UnixListener),
}

impl Listener {
    /// Listens at `address`, whose port may be 0.
    ///
    /// # Errors
    /// The system's.
    pub async fn tcp(address: SocketAddr) -> io::Result<Listener> {
        retried(|| TcpListener::bind(address).map(Listener::Tcp)).await
    }

    /// The same at `path`.
    ///
    /// # Errors
    /// The system's; `AlreadyExists` if there is a file that is not a socket.
    pub async fn unix(path: &Path) -> io::Result<Listener> {
        let bind = || {
            // A file that is not a socket will not go away by itself, so retrying is pointless.
            let is_other = |look: store::PathInfo| look.kind != store::PathKind::Socket;
            if store::look(path).is_ok_and(is_other) {
                return Err(ErrorKind::AlreadyExists.into());
            }
            UnixListener::bind(path).map(|listener| Listener::Unix(path.to_owned(), listener))
        };
        retried(bind).await
    }

    /// The next connection.
    ///
    /// # Errors
    /// The system's.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        match self {
            Listener::Tcp(listener) => listener.accept().await,
            Listener::Unix(_, listener) => listener.accept().await,
        }
    }

    /// The peer of `stream`, and how the log names it; `None` if it is gone.
    pub fn peer(&self, stream: &TcpStream) -> Option<(Peer, String)> {
        let path = match self {
            Listener::Tcp(_) => {
                let (_, peer) = stream.addresses().ok()?;
                return Some((Peer::of(peer.ip()), peer.to_string()));
            }
            Listener::Unix(path, _) => path.display(),
        };
        Some(match stream.credentials() {
            Ok(Credentials { pid: 0, uid }) => {
                (Peer::User(Some(uid)), format!("unix:{path} (uid {uid})"))
            }
            Ok(Credentials { pid, uid }) => {
                let name = format!("unix:{path} (pid {pid}, uid {uid})");
                (Peer::User(Some(uid)), name)
            }
            Err(_) => (Peer::User(None), format!("unix:{path}")),
        })
    }
}

/// Binds, and retries for a while if the address is in use: the kernel tears down a ring some time after its process has
/// exited, and until then a killed server still holds its listening sockets.
///
/// # Errors
/// The system's.
pub async fn retried<T>(bind: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let begun = time::now();
    loop {
        match bind() {
            Err(error)
                if error.kind() == ErrorKind::AddrInUse && time::now() - begun < IN_USE_LIMIT =>
            {
                time::sleep(RETRY_PAUSE).await;
            }
            bound => return bound,
        }
    }
}
