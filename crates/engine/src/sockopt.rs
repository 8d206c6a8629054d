//! Applies [`ConnectOptions`] as Linux socket options.

use std::{
    ffi::CString,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use crate::{
    congestion,
    reactor::{ConnectOptions, LocalEnd, SocketBuffers},
    zone,
};

/// Sets up a fresh `socket` so that it connects to `to` as `options` say.
///
/// # Errors
/// An option that the system refuses; the message names it.
pub(crate) fn apply(socket: RawFd, to: SocketAddr, options: &ConnectOptions) -> io::Result<()> {
    let named = |what: String| {
        move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"))
    };
    match &options.source {
        None => {}
        Some(LocalEnd::Address(ip)) => {
            // A link-local address is on the link that the peer is on.
            let zone = zone::of(to).unwrap_or(0);
            bind(socket, *ip, zone)
                .map_err(named(format!("{ip} is not an address of this machine")))?;
        }
        Some(LocalEnd::Interface(name)) => {
            let bound = set(
                socket,
                libc::SOL_SOCKET,
                libc::SO_BINDTODEVICE,
                name.as_bytes(),
            );
            bound.map_err(|error| {
                let message = format!("the network interface {name} cannot be used: {error}");
                io::Error::new(io::ErrorKind::AddrNotAvailable, message)
            })?;
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
    if options.resets_when_closed {
        set_resets_when_closed(socket, true).map_err(named("SO_LINGER".to_owned()))?;
    }
    // Before it connects: TCP agrees on the scale of its window then, from the size of the buffer.
    set_buffers(socket, options.buffers)
}

/// Chooses what closing a connection does with its unsent data: discards it, with a reset, or leaves it to the kernel, which
/// goes on sending it.
///
/// # Errors
/// It is no socket.
pub(crate) fn set_resets_when_closed(socket: RawFd, is_on: bool) -> io::Result<()> {
    // `struct linger`: whether it is on, and for how many seconds a close waits.
    let linger = [i32::from(is_on).to_ne_bytes(), 0_i32.to_ne_bytes()];
    let option = linger.as_flattened();
    set(socket, libc::SOL_SOCKET, libc::SO_LINGER, option)
}

/// Tries whether a connection can have such buffers.
///
/// # Errors
/// As [`apply`].
pub fn try_buffers(buffers: SocketBuffers) -> io::Result<()> {
    // SAFETY: no memory arguments; the result is checked.
    let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    set_buffers(socket.as_raw_fd(), buffers)
}

fn set_buffers(socket: RawFd, buffers: SocketBuffers) -> io::Result<()> {
    for (name, option, sysctl, bytes) in [
        (
            "send_buffer",
            libc::SO_SNDBUF,
            "net.core.wmem_max",
            buffers.send_bytes,
        ),
        (
            "receive_buffer",
            libc::SO_RCVBUF,
            "net.core.rmem_max",
            buffers.receive_bytes,
        ),
    ] {
        let Some(bytes) = bytes else {
            continue;
        };
        set(socket, libc::SOL_SOCKET, option, &bytes.to_ne_bytes())?;
        // The kernel does not refuse what is above its limit, but takes the limit.
        let limit = buffer_bytes(socket, option)?;
        if limit < bytes {
            let message = format!(
                "{name} = {bytes} bytes is more than this kernel allows: {sysctl} is {limit}; raise it with \
                 `sysctl -w {sysctl}={bytes}`, or write a smaller {name}"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
    }
    Ok(())
}

/// The size that a buffer was set to. The kernel doubles it, for its own overhead.
fn buffer_bytes(socket: RawFd, option: i32) -> io::Result<u32> {
    let mut doubled: libc::c_int = 0;
    let mut len = size_of_val(&doubled) as libc::socklen_t;
    // SAFETY: passes a live c_int and its true size.
    let failed = unsafe {
        let value = (&raw mut doubled).cast();
        libc::getsockopt(socket, libc::SOL_SOCKET, option, value, &mut len)
    };
    match failed {
        0 => Ok(doubled as u32 / 2),
        _ => Err(io::Error::last_os_error()),
    }
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

fn bind(socket: RawFd, ip: IpAddr, zone: u32) -> io::Result<()> {
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
                sin6_scope_id: zone,
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
    };

    use super::*;

    fn fresh() -> OwnedFd {
        // SAFETY: no memory arguments; nobody else owns the descriptor.
        unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)) }
    }

    fn anywhere() -> SocketAddr {
        ([127, 0, 0, 1], 3260).into()
    }

    fn refused(options: ConnectOptions) -> String {
        let refused = apply(fresh().as_raw_fd(), anywhere(), &options);
        refused.expect_err("there is no such").to_string()
    }

    #[test]
    fn what_the_system_does_not_have_is_named() {
        let source = |source| ConnectOptions {
            source: Some(source),
            ..ConnectOptions::default()
        };
        let error = refused(source(LocalEnd::Interface("nosuch0".into())));
        assert!(error.contains("nosuch0"), "{error}");
        let error = refused(source(LocalEnd::Address([192, 0, 2, 1].into())));
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
                source: Some(LocalEnd::Address(ip)),
                ..ConnectOptions::default()
            };
            apply(socket.as_raw_fd(), anywhere(), &options).expect("loopback has it");
            let stream = TcpStream::from(socket);
            assert_eq!(stream.local_addr().expect("it is bound").ip(), ip);
        }
    }

    fn with_buffers(
        send: impl Into<Option<u32>>,
        receive: impl Into<Option<u32>>,
    ) -> ConnectOptions {
        ConnectOptions {
            buffers: SocketBuffers {
                send_bytes: send.into(),
                receive_bytes: receive.into(),
            },
            ..ConnectOptions::default()
        }
    }

    #[test]
    fn the_buffers_have_the_sizes_that_are_asked_for() {
        let sizes = |options| {
            let socket = fresh();
            apply(socket.as_raw_fd(), anywhere(), &options).expect("every kernel allows that");
            [libc::SO_SNDBUF, libc::SO_RCVBUF]
                .map(|option| buffer_bytes(socket.as_raw_fd(), option).expect("it has one"))
        };
        let [send, receive] = sizes(ConnectOptions::default());
        let (one, other) = (10 << 10, 12 << 10);
        assert_eq!(sizes(with_buffers(one, other)), [one, other]);
        assert_eq!(sizes(with_buffers(one, None)), [one, receive]);
        assert_eq!(sizes(with_buffers(None, other)), [send, other]);
    }

    #[test]
    fn a_buffer_above_the_limit_of_the_kernel_is_refused() {
        const HUGE: u32 = 1 << 29;
        for (options, sysctl) in [
            (with_buffers(HUGE, None), "net.core.wmem_max"),
            (with_buffers(None, HUGE), "net.core.rmem_max"),
        ] {
            let path = format!("/proc/sys/{}", sysctl.replace('.', "/"));
            let limit = std::fs::read_to_string(path).unwrap_or_default();
            let tried = try_buffers(options.buffers).expect_err(sysctl).to_string();
            assert_eq!(refused(options), tried);
            let limit = format!("{sysctl} is {}", limit.trim());
            assert!(
                tried.contains("536870912 bytes") && tried.contains(&limit),
                "{tried}"
            );
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
                congestion: Some(name.into()),
                user_timeout: Some(std::time::Duration::from_millis(timeout_ms.into())),
                ..ConnectOptions::default()
            };
            apply(socket.as_raw_fd(), anywhere(), &options).expect("it is allowed");
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
