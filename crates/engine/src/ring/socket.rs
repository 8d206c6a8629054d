//! Socket setup that goes beyond the ring's own operations.

use std::{
    io::{self, ErrorKind},
    mem::offset_of,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::{ffi::OsStrExt, fs::FileTypeExt, net::UnixListener},
    },
    path::Path,
    time::Duration,
};

use crate::reactor::Credentials;

/// Keepalive probes sent to a silent peer before the connection is dropped, and the seconds between them.
const PROBES: libc::c_int = 5;
const PROBE_INTERVAL_S: libc::c_int = 10;

/// Creates a Unix socket listening at `path`, in place of a left-over one.
pub(super) fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_left_over(path)? => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// Whether `path` is a socket that nobody listens on.
fn is_left_over(path: &Path) -> io::Result<bool> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    // The standard library's connect would block on a listener whose queue is full.
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory arguments; the result is checked.
    let raw = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: sockaddr_un is plain data for which zero is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = path.as_os_str().as_bytes();
    if name.len() >= address.sun_path.len() {
        return Ok(false);
    }
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let len = offset_of!(libc::sockaddr_un, sun_path) + name.len() + 1;
    // SAFETY: passes a live address and a length within it.
    let connected = unsafe {
        libc::connect(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            len as libc::socklen_t,
        )
    };
    let error = io::Error::last_os_error();
    Ok(connected < 0 && error.kind() == ErrorKind::ConnectionRefused)
}

/// How many bytes are in the send buffer, sent or not; 0 for sockets that do not say.
pub(super) fn unacknowledged_bytes(raw: RawFd) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int there, and `bytes` lives until it has returned.
    let result = unsafe { libc::ioctl(raw, libc::TIOCOUTQ, &raw mut bytes) };
    match result {
        0 => bytes.unsigned_abs().into(),
        _ => 0,
    }
}

/// Turns on keepalive: the kernel probes a peer that has been silent for `idle`. Sockets that do not
/// support it, Unix ones, do not need it.
pub(super) fn keep_alive(raw: RawFd, idle: Duration) {
    let idle_s = libc::c_int::try_from(idle.as_secs().max(1)).unwrap_or(libc::c_int::MAX);
    set(raw, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set(raw, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle_s);
    set(
        raw,
        libc::IPPROTO_TCP,
        libc::TCP_KEEPINTVL,
        PROBE_INTERVAL_S,
    );
    set(raw, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, PROBES);
}

/// Who has connected a Unix socket (SO_PEERCRED).
pub(super) fn credentials(raw: RawFd) -> io::Result<Credentials> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: passes a live ucred and its size.
    let failed = unsafe {
        libc::getsockopt(
            raw,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    match failed {
        // Of another kind of socket.
        0 if peer.uid == libc::uid_t::MAX => Err(io::ErrorKind::Unsupported.into()),
        0 => Ok(Credentials {
            pid: peer.pid,
            uid: peer.uid,
        }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(raw: RawFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
    // SAFETY: passes a live c_int and its size.
    unsafe {
        libc::setsockopt(
            raw,
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
}
