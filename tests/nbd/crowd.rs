//! More connections than allowed, and connections that are not clients.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{Attached, nbdinfo, qemu_io};

/// More strangers than one user may have in the handshake.
fn crowd(attached: &Attached) -> Vec<UnixStream> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("the soft limit may be raised to the hard one");
    let strangers = (0..2000).map(|_| UnixStream::connect(attached.socket()));
    strangers.map(|it| it.expect("it listens")).collect()
}

#[test]
fn thousands_of_strangers_keep_no_client_out() {
    let attached = Attached::file("", &[]);
    let crowd = crowd(&attached);
    attached.daemon.log_with("to make room for a new one");
    // All of them stay.
    nbdinfo(&["--size", &attached.uri()]).success();
    drop(crowd);
}

/// Strangers of the same user displace each other, not a client that has begun.
#[test]
fn strangers_who_merely_connect_displace_no_client_in_its_handshake() {
    let attached = Attached::file("", &[]);
    let mut slow = UnixStream::connect(attached.socket()).expect("it listens");
    slow.read_exact(&mut [0; 18]).expect("a greeting");
    let flags_and_option = *b"\0\0\0\x03IHAVEOPT\0\0\0\x03\0\0\0\0";
    slow.write_all(&flags_and_option).expect("it takes it");
    // The reply to NBD_OPT_LIST begins.
    slow.read_exact(&mut [0; 20]).expect("a reply");
    let crowd = crowd(&attached);
    attached.daemon.log_with("to make room for a new one");
    // Whoever was displaced reads the end.
    let mut last = crowd.last().expect("they connect");
    last.read_exact(&mut [0; 18]).expect("a greeting");
    slow.set_nonblocking(true).expect("a socket");
    let ended =
        std::iter::repeat_with(|| slow.read(&mut [0; 64])).find(|read| !matches!(read, Ok(1..)));
    let is_open =
        matches!(ended, Some(Err(error)) if error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(is_open, "it was displaced");
}

#[test]
fn more_clients_than_there_may_be_are_refused_until_one_leaves() {
    let attached = Attached::file("", &[]);
    let mut clients: Vec<UnixStream> = (0..256)
        .map(|_| client_in_transmission(&attached))
        .collect();
    let refused = nbdinfo(&["--size", &attached.uri()]);
    assert_ne!(refused.code(), Some(0), "{refused}");
    let log = attached
        .daemon
        .log_with("connection refused: the client limit is reached");
    assert!(log.contains("limit=256"), "{log}");
    clients.pop();
    // Its place is free in a moment.
    while nbdinfo(&["--size", &attached.uri()]).code() != Some(0) {
        std::thread::yield_now();
    }
}

/// A connection that has selected the export with the oldest option (NBD_OPT_EXPORT_NAME), and received its length.
pub(crate) fn client_in_transmission(attached: &Attached) -> UnixStream {
    let mut stream = UnixStream::connect(attached.socket()).expect("it listens");
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    let flags_and_option = *b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0";
    stream.write_all(&flags_and_option).expect("it takes it");
    stream.read_exact(&mut [0; 10]).expect("the export");
    stream
}

#[test]
fn nonsense_ends_its_own_connection_alone() {
    let attached = Attached::file("", &[]);
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[0; 4096]] {
        let mut stream = UnixStream::connect(attached.socket()).expect("it listens");
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("a greeting");
        // The server may drop it half-way.
        let _ = stream.write_all(nonsense);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        qemu_io(&attached.uri(), &["write -P 5 0 64k", "read -P 5 0 64k"]).success();
    }
    attached.daemon.log_with("disconnected a client");
}
