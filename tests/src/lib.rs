//! The harness of the integration tests: it starts targets (Sanstone, tgt, istgt, LIO) on free loopback ports, runs
//! third-party initiators or our own against them with a time limit, and inspects processes as an administrator would,
//! through /proc.
//!
//! A test asks for a [`disk::Disk`] and gets a URL; which target serves it is `SANSTONE_TEST_TARGET` (`sanstone` if
//! unset, else `tgt`, `istgt` or `lio`), so that a test can be tried on a target that is known to work. A test cleans
//! up everything it starts: daemons are killed by pid when their handle is dropped, and directories are removed.
#![forbid(unsafe_code)]

pub mod attachment;
pub mod conformance;
pub mod count;
pub mod database;
pub mod directory;
pub mod disk;
pub mod fio;
pub mod foreign;
pub mod forwarder;
pub mod guest;
pub mod health;
pub mod initiator;
pub mod istgt;
pub mod libiscsi;
pub mod links;
pub mod lio;
pub mod mariadb;
pub mod mixed;
pub mod process;
pub mod procfs;
pub mod run;
pub mod samples;
pub mod sanstone;
mod skip;
pub mod tgt;
pub mod wire;

pub use skip::skip;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// A TCP port that was free on every address a moment ago, and that this process has not been given before. It is below
/// the range that Linux uses for outgoing connections: other tests make thousands of those, and one of them could
/// occupy a server's port.
///
/// # Panics
/// If the machine has no free port.
pub fn free_port() -> u16 {
    const FIRST: u32 = 16_000;
    const COUNT: u32 = 16_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Other processes start their search elsewhere.
    let start = std::process::id().wrapping_mul(251);
    for _ in 0..COUNT {
        let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = (FIRST + number % COUNT) as u16;
        let everywhere = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
        let bound = everywhere.or_else(|error| match error.kind() {
            ErrorKind::AddrInUse => Err(error),
            // IPv6 may be unavailable.
            _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        });
        if bound.is_ok() {
            return port;
        }
    }
    panic!("no free TCP port from {FIRST} on");
}

/// `length_bytes` pseudo-random bytes, determined by the seed (xorshift64*).
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
