//! Where clients connect: a Unix socket, or a TCP socket for each address of a host.

use std::io::{self, ErrorKind};

use engine::{Duration, blocking::look_up_all};
use front::{Address, Listener, StartError};

/// How long a name may take to be resolved.
const NAME_LIMIT: Duration = Duration::from_secs(10);
/// socket(2): the kernel has no IPv6, or no IPv4.
const EAFNOSUPPORT: i32 = 97;

/// Bound listening sockets. Clients that connect wait until a server accepts them.
pub struct Listeners(pub(crate) Vec<Listener>);

impl Listeners {
    /// Listens at `address`, on the current lane; at a name, on each of its addresses that this machine has.
    ///
    /// # Errors
    /// [`StartError::Address`]
    pub async fn take(address: &Address) -> Result<Listeners, StartError> {
        let Address::Name(host, port) = address else {
            let bound = listen(address).await;
            let listener = bound.map_err(|error| StartError::address(address.clone(), &error))?;
            return Ok(Listeners(vec![listener]));
        };
        let found = look_up_all(host, *port, NAME_LIMIT).await;
        let found = found.map_err(|error| not_resolved(address, &error))?;
        let (mut port, mut listeners, mut absent) = (*port, Vec::new(), None);
        for found in found {
            let mut each = found;
            each.set_port(port);
            let each = Address::Tcp(each);
            match listen(&each).await {
                Ok(listener) => {
                    if let Listener::Tcp(bound) = &listener {
                        port = bound.local_addr().port();
                    }
                    listeners.push(listener);
                }
                Err(error) if is_absent(&error) => absent = Some(error),
                Err(error) => return Err(StartError::address(each, &error)),
            }
        }
        match absent.filter(|_| listeners.is_empty()) {
            Some(error) => Err(StartError::address(address.clone(), &error)),
            None => Ok(Listeners(listeners)),
        }
    }
}

/// Listens at an address that is no name.
async fn listen(address: &Address) -> io::Result<Listener> {
    match address {
        Address::Tcp(tcp) => Listener::tcp(*tcp).await,
        Address::Unix(path) => Listener::unix(path).await,
        Address::Name(..) => unreachable!("its addresses are bound"),
    }
}

/// The bound address, with the port that the system chose.
pub(crate) fn address_of(listener: &Listener) -> Address {
    match listener {
        Listener::Tcp(listener) => Address::Tcp(listener.local_addr()),
        Listener::Unix(path, _) => Address::Unix(path.clone()),
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
