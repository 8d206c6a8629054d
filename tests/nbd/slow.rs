//! Clients that take their replies, or send the data of their writes, so slowly that others get no memory: they are
//! disconnected, and the log says who it was and how slow.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::thread::{scope, sleep};
use std::time::Duration;

use crate::crowd::client_in_transmission;
use crate::{Attached, LIMIT};

/// The longest transfer. One client may hold as much memory at a time.
const LONGEST: u32 = 4 << 20;
/// As many clients as hold all the memory of the only lane.
const HOARDERS: usize = 4;
const TICK: Duration = Duration::from_millis(100);
const READ: u16 = 0;
const WRITE: u16 = 1;

fn request(kind: u16, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend([0; 2]);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0; 16]);
    bytes.extend(len.to_be_bytes());
    bytes
}

/// Moves one byte now and then, until the server ends the connection or `test` is over.
fn hoard(mut stream: UnixStream, kind: u16, test: &Weak<()>) -> std::io::Result<()> {
    let requests = request(kind, LONGEST).repeat(if kind == READ { 8 } else { 1 });
    stream.write_all(&requests)?;
    while test.strong_count() > 0 {
        match kind {
            READ => stream.read_exact(&mut [0])?,
            _ => stream.write_all(&[0])?,
        }
        sleep(TICK);
    }
    Ok(())
}

#[test]
fn who_keeps_memory_from_others_is_disconnected_and_named() {
    for (kind, said) in [
        (READ, "it read its replies at"),
        (WRITE, "it sent the data of its writes at"),
    ] {
        let attached = Attached::file("lanes = 1\nmemory = \"32MiB\"\n", &[]);
        scope(|scope| {
            // Its end, also by a panic, ends the hoarders.
            let test = Arc::new(());
            for _ in 0..HOARDERS {
                let stream = client_in_transmission(&attached);
                let test = Arc::downgrade(&test);
                scope.spawn(move || hoard(stream, kind, &test));
            }
            let mut victim = client_in_transmission(&attached);
            let line = attached.daemon.line_with(said, LIMIT, || {
                // More than the reserve that every client has.
                let asked = victim.write_all(&request(READ, 1 << 20));
                asked.expect("the server lives");
                let answered = victim.read_exact(&mut vec![0; 16 + (1 << 20)]);
                answered.expect("the server lives");
            });
            let socket = attached.socket();
            let peer = format!("unix:{} (pid {},", socket.display(), std::process::id());
            assert!(line.contains(&peer), "not {peer:?} in {line}");
            // Each holds no more than it left free when it came.
            let held = line.split_once(" KiB/s while others needed the ");
            let held = held.and_then(|(_, rest)| rest.split_once(" KiB of memory"));
            let held_kib = held.and_then(|(held, _)| held.parse::<u32>().ok());
            assert!(
                held_kib.is_some_and(|held| (64..=8192).contains(&held)),
                "{line}"
            );
        });
    }
}
