//! Attacks by initiators that may log in, with their own LUN next to the database's: wrong lengths, numbers and tags,
//! storms of aborts and logins, and memory that is never released.

use crate::{Attack, Site};
use harness::noise;
use harness::sanstone::IQN;
use harness::wire::{Direction, Session, connect_from, opcode, read_10, send, write_10};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) const ATTACKS: &[(Attack, u16)] = &[
    (babble, 1),
    (lie_about_pdus, 1),
    (lie_in_commands, 1),
    (miscount, 1),
    (send_unasked, 1),
    (abort, 2),
    (reset, 1),
    (reconnect, 1),
    (take_over, 2),
    (read_and_not_take, 4),
    (write_and_not_send, 4),
];

/// The attackers' own LUN.
const LUN: u8 = 1;
const UNASKED: [&str; 3] = [
    "ImmediateData=Yes",
    "InitialR2T=No",
    "FirstBurstLength=65536",
];

fn login(site: &Site, number: u16) -> io::Result<Session> {
    let stream = connect_from(Ipv4Addr::new(127, 0, 1, number as u8), site.port)?;
    let mut session = Session::login_on(stream, IQN, LUN, number, &UNASKED)?;
    session.wait_until_ready()?;
    let stream = session.stream();
    stream.set_read_timeout(Some(Duration::from_millis(50)))?;
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    Ok(session)
}

/// Receives PDUs until the target is silent or gone.
fn listen(session: &mut Session) {
    while session.receive().is_ok() {}
}

/// Receives PDUs up to the answer to `last`; false if the target falls silent before that, perhaps in the middle of a
/// PDU.
fn listen_for(session: &mut Session, last: u32) -> bool {
    loop {
        match session.receive() {
            Ok(pdu) if pdu.task() == last => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

/// Sends random bytes.
fn babble(site: &Site, number: u16, _: Instant) -> io::Result<()> {
    let mut session = login(site, number)?;
    let garbage = noise(u64::from(number), 64 << 10);
    for _ in 0..4 {
        session.stream().write_all(&garbage)?;
    }
    Ok(())
}

/// Every opcode with the longest additional headers, and with the longest data segment.
fn lie_about_pdus(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    for opcode in [0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x1c, 0x3f] {
        for field in [4..5, 5..8, 4..8] {
            if Instant::now() >= end {
                return Ok(());
            }
            let mut session = login(site, number)?;
            let mut header = header(opcode, 7, session.cmd_sn);
            header[field].fill(0xff);
            session.stream().write_all(&header)?;
            let _ = session.stream().write_all(&noise(3, 128 << 10));
            listen(&mut session);
            site.did();
        }
    }
    Ok(())
}

/// Commands whose expected length, transfer length, allocation length or parameter list length is
/// as large as the field allows.
fn lie_in_commands(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    let mut session = login(site, number)?;
    for operation in [
        0x12, 0x15, 0x1a, 0x25, 0x28, 0x2a, 0x2e, 0x2f, 0x34, 0x35, 0x41, 0x42, 0x4d, 0x55, 0x5a,
        0x5e, 0x5f, 0x83, 0x84, 0x88, 0x89, 0x8a, 0x8b, 0x8e, 0x8f, 0x93, 0x9c, 0x9e, 0xa0, 0xa3,
        0xa8, 0xaa, 0x7f,
    ] {
        for (direction, expected) in [
            (Direction::Read, u32::MAX),
            (Direction::Write, u32::MAX),
            (Direction::Read, 512),
            (Direction::Write, 512),
            (Direction::None, 0),
        ] {
            // Also varies the service action or page code.
            for second in [0, 1, 0x10] {
                let mut cdb = [0xff; 16];
                cdb[..2].copy_from_slice(&[operation, second]);
                // An LBA that exists, so that the length alone is wrong.
                cdb[2..10].fill(if second == 1 { 0xff } else { 0 });
                if session.command(&cdb, direction, expected, &[]).is_err() {
                    session = login(site, number)?;
                }
                site.did();
            }
        }
        listen(&mut session);
        if Instant::now() >= end {
            break;
        }
        if session.execute(&[0; 6], &[], 0).is_err() {
            session = login(site, number)?;
        }
    }
    Ok(())
}

/// CmdSN before, beyond and twice in the window, with gaps; ExpStatSN of PDUs that were never sent.
fn miscount(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    for step in [1u32, 2, 100, 128, 129, 1 << 31, u32::MAX, 0] {
        if Instant::now() >= end {
            break;
        }
        let mut session = login(site, number)?;
        for turn in 0..64u32 {
            session.cmd_sn = session.cmd_sn.wrapping_add(step.wrapping_sub(1));
            session.exp_stat_sn = session.exp_stat_sn.wrapping_add(turn.wrapping_mul(step));
            if session.command(&[0; 6], Direction::None, 0, &[]).is_err() {
                break;
            }
            site.did();
        }
        listen(&mut session);
    }
    Ok(())
}

/// Data-Out for tasks that do not exist, and for an existing one with each field wrong in turn.
fn send_unasked(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    for (offset, value) in [
        (16, 0x7777_7777), // initiator task tag
        (20, 0x7777_7777), // target transfer tag
        (20, u32::MAX),
        (36, 5),   // DataSN
        (40, 512), // buffer offset
        (40, u32::MAX),
        (8, 0x0101_0101), // LUN
    ] {
        if Instant::now() >= end {
            break;
        }
        let mut session = login(site, number)?;
        let length = 256 << 10;
        session.command(&write_10(0, 512), Direction::Write, length, &[])?;
        let r2t = loop {
            let pdu = session.receive()?;
            if pdu.opcode() == opcode::R2T {
                break pdu;
            }
        };
        let mut header = [0; 48];
        header[0] = 0x05;
        header[1] = 0x80;
        header[8..24].copy_from_slice(&r2t.header[8..24]);
        header[40..44].copy_from_slice(&r2t.header[40..44]);
        header[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
        for _ in 0..32 {
            if send(session.stream(), &mut header, &noise(4, 4096)).is_err() {
                break;
            }
            site.did();
        }
        listen(&mut session);
    }
    Ok(())
}

/// Commands and aborts as fast as possible: of its own commands, of others', and of none.
fn abort(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    const ABORT_TASK: u8 = 1;
    const ABORT_TASK_SET: u8 = 2;
    let mut session = login(site, number)?;
    let data = noise(5, 4096);
    while Instant::now() < end {
        for _ in 0..8 {
            let task = session.command(&write_10(0, 8), Direction::Write, 4096, &data)?;
            session.task_management(ABORT_TASK, Some(task))?;
            session.task_management(ABORT_TASK, Some(task ^ 0x5555))?;
        }
        let last = session.task_management(ABORT_TASK_SET, None)?;
        site.did();
        if !listen_for(&mut session, last) {
            session = login(site, number)?;
        }
    }
    Ok(())
}

/// Resets of its own LUN, over commands in flight.
fn reset(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    const CLEAR_TASK_SET: u8 = 4;
    const LOGICAL_UNIT_RESET: u8 = 5;
    let mut session = login(site, number)?;
    while Instant::now() < end {
        for _ in 0..8 {
            session.command(&read_10(0, 128), Direction::Read, 65536, &[])?;
        }
        session.task_management(CLEAR_TASK_SET, None)?;
        let last = session.task_management(LOGICAL_UNIT_RESET, None)?;
        site.did();
        if !listen_for(&mut session, last) {
            session = login(site, number)?;
        }
    }
    Ok(())
}

/// Logs in and disconnects.
fn reconnect(site: &Site, number: u16, _: Instant) -> io::Result<()> {
    login(site, number).map(drop)
}

/// The same initiator port logs in again and again while its previous session is busy.
fn take_over(site: &Site, _: u16, end: Instant) -> io::Result<()> {
    const SHARED: u16 = 250;
    let mut session = login(site, SHARED)?;
    while Instant::now() < end {
        for _ in 0..16 {
            session.command(&read_10(0, 128), Direction::Read, 65536, &[])?;
        }
        session = login(site, SHARED)?;
        site.did();
    }
    Ok(())
}

/// Long reads whose data is never received.
fn read_and_not_take(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    let mut session = login(site, number)?;
    while Instant::now() < end {
        session.command(&read_10(0, 8192), Direction::Read, 4 << 20, &[])?;
    }
    Ok(())
}

/// Long writes with much unsolicited data, whose R2Ts are never answered; then it just stays connected.
fn write_and_not_send(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    let mut session = login(site, number)?;
    let data = noise(6, 65536);
    for _ in 0..128 {
        let sent = session.command(&write_10(0, 8192), Direction::Write, 4 << 20, &data);
        if sent.is_err() {
            break;
        }
    }
    site.did();
    sleep(Duration::from_secs(2).min(end.saturating_duration_since(Instant::now())));
    Ok(())
}

fn header(opcode: u8, task: u32, cmd_sn: u32) -> [u8; 48] {
    let mut header = [0; 48];
    header[0] = opcode;
    header[1] = 0x80;
    header[9] = LUN;
    header[16..20].copy_from_slice(&task.to_be_bytes());
    header[20..24].fill(0xff);
    header[24..28].copy_from_slice(&cmd_sn.to_be_bytes());
    header
}
