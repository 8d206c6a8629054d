//! More connections than there may be, and others than clients.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::{Attached, nbdinfo, qemu_io};

#[test]
fn a_thousand_connections_are_too_many_and_harm_nobody() {
    let attached = Attached::file("", &[]);
    let mut crowd: Vec<UnixStream> = (0..1000)
        .map_while(|_| UnixStream::connect(attached.socket()).ok())
        .collect();
    let log = attached
        .daemon
        .log_with("a connection was refused: there are as many as there may be");
    assert!(log.contains("limit=256"), "{log}");
    // Who has a place is greeted, and who has none hears the end.
    let mut greeted = 0;
    // All stay until the last has been looked at: a place that is free is given again.
    for stream in &mut crowd {
        let mut greeting = [0; 18];
        greeted += usize::from(stream.read_exact(&mut greeting).is_ok());
    }
    assert!(greeted <= 256, "{greeted} were let in");
    drop(crowd);
    // Their places are free in a moment.
    while nbdinfo(&["--size", &attached.uri()]).code() != Some(0) {
        std::thread::yield_now();
    }
}

#[test]
fn nonsense_ends_its_own_connection_alone() {
    let attached = Attached::file("", &[]);
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[0; 4096]] {
        let mut stream = UnixStream::connect(attached.socket()).expect("it listens");
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("a greeting");
        // It may be sent away in the middle.
        let _ = stream.write_all(nonsense);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        qemu_io(&attached.uri(), &["write -P 5 0 64k", "read -P 5 0 64k"]).success();
    }
    attached.daemon.log_with("a client was sent away");
}
