//! `kill -9` with writes in the kernel's send buffer, on a link that swallows packets. The kernel must not go on sending
//! them: by the time the link heals, they may be older than what was written over another.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use harness::directory::Directory;
use harness::links::Links;
use harness::process::find_program;
use harness::sanstone::IQN;

use crate::attached::{Attached, LONG, can_attach};
use crate::links::{PORT, serve};

/// As `/proc/net/tcp` has them (include/net/tcp_states.h).
const ESTABLISHED: u8 = 0x01;

/// One of this machine's TCP sockets.
#[derive(Clone, Copy, Debug)]
struct Socket {
    state: u8,
    /// What the peer has not acknowledged, or what is still to be sent, in bytes.
    unsent_bytes: u64,
}

/// The sockets connected to `address`, those that no process has any more included.
fn connected_to(address: &str) -> Vec<Socket> {
    let address: Ipv4Addr = address.parse().expect("an address");
    let remote = format!("{:08X}:{PORT:04X}", u32::from_ne_bytes(address.octets()));
    let table = fs::read_to_string("/proc/net/tcp").expect("it can be read");
    let rows = table
        .lines()
        .map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.get(2).is_some_and(|found| *found == remote))
        .map(|row| {
            let (unsent, _) = row[4].split_once(':').expect("two queues");
            Socket {
                state: u8::from_str_radix(row[3], 16).expect("a number"),
                unsent_bytes: u64::from_str_radix(unsent, 16).expect("a number"),
            }
        })
        .collect()
}

/// Looks at these sockets until `is_enough`.
#[track_caller]
fn wait_for(address: &str, mut is_enough: impl FnMut(&[Socket]) -> bool) {
    let deadline = Instant::now() + LONG;
    loop {
        let sockets = connected_to(address);
        if is_enough(&sockets) {
            return;
        }
        assert!(Instant::now() < deadline, "{sockets:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_killed_initiators_kernel_sends_none_of_its_writes() {
    if !can_attach() {
        return;
    }
    if find_program("nft").is_none() {
        return harness::skip("there is no nft");
    }
    let Some(links) = Links::new(1) else {
        return harness::skip("a network namespace needs root and iproute2");
    };
    let there = Directory::new();
    let _target = serve(&links, &there);
    let far = links.far_address(0);
    let volume = format!(
        "[volume.db]\niscsi = {{ url = \"iscsi://{far}:{PORT}/{IQN}/0\", request_timeout = \"200s\" }}\n"
    );
    let mut attached = Attached::start(&volume);
    let path = attached.path.clone();
    thread::scope(|scope| {
        links.swallow(0);
        let writer = scope.spawn(move || {
            let file = fs::OpenOptions::new().write(true).open(path);
            let file = file.expect("it can be opened");
            file.write_all_at(&harness::noise(1, 1 << 20), 0)
        });
        wait_for(&far, |sockets| {
            sockets.iter().any(|socket| socket.unsent_bytes > 0)
        });
        attached.daemon.signal("KILL");
        attached.daemon.wait(LONG).expect("it is dead");
        let written = writer.join().expect("it ends");
        written.expect_err("nobody is there");
    });
    // The kernel releases a dead process' sockets in its own time. One that it goes on with leaves this state first.
    wait_for(&far, |sockets| {
        let orphans = sockets.iter().filter(|it| it.state != ESTABLISHED);
        let orphans: Vec<&Socket> = orphans.collect();
        assert!(orphans.is_empty(), "the kernel goes on with {orphans:?}");
        sockets.is_empty()
    });
    links.let_through();
}
