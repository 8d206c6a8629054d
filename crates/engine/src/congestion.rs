//! Chooses the congestion control of a connection. Where BBR is the system's default, it is replaced: it paces
//! sending with a timer per connection, which on a storage network, with round trips of microseconds, costs more than
//! the sending itself and also interrupts the lane. Any other algorithm stays.

use std::{ffi::CStr, os::fd::RawFd};

/// Available in every kernel that offers a choice, and the Linux default.
const UNPACED: &CStr = c"cubic";

/// Makes `socket`, and all connections it accepts from now on, send without pacing. Call this before
/// connecting: a connection that was once paced stays so. If the system refuses, its default stays.
pub(crate) fn choose(socket: RawFd) {
    if name_of(socket).is_some_and(|name| name.starts_with(b"bbr")) {
        set(socket, UNPACED);
    }
}

/// The name of a socket's congestion control, zero-padded.
fn name_of(socket: RawFd) -> Option<[u8; 16]> {
    let mut name = [0; 16]; // TCP_CA_NAME_MAX
    let mut len = name.len() as libc::socklen_t;
    // SAFETY: passes a live array and its true size.
    let failed = unsafe {
        libc::getsockopt(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &mut len,
        )
    };
    (failed == 0).then_some(name)
}

/// Returns false if the system has no algorithm of this name or does not let us use it.
pub(crate) fn set(socket: RawFd, name: &CStr) -> bool {
    let len = name.count_bytes() as libc::socklen_t;
    let value = name.as_ptr().cast();
    // SAFETY: passes a live string and its length.
    let failed =
        unsafe { libc::setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, value, len) };
    failed == 0
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::fd::AsRawFd,
    };

    use super::*;

    /// The algorithm of a connection accepted by a listener that had `name` before [`choose`]; `None` if the kernel
    /// has no such algorithm.
    fn accepted_after_choice(name: &CStr) -> Option<String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        if !set(listener.as_raw_fd(), name) {
            println!("this kernel has no {name:?}");
            return None;
        }
        choose(listener.as_raw_fd());
        let address = listener.local_addr().expect("it listens");
        let _client = TcpStream::connect(address).expect("it listens");
        let accepted = listener.accept().expect("somebody has connected").0;
        let name = name_of(accepted.as_raw_fd()).expect("it has one");
        let name = CStr::from_bytes_until_nul(&name).expect("it ends");
        Some(name.to_str().expect("a name").to_owned())
    }

    #[test]
    fn what_is_paced_is_replaced_and_nothing_else() {
        let replaced = accepted_after_choice(c"bbr");
        assert!(replaced.is_none_or(|name| name == "cubic"));
        assert_eq!(accepted_after_choice(c"reno").as_deref(), Some("reno"));
    }
}
