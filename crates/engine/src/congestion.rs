//! Which congestion control a connection gets. BBR, where it is the system's own, paces what is sent
//! by a timer of the connection: on a storage network, where round trips take microseconds, that
//! costs more than the sending, and interrupts the lane besides. It is replaced; any other stays.

use std::{ffi::CStr, os::fd::RawFd};

/// In every kernel that has a choice at all, and what Linux takes if nobody says otherwise.
const UNPACED: &CStr = c"cubic";

/// Has `socket`, and all connections that it accepts from now on, send without pacing. To be called
/// before it connects: a connection that was paced once stays so. Where the system refuses, it sends
/// as the system does.
pub(crate) fn choose(socket: RawFd) {
    if name_of(socket).is_some_and(|name| name.starts_with(b"bbr")) {
        set(socket, UNPACED);
    }
}

/// The name of a socket's congestion control, with zeroes behind it.
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

/// False where the system has none of this name, or not for us.
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

    /// What a listener accepts that had `name` before the choice; `None` where there is no such.
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
