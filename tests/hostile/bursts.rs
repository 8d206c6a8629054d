//! Sessions that begin as many writes as their window allows, each with the longest first burst, and never end these
//! bursts. Another session's writes find memory beside one of them, and many of them lose what they keep from it.

use harness::directory::Directory;
use harness::noise;
use harness::sanstone::{IQN, Sanstone, target_table};
use harness::wire::{Direction, Session, opcode, read_10, write_10};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::Duration;

/// FirstBurstLength, with the memory below.
const BURST: u32 = 256 << 10;
/// The length of a write.
const WRITE: u32 = 1 << 20;
const BLOCKS: u16 = (WRITE / 512) as u16;
/// The commands of a session's first window.
const WINDOW: usize = 128;
/// Commands that the honest session has open.
const DEPTH: usize = 8;
const ROUNDS: usize = 20;
const TASK_SET_FULL: u8 = 0x28;
const TICK: Duration = Duration::from_millis(100);
/// What a session that is slow on purpose takes of its reply in each tick.
const SIP: usize = 600;
/// Longer than the daemon waits for the data of any write.
const LIMIT: Duration = Duration::from_secs(70);

/// A daemon with one lane and the least memory that allows such bursts.
fn serve() -> Sanstone {
    let directory = Directory::new();
    let port = harness::free_port();
    let volume = "lanes = 1\nmemory = \"128MiB\"\n[volume.disk]\nram = { size = \"16MiB\" }\n";
    let configuration = format!("{volume}{}", target_table(port, &["disk"]));
    Sanstone::serve_configuration(directory.path(), &configuration, port).owning(directory)
}

fn login(server: &Sanstone, number: u16) -> Session {
    let burst = format!("FirstBurstLength={BURST}");
    let keys = ["ImmediateData=Yes", "InitialR2T=No", &burst];
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, number, &keys).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    // The target says nothing if it accepts what was offered.
    let agreed = session.answer("FirstBurstLength");
    assert!(agreed.is_none_or(|agreed| agreed == BURST.to_string()));
    session
}

/// Begins this many writes of `len` bytes and their bursts; returns the last task.
fn begin(session: &mut Session, count: usize, len: u32) -> io::Result<u32> {
    let mut last = 0;
    for _ in 0..count {
        let cdb = write_10(0, (len / 512) as u16);
        last = session.command_and_data(&cdb, Direction::Write, len, &[7; 512], false)?;
    }
    Ok(last)
}

/// Writes concurrently until every write has its answer; returns how many found no memory.
fn write(session: &mut Session, data: &[u8]) -> usize {
    let mut open = Vec::new();
    let mut refused = 0;
    for index in 0..DEPTH {
        let cdb = write_10(index as u32 * u32::from(BLOCKS), BLOCKS);
        let first = &data[..BURST as usize];
        let task = session.command(&cdb, Direction::Write, WRITE, first);
        open.push(task.expect("it is open"));
    }
    while !open.is_empty() {
        let pdu = session.receive().expect("it is open");
        match pdu.opcode() {
            opcode::R2T => {
                let (at, len) = (pdu.word(40) as usize, pdu.word(44) as usize);
                let (tag, segment) = (pdu.word(20), BURST as usize);
                let sent = session.data_out(pdu.task(), tag, data, at..at + len, segment);
                sent.expect("it is open");
            }
            opcode::SCSI_RESPONSE => {
                let status = pdu.status();
                assert!([0, TASK_SET_FULL].contains(&status), "{status:#x}");
                refused += usize::from(status != 0);
                open.retain(|task| *task != pdu.task());
            }
            _ => {}
        }
    }
    refused
}

#[test]
fn writes_find_memory_beside_a_session_that_begins_all_it_may() {
    let server = serve();
    let mut honest = login(&server, 1);
    let mut hoarder = login(&server, 2);
    begin(&mut hoarder, WINDOW, WRITE).expect("it is open");
    // Its answer shows that the target has seen all of them.
    hoarder.nop_out(0x7777_0000, u32::MAX).expect("it is open");
    while hoarder.receive().expect("it is open").opcode() != opcode::NOP_IN {}
    let data = noise(1, WRITE as usize);
    for round in 0..ROUNDS {
        let refused = write(&mut honest, &data);
        assert_eq!(refused, 0, "of {DEPTH} in round {round}");
    }
}

/// Asks for a long reply, and begins this many bursts behind it; returns the last task.
fn begin_behind_a_reply(session: &mut Session, bursts: usize) -> io::Result<u32> {
    set_socket_recv_buffer_size(session.stream(), 4096)?;
    session.command(&read_10(0, 8192), Direction::Read, 4 << 20, &[])?;
    // The reply needs memory, too, and is on its way before the bursts take it.
    sleep(TICK);
    // They need no more than the memory for unsolicited data.
    begin(session, bursts, BURST)
}

/// Takes the reply slowly while it sends the rest of a burst as slowly.
fn sip_and_drip(session: &mut Session, task: u32, may_go_on: &dyn Fn() -> bool) -> io::Result<()> {
    let mut header = [0; 48];
    header[0] = 0x05;
    header[5..8].copy_from_slice(&(BURST - 512).to_be_bytes()[1..]);
    header[16..20].copy_from_slice(&task.to_be_bytes());
    header[20..24].fill(0xff);
    header[40..44].copy_from_slice(&512_u32.to_be_bytes());
    session.stream().write_all(&header)?;
    while may_go_on() {
        session.stream().read_exact(&mut [0; SIP])?;
        session.stream().write_all(&[0])?;
        sleep(TICK);
    }
    Ok(())
}

#[test]
fn who_begins_bursts_and_sips_a_reply_is_disconnected_for_the_memory() {
    /// Each a half of what the ones before it have left.
    const HOARDERS: [usize; 6] = [64, 32, 16, 8, 4, 2];
    let mut server = serve();
    let mut honest = login(&server, 1);
    let data = noise(1, WRITE as usize);
    scope(|scope| {
        // Its end, also by a panic, ends the hoarders.
        let test = Arc::new(());
        for (number, bursts) in (100..).zip(HOARDERS) {
            let mut session = login(&server, number);
            let task = begin_behind_a_reply(&mut session, bursts).expect("it is open");
            let test = Arc::downgrade(&test);
            let may_go_on = move || test.strong_count() > 0;
            scope.spawn(move || sip_and_drip(&mut session, task, &may_go_on));
        }
        let said = "it sent the data of its writes at";
        let line = server.daemon().line_with(said, LIMIT, || {
            write(&mut honest, &data);
        });
        assert!(line.contains(" KiB/s while others needed the"), "{line}");
    });
}
