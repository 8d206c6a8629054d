//! The kernel's own NBD client against `sanstone attach --nbd` on this machine.

use crate::{Check, Expected, QUIET, host::ADDRESSES};
use harness::directory::Directory;
use harness::guest::LONG;
use harness::process::{Daemon, wait_until_free};
use harness::sanstone::binary;
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 48 * MIB;

const ENDED: &[Expected] = &[
    ("NBD_DISCONNECT", "the check asks for it"),
    ("shutting down sockets", "of a device that is disconnected"),
];

/// A volume for NBD clients, at an address that the guests reach.
struct Attached {
    daemon: Daemon,
    address: SocketAddr,
    directory: Directory,
    /// How often its counters were queried.
    asked: Cell<usize>,
}

impl Attached {
    fn start() -> Attached {
        let directory = Directory::new();
        directory.write(
            "sanstone.toml",
            format!(
                "state = \"state\"\nlanes = 2\n[volume.db]\nfile = {{ path = \"db.img\", size = \"{SIZE}B\", \
                 cache = \"write-back\" }}\n"
            ),
        );
        let ip = ADDRESSES[0].parse().expect("an address");
        let address = SocketAddr::new(ip, harness::free_port());
        Attached {
            daemon: start(&directory, address),
            address,
            directory,
            asked: Cell::new(0),
        }
    }

    /// Ends it although its client is connected.
    fn end_at_once(&mut self) {
        self.daemon.signal("TERM");
        // By then a second has passed.
        self.daemon.log_with("in use by");
        self.daemon.signal("TERM");
        let ended = self.daemon.wait(Duration::from_secs(60));
        assert!(!ended.expect("it ends").success(), "{}", self.daemon.log());
    }

    fn start_again(&mut self) {
        wait_until_free(self.address);
        self.daemon = start(&self.directory, self.address);
        self.asked.set(0);
    }

    /// How many requests of this kind its file has received.
    fn count(&self, kind: &str) -> u64 {
        self.asked.set(self.asked.get() + 1);
        self.daemon.signal("USR1");
        let log = self.daemon.log_with_times("node db/file", self.asked.get());
        let (_, last) = log.rsplit_once("node db/file").expect("it is there");
        let line = last
            .lines()
            .find(|line| line.trim_start().starts_with(kind));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.map_or(0, |number| number.parse().expect("a number"))
    }

    fn allocated_bytes(&self) -> u64 {
        let file = std::fs::metadata(self.directory.join("db.img"));
        file.expect("it is served").blocks() * 512
    }
}

fn start(directory: &Directory, address: SocketAddr) -> Daemon {
    let mut command = Command::new(binary());
    command
        .args(["attach", "-c"])
        .arg(directory.join("sanstone.toml"))
        .args(["db", "--nbd", &address.to_string()]);
    let mut daemon = Daemon::start(&command, directory.join("sanstone.log"));
    daemon.wait_until(|| TcpStream::connect(address).is_ok());
    daemon
}

/// The guest as an NBD client, if its kernel supports NBD.
fn client(expected: &'static [Expected]) -> Option<Check> {
    let check = Check::begin(&QUIET, expected)?;
    if check.run("has_module nbd").code != Some(0) {
        harness::skip("the guest's kernel has no NBD");
        check.end();
        return None;
    }
    check.run("nbd_module").success();
    Some(check)
}

/// `nbd_begin` of this address.
fn begin(address: SocketAddr, options: &str) -> String {
    format!("nbd_begin {} {} {options}", address.ip(), address.port())
}

#[test]
fn nbd_of_the_kernel_is_told_what_the_volume_is() {
    let attached = Attached::start();
    let Some(check) = client(ENDED) else {
        return;
    };
    check.run(&begin(attached.address, "-N db")).success();
    let facts = check.run("nbd_facts").success();
    let expected = format!("size={SIZE} logical=512 cache=write back fua=1 discards=1\n");
    assert_eq!(facts, expected);
    check.run("nbd_end").success();
    attached.daemon.log_with("a client has disconnected");
    check.end();
}

#[test]
fn nbd_of_the_kernel_reads_what_it_wrote_over_several_connections() {
    let attached = Attached::start();
    let Some(check) = client(ENDED) else {
        return;
    };
    check.run(&begin(attached.address, "-C 4")).success();
    attached.daemon.log_with_times("a client has connected", 4);
    check.start("nbd_verify", LONG).finish().success();
    // Trimmed blocks are deallocated and read as zeroes.
    check.run("fill /dev/nbd0 32").success();
    let before = attached.allocated_bytes();
    check
        .run("blkdiscard --offset 8M --length 16M /dev/nbd0")
        .success();
    let after = attached.allocated_bytes();
    assert!(
        before.saturating_sub(after) >= 15 * MIB,
        "{before}, then {after} bytes"
    );
    check
        .run("filled /dev/nbd0 0 8 && zeroes /dev/nbd0 8 16 && filled /dev/nbd0 24 8")
        .success();
    check.run("nbd_end").success();
    attached
        .daemon
        .log_with_times("a client has disconnected", 4);
    check.end();
}

#[test]
fn nbd_of_the_kernel_carries_a_file_system() {
    let attached = Attached::start();
    let Some(check) = client(ENDED) else {
        return;
    };
    check.run(&begin(attached.address, "-C 2")).success();
    let said = check.start("nbd_file_system", LONG).finish().success();
    assert!(said.contains("trimmed"), "{said}");
    assert!(attached.count("flush") > 0, "{}", attached.daemon.log());
    let allocated = attached.allocated_bytes();
    assert!(allocated < 16 * MIB, "{allocated} bytes are not given back");
    check.run("nbd_end").success();
    check.end();
}

#[test]
fn nbd_of_the_kernel_sends_flushes_and_fua() {
    let attached = Attached::start();
    let tap = Tap::to(attached.address);
    let Some(check) = client(ENDED) else {
        return;
    };
    check.run(&begin(tap.address, "")).success();
    check.run("nbd_write").success();
    assert_eq!((attached.count("flush"), tap.fua()), (0, 0));
    check.run("nbd_write --fdatasync=4").success();
    let flushes = attached.count("flush");
    assert!(flushes >= 3, "{flushes}");
    // The kernel sends FUA if the server offers it, and a flush only if it does not.
    check.run("nbd_write --sync=dsync").success();
    assert!(tap.fua() >= 16, "{}", tap.fua());
    check.run("nbd_end").success();
    check.end();
}

#[test]
fn nbd_of_the_kernel_comes_back_after_a_server_that_ended_while_it_was_idle() {
    const GONE: &[Expected] = &[
        ("NBD_DISCONNECT", "the check asks for it"),
        ("shutting down sockets", "the server has closed them"),
        ("Receive control failed", "the server has closed it"),
        ("Dead connection", "as are all"),
        ("I/O error", "udev looks at a disk that was written"),
        ("Connection timed out", "and waits for an answer, in vain"),
        ("Send disconnect failed", "nobody is there any more"),
        (
            "Unexpected reply",
            "an emulated clock that jumps ends the wait for an answer that is on its way",
        ),
    ];
    let mut attached = Attached::start();
    let Some(check) = client(GONE) else {
        return;
    };
    // Where an emulated network loses a connection, the kernel goes on with the other one a minute later.
    check.run(&begin(attached.address, "-C 2 -t 60")).success();
    check.run("fill /dev/nbd0 4").success();
    attached.end_at_once();
    check.run("nbd_end").success();
    attached.start_again();
    check.run(&begin(attached.address, "-C 2")).success();
    check.run("filled /dev/nbd0 0 4").success();
    check.run("nbd_end").success();
    attached
        .daemon
        .log_with_times("a client has disconnected", 2);
    check.end();
}

/// A proxy to the server that counts writes with FUA.
struct Tap {
    address: SocketAddr,
    fua: Arc<AtomicU32>,
}

impl Tap {
    fn to(server: SocketAddr) -> Tap {
        let listener = TcpListener::bind((server.ip(), 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound socket has one");
        let fua = Arc::new(AtomicU32::new(0));
        let count = fua.clone();
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = TcpStream::connect(server).expect("it is served");
                let (up, count) = ((clone(&near), clone(&far)), count.clone());
                thread::spawn(move || {
                    forward(up.0, up.1, |bytes| {
                        let found = bytes.windows(FUA_WRITE.len()).filter(|at| *at == FUA_WRITE);
                        count.fetch_add(found.count() as u32, Ordering::Relaxed);
                    })
                });
                thread::spawn(move || forward(far, near, |_| {}));
            }
        });
        Tap { address, fua }
    }

    fn fua(&self) -> u32 {
        self.fua.load(Ordering::Relaxed)
    }
}

/// How a write with FUA begins: the request's magic, NBD_CMD_FLAG_FUA, NBD_CMD_WRITE.
const FUA_WRITE: [u8; 8] = [0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1];

fn clone(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a socket")
}

/// Forwards the stream and shows it to `look`: each byte once, plus the last seven bytes of the previous piece.
fn forward(mut from: TcpStream, mut to: TcpStream, look: impl Fn(&[u8])) {
    let (mut piece, mut kept) = (vec![0; 64 << 10], Vec::new());
    while let Ok(length @ 1..) = from.read(&mut piece) {
        kept.extend_from_slice(&piece[..length]);
        look(&kept);
        kept.drain(..kept.len().saturating_sub(FUA_WRITE.len() - 1));
        if to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
