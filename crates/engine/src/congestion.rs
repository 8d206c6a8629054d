//! Which congestion control a connection gets. BBR, where it is the system's own, paces what is sent
//! by a timer of the connection: on a storage network, where round trips take microseconds, that
//! costs more than the sending, and interrupts the lane besides. It is replaced; any other stays.

use std::os::fd::RawFd;

/// In every kernel that has a choice at all, and what Linux takes if nobody says otherwise.
const UNPACED: &[u8] = b"cubic";

/// Has `socket`, and all connections that it accepts, send without pacing. To be called before the
/// socket connects or listens: a connection that was paced once stays so. Where the system refuses,
/// it sends as the system does.
pub(crate) fn choose(socket: RawFd) {
    let mut name = [0_u8; 16]; // TCP_CA_NAME_MAX
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
    if failed == 0 && name.starts_with(b"bbr") {
        // SAFETY: passes a live array and its size.
        unsafe {
            libc::setsockopt(
                socket,
                libc::IPPROTO_TCP,
                libc::TCP_CONGESTION,
                UNPACED.as_ptr().cast(),
                UNPACED.len() as libc::socklen_t,
            )
        };
    }
}
