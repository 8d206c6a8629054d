//! Applies [`ConnectOptions`] as Linux socket options.

use std::{ffi::CString, io, net::IpAddr, os::fd::RawFd};

use crate::{
    congestion,
    reactor::{ConnectOptions, Source},
};

/// Sets up a fresh `socket` so that it connects as `options` say.
///
/// # Errors
/// An option that the system refuses; the message names it.
pub(crate) fn apply(socket: RawFd, options: &ConnectOptions) -> io::Result<()> {
    let named = |what: String| {
        move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"))
    };
    match &options.source {
        None => {}
        Some(Source::Address(ip)) => {
            bind(socket, *ip).map_err(named(format!("{ip} is not an address of this machine")))?;
        }
        Some(Source::Interface(name)) => {
            let bound = set(
                socket,
                libc::SOL_SOCKET,
                libc::SO_BINDTODEVICE,
                name.as_bytes(),
            );
            bound.map_err(named(format!(
                "the network interface {name} cannot be used"
            )))?;
        }
    }
    if let Some(name) = &options.congestion {
        let refused = || {
            let known =
                std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
            let message = format!(
                "this kernel has no congestion control \"{name}\"; it has {}",
                known.unwrap_or_default().trim()
            );
            io::Error::new(io::ErrorKind::InvalidInput, message)
        };
        let known = CString::new(name.as_str()).is_ok_and(|name| congestion::set(socket, &name));
        known.then_some(()).ok_or_else(refused)?;
    }
    if let Some(timeout) = options.user_timeout {
        let ms = u32::try_from(timeout.as_millis())
            .unwrap_or(u32::MAX)
            .to_ne_bytes();
        let limited = set(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &ms);
        limited.map_err(named(format!("TCP_USER_TIMEOUT of {timeout:?}")))?;
    }
    Ok(())
}

/// Resets a connection and discards its unsent data. A connect to AF_UNSPEC does this even if
/// others hold the socket, too.
pub(crate) fn disconnect(socket: RawFd) {
    // SAFETY: an address of zeroes is a valid one, of the family AF_UNSPEC.
    let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    let len = size_of_val(&nowhere) as libc::socklen_t;
    // SAFETY: passes a live address and its true size. Callers also shut the socket down, in case
    // this is refused.
    unsafe { libc::connect(socket, &raw const nowhere, len) };
}

fn set(socket: RawFd, level: i32, option: i32, value: &[u8]) -> io::Result<()> {
    let len = value.len() as libc::socklen_t;
    // SAFETY: passes a live slice and its true length.
    let failed = unsafe { libc::setsockopt(socket, level, option, value.as_ptr().cast(), len) };
    match failed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn bind(socket: RawFd, ip: IpAddr) -> io::Result<()> {
    let failed = match ip {
        IpAddr::V4(ip) => {
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: 0,
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(ip.octets()),
                },
                sin_zero: [0; 8],
            };
            let len = size_of_val(&address) as libc::socklen_t;
            // SAFETY: passes a live address and its true size.
            unsafe { libc::bind(socket, (&raw const address).cast(), len) }
        }
        IpAddr::V6(ip) => {
            let address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: 0,
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: ip.octets(),
                },
                sin6_scope_id: 0,
            };
            let len = size_of_val(&address) as libc::socklen_t;
            // SAFETY: as above.
            unsafe { libc::bind(socket, (&raw const address).cast(), len) }
        }
    };
    match failed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        net::{TcpListener, TcpStream},
        os::fd::{AsRawFd, FromRawFd, OwnedFd},
    };

    use super::*;

    fn fresh() -> OwnedFd {
        // SAFETY: no memory arguments; nobody else owns the descriptor.
        unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)) }
    }

    fn refused(options: ConnectOptions) -> String {
        let refused = apply(fresh().as_raw_fd(), &options);
        refused.expect_err("there is no such").to_string()
    }

    #[test]
    fn what_the_system_does_not_have_is_named() {
        let source = |source| ConnectOptions {
            source: Some(source),
            ..ConnectOptions::default()
        };
        let error = refused(source(Source::Interface("nosuch0".into())));
        assert!(error.contains("nosuch0"), "{error}");
        let error = refused(source(Source::Address([192, 0, 2, 1].into())));
        assert!(error.contains("192.0.2.1"), "{error}");
        let error = refused(ConnectOptions {
            congestion: Some("nosuch".into()),
            ..ConnectOptions::default()
        });
        assert!(error.contains("\"nosuch\"; it has "), "{error}");
    }

    #[test]
    fn a_connection_leaves_by_the_address_that_is_asked_for() {
        for ip in [IpAddr::from([127, 0, 0, 2]), IpAddr::from([127, 0, 0, 3])] {
            let socket = fresh();
            let options = ConnectOptions {
                source: Some(Source::Address(ip)),
                ..ConnectOptions::default()
            };
            apply(socket.as_raw_fd(), &options).expect("loopback has it");
            let stream = TcpStream::from(socket);
            assert_eq!(stream.local_addr().expect("it is bound").ip(), ip);
        }
    }

    /// The value of a TCP option of `socket`.
    fn tcp_option(socket: RawFd, option: i32) -> Vec<u8> {
        let mut value = [0; 16];
        let mut len = value.len() as libc::socklen_t;
        let at = value.as_mut_ptr().cast();
        // SAFETY: passes a live array and its true length.
        let failed =
            unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, option, at, &raw mut len) };
        assert_eq!(failed, 0, "{}", io::Error::last_os_error());
        value[..len as usize].to_vec()
    }

    #[test]
    fn a_connection_has_the_congestion_control_and_the_time_limit_that_are_asked_for() {
        let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
        let allowed = allowed.expect("every kernel lists reno at least");
        for (name, timeout_ms) in allowed.split_whitespace().zip((1500u32..).step_by(1500)) {
            let socket = fresh();
            let options = ConnectOptions {
                source: None,
                congestion: Some(name.into()),
                user_timeout: Some(std::time::Duration::from_millis(timeout_ms.into())),
            };
            apply(socket.as_raw_fd(), &options).expect("it is allowed");
            let found = tcp_option(socket.as_raw_fd(), libc::TCP_CONGESTION);
            let found = String::from_utf8(found).expect("a name");
            assert_eq!(found.trim_end_matches('\0'), name);
            let found = tcp_option(socket.as_raw_fd(), libc::TCP_USER_TIMEOUT);
            assert_eq!(found, timeout_ms.to_ne_bytes());
        }
    }

    #[test]
    fn a_connection_that_is_cut_off_is_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let near = TcpStream::connect(listener.local_addr().expect("it listens"));
        let near = near.expect("it listens");
        let mut far = listener.accept().expect("somebody has connected").0;
        disconnect(near.as_raw_fd());
        let reset = far.read(&mut [0]).expect_err("it is no orderly end");
        assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
    }
}
