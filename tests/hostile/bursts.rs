//! Sessions that begin as many writes as their window allows, each with the longest first burst, and never end these
//! bursts. Another session's writes find memory beside them, and they lose what they keep from it.

use harness::directory::Directory;
use harness::noise;
use harness::sanstone::{IQN, Sanstone, target_table};
use harness::wire::{Direction, Session, opcode, read_10, write_10};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::thread::{scope, sleep};
use std::time::Duration;

/// The FirstBurstLength of a session that is the first, with the memory below.
const BURST: u32 = 256 << 10;
/// The length of a write.
const WRITE: u32 = 1 << 20;
const BLOCKS: u16 = (WRITE / 512) as u16;
/// Commands that the honest session has to send at a time.
const DEPTH: usize = 16;
const ROUNDS: usize = 20;
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
    session
}

/// The FirstBurstLength that was agreed on.
fn burst(session: &Session) -> u32 {
    // The target says nothing if it accepts what was offered.
    let agreed = session.answer("FirstBurstLength");
    agreed.map_or(BURST, |agreed| agreed.parse().expect("a length"))
}

/// Begins as many writes of `len` bytes and their bursts as it may; returns the last task.
fn begin(session: &mut Session, len: u32) -> io::Result<u32> {
    let mut last = 0;
    loop {
        while session.may_send() {
            let cdb = write_10(0, (len / 512) as u16);
            last = session.command_and_data(&cdb, Direction::Write, len, &[7; 512], false)?;
        }
        // Its answer shows that the target has seen all of them, and whether there is room for more.
        session.nop_out(0x7777_0000, u32::MAX)?;
        while session.receive()?.task() != 0x7777_0000 {}
        if !session.may_send() {
            return Ok(last);
        }
    }
}

/// Writes concurrently, as many as its window allows, until every write has its answer.
fn write(session: &mut Session, data: &[u8]) {
    let first = burst(session) as usize;
    let mut open = Vec::new();
    let mut begun = 0;
    while begun < DEPTH || !open.is_empty() {
        while begun < DEPTH && session.may_send() {
            let cdb = write_10(begun as u32 * u32::from(BLOCKS), BLOCKS);
            let task = session.command(&cdb, Direction::Write, WRITE, &data[..first]);
            open.push(task.expect("it is open"));
            begun += 1;
        }
        let pdu = session.receive().expect("it is open");
        match pdu.opcode() {
            opcode::R2T => {
                let (at, len) = (pdu.word(40) as usize, pdu.word(44) as usize);
                let (tag, segment) = (pdu.word(20), BURST as usize);
                let sent = session.data_out(pdu.task(), tag, data, at..at + len, segment);
                sent.expect("it is open");
            }
            opcode::SCSI_RESPONSE => {
                assert_eq!(pdu.status(), 0, "there is room for what it may send");
                open.retain(|task| *task != pdu.task());
            }
            _ => {}
        }
    }
}

#[test]
fn writes_find_memory_beside_a_session_that_begins_all_it_may() {
    let server = serve();
    let mut honest = login(&server, 1);
    let mut hoarder = login(&server, 2);
    begin(&mut hoarder, WRITE).expect("it is open");
    let data = noise(1, WRITE as usize);
    for _ in 0..ROUNDS {
        write(&mut honest, &data);
    }
}

/// Begins as many bursts as it may, and asks for a long reply; returns the last task of the bursts.
fn begin_before_a_reply(session: &mut Session) -> io::Result<u32> {
    set_socket_recv_buffer_size(session.stream(), 4096)?;
    let len = burst(session);
    let last = begin(session, len)?;
    session.immediate_command(&read_10(0, 8192), Direction::Read, 4 << 20)?;
    Ok(last)
}

/// Takes the reply slowly while it sends the rest of a burst as slowly.
fn sip_and_drip(session: &mut Session, task: u32, may_go_on: &dyn Fn() -> bool) -> io::Result<()> {
    let mut header = [0; 48];
    header[0] = 0x05;
    let rest = burst(session) - 512;
    header[5..8].copy_from_slice(&rest.to_be_bytes()[1..]);
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
    /// Each takes a half of what the ones before it have left.
    const HOARDERS: u16 = 6;
    let mut server = serve();
    let data = noise(1, WRITE as usize);
    scope(|scope| {
        // Its end, also by a panic, ends the hoarders.
        let test = Arc::new(());
        for number in 0..HOARDERS {
            let mut session = login(&server, 100 + number);
            let task = begin_before_a_reply(&mut session).expect("it is open");
            let test = Arc::downgrade(&test);
            let may_go_on = move || test.strong_count() > 0;
            scope.spawn(move || sip_and_drip(&mut session, task, &may_go_on));
        }
        let mut honest = login(&server, 1);
        let said = "it sent the data of its writes at";
        let line = server.daemon().line_with(said, LIMIT, || {
            write(&mut honest, &data);
        });
        assert!(line.contains(" KiB/s while others needed the"), "{line}");
    });
}

/// Some initiators have a depth of their own and do not look at the window.
#[test]
fn an_initiator_that_ignores_a_narrow_window_is_served_while_there_is_room() {
    let server = serve();
    let mut session = login(&server, 1);
    let depth = 60;
    let test_unit_ready = [0; 6];
    let (mut sent, mut answered) = (0, 0);
    while answered < 6000 {
        while sent < answered + depth {
            let command = session.command(&test_unit_ready, Direction::None, 0, &[]);
            command.expect("it is open");
            sent += 1;
        }
        let pdu = session.receive().expect("it is not ended");
        assert_eq!((pdu.opcode(), pdu.status()), (opcode::SCSI_RESPONSE, 0));
        answered += 1;
    }
}
