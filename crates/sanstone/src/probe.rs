//! Checks that the portals can be bound before anything is created on disk, so that a port in use or an
//! address this machine lacks is reported first and without side effects. The server binds the portals for
//! good once its volumes are open; if that fails after all, it is an error then.

use std::{io, net::SocketAddr, thread, time::Duration};

use front::{Address, IN_USE_LIMIT, StartError};
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};

const PAUSE: Duration = Duration::from_millis(20);

/// Binds each address for a moment, retrying one that is in use for a while, as the server does.
///
/// # Errors
/// The first address that cannot be bound.
pub(crate) fn portals(portals: impl IntoIterator<Item = SocketAddr>) -> Result<(), StartError> {
    for portal in portals {
        let mut waited = Duration::ZERO;
        while let Err(error) = once(portal) {
            if error.kind() != io::ErrorKind::AddrInUse || waited >= IN_USE_LIMIT {
                return Err(StartError::address(Address::Tcp(portal), &error));
            }
            thread::sleep(PAUSE);
            waited += PAUSE;
        }
    }
    Ok(())
}

/// Binds without listening, so that nobody can connect before the server is ready.
///
/// # Errors
/// Any error the system reports.
pub(crate) fn once(portal: SocketAddr) -> io::Result<()> {
    let family = match portal {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket(family, SocketType::STREAM, None)?;
    // Permits binding while old connections are in TIME-WAIT, as every listener does.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(bind(&socket, &portal)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn a_port_that_somebody_listens_on_is_in_use_and_a_free_one_stays_free() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(any).expect("a free port");
        let taken = listener.local_addr().expect("bound");
        let error = portals([any, taken]).expect_err("it is taken");
        let said = error.to_string();
        assert!(
            said.contains(&taken.to_string()) && said.contains("choose another port"),
            "{said}"
        );
        let nowhere = "192.0.2.1:3260".parse().expect("an address");
        let error = portals([nowhere]).expect_err("it is another machine's");
        assert!(
            error.to_string().contains("does not have that address"),
            "{error}"
        );
        drop(TcpStream::connect(taken).expect("a connection"));
        drop(listener);
        portals([taken]).expect("what is left of a connection is in nobody's way");
    }
}
