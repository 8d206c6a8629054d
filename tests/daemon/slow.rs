//! Initiators that take their data-in, or send their data-out, so slowly that others get no memory: they are
//! disconnected, and the log says who it was and how slow.

use harness::directory::Directory;
use harness::sanstone::{IQN, Sanstone, target_table};
use harness::wire::{Direction, Session, opcode, read_10, write_10};
use std::io::{Read, Write};
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::Duration;

/// The longest transfer. One session may hold as much memory at a time.
const LONGEST: u32 = 4 << 20;
/// As many sessions as hold all the memory of the only lane.
const HOARDERS: u16 = 4;
/// How long the server may take at most until it has disconnected one; the test fails then.
const LIMIT: Duration = Duration::from_secs(300);
const TICK: Duration = Duration::from_millis(100);
/// The bytes that a hoarder moves in each tick: less than a send of the server needs to end within `peer_timeout`.
const SIP: usize = 6000;

fn serve() -> Sanstone {
    let directory = Directory::new();
    let port = harness::free_port();
    let volume = "lanes = 1\nmemory = \"32MiB\"\n[volume.disk]\nram = { size = \"16MiB\" }\n";
    let configuration = format!("{volume}{}", target_table(port, &["disk"]));
    Sanstone::serve_configuration(directory.path(), &configuration, port).owning(directory)
}

fn login(portal: &str, number: u16) -> Session {
    let mut session = Session::login(portal, IQN, 0, number, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    session
}

/// Asks for many long reads and takes them slowly.
fn sip(session: &mut Session, may_go_on: &dyn Fn() -> bool) -> std::io::Result<()> {
    for _ in 0..16 {
        session.command(&read_10(0, 8192), Direction::Read, LONGEST, &[])?;
    }
    while may_go_on() {
        session.stream().read_exact(&mut [0; SIP])?;
        sleep(TICK);
    }
    Ok(())
}

/// Begins a long write, and sends the data that the target asks for slowly.
fn drip(session: &mut Session, may_go_on: &dyn Fn() -> bool) -> std::io::Result<()> {
    session.command(&write_10(0, 8192), Direction::Write, LONGEST, &[])?;
    let r2t = loop {
        let pdu = session.receive()?;
        if pdu.opcode() == opcode::R2T {
            break pdu;
        }
    };
    // The header of a Data-Out with all that it asks for, then the data.
    let len = r2t.word(44).min(128 << 10);
    let mut header = [0; 48];
    header[0] = 0x05;
    header[5..8].copy_from_slice(&len.to_be_bytes()[1..]);
    header[8..24].copy_from_slice(&r2t.header[8..24]);
    header[40..44].copy_from_slice(&r2t.header[40..44]);
    session.stream().write_all(&header)?;
    for _ in 0..len {
        if !may_go_on() {
            break;
        }
        session.stream().write_all(&[0])?;
        sleep(TICK);
    }
    Ok(())
}

type Hoard = fn(&mut Session, &dyn Fn() -> bool) -> std::io::Result<()>;

#[test]
fn who_keeps_memory_from_others_is_disconnected_and_named() {
    let attacks: [(Hoard, &str); 2] = [
        (sip, "it read its replies at"),
        (drip, "it sent the data of its writes at"),
    ];
    for (hoard, said) in attacks {
        let mut server = serve();
        let portal = format!("127.0.0.1:{}", server.port());
        scope(|scope| {
            // Its end, also by a panic, ends the hoarders.
            let test = Arc::new(());
            for number in 0..HOARDERS {
                let mut session = login(&portal, 100 + number);
                let test = Arc::downgrade(&test);
                let may_go_on = move || test.strong_count() > 0;
                scope.spawn(move || hoard(&mut session, &may_go_on));
            }
            let mut victim = login(&portal, 1);
            let line = server.daemon().line_with(said, LIMIT, || {
                // More than the reserve that every session has.
                let read = victim.execute(&read_10(0, 2048), &[], 1 << 20);
                assert_eq!(read.map(|(status, _)| status).ok(), Some(0));
            });
            assert!(
                line.contains("initiator=") && line.contains("peer="),
                "{line}"
            );
            assert!(line.contains(" KiB/s while others needed the"), "{line}");
        });
    }
}
