//! The harness of the tests from outside: it starts targets (Sanstone, tgt, istgt) on free
//! loopback ports, runs other people's initiators against them with a time limit, or our own, and
//! looks at processes the way an administrator would, through /proc.
//!
//! A test asks for a [`disk::Disk`] and gets a URL; which target serves it is `SANSTONE_TEST_TARGET`
//! (`sanstone` if unset, else `tgt` or `istgt`), so that the same test can be tried on a target
//! that is known to work. Everything a test starts it also ends: daemons are killed by their pid
//! when their handle is dropped, directories are removed.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod directory;
pub mod disk;
pub mod forwarder;
pub mod guest;
pub mod initiator;
pub mod istgt;
pub mod link;
pub mod process;
pub mod procfs;
pub mod run;
pub mod sanstone;
pub mod tgt;
pub mod wire;

use std::net::TcpListener;

/// A TCP port of 127.0.0.1 that nobody listened on a moment ago.
///
/// # Panics
/// If the machine has no free port.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("no free TCP port on 127.0.0.1");
    listener
        .local_addr()
        .expect("a bound socket has an address")
        .port()
}

/// `length_bytes` bytes that look random and are the same for the same seed (xorshift64*).
pub fn noise(seed: u64, length_bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length_bytes + 8);
    while bytes.len() < length_bytes {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    bytes.truncate(length_bytes);
    bytes
}
