//! Attacks by peers that only connect, from many addresses or from one, and by peers that try to guess a secret.

use crate::{Attack, GUARDED, Site};
use harness::noise;
use harness::wire::{connect_from, login_header, send};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) const ATTACKS: &[(Attack, u16)] = &[
    (crowd_from_everywhere, 1),
    (crowd_from_one_address, 1),
    (slow_drip, 1),
    (half_open, 1),
    (babble, 2),
    (announce, 2),
    (begin_and_wait, 1),
    (guess, 8),
];

/// Connections that the two crowds hold together.
const CROWD: u32 = 10_000;

/// An address of the loopback network that nobody else uses, by number.
fn source(number: u32) -> Ipv4Addr {
    let [_, a, b, c] = number.to_be_bytes();
    Ipv4Addr::new(127, 1 + a, b, 1 + c % 254)
}

/// Holds silent connections, replacing those that were closed.
fn hold(site: &Site, end: Instant, from: impl Fn(u32) -> Ipv4Addr) -> io::Result<()> {
    let mut held = Vec::new();
    for number in 0..CROWD / 2 {
        if Instant::now() >= end {
            return Ok(());
        }
        held.push(connect_from(from(number), site.port)?);
        site.did();
    }
    let mut number = CROWD / 2;
    while Instant::now() < end {
        // The oldest have been closed by now; the crowd stays as large as it was.
        for place in (0..held.len()).step_by(16) {
            number += 1;
            held[place] = connect_from(from(number), site.port)?;
            site.did();
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn crowd_from_everywhere(site: &Site, _: u16, end: Instant) -> io::Result<()> {
    hold(site, end, source)
}

fn crowd_from_one_address(site: &Site, _: u16, end: Instant) -> io::Result<()> {
    hold(site, end, |_| Ipv4Addr::new(127, 0, 0, 9))
}

/// A login sent at one byte per second, on many connections.
fn slow_drip(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    let mut streams = Vec::new();
    for n in 0..64 {
        streams.push(connect_from(source(0x2_0000 + n), site.port)?);
    }
    for byte in login_header(number) {
        if Instant::now() >= end {
            return Ok(());
        }
        // Some are dropped along the way.
        for stream in &mut streams {
            let _ = stream.write_all(&[byte]);
        }
        site.did();
        sleep(Duration::from_secs(1).min(end.saturating_duration_since(Instant::now())));
    }
    Ok(())
}

/// Connections that are half closed, or that stop in the middle of a header.
fn half_open(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    let mut held = Vec::new();
    for n in 0..256 {
        if Instant::now() >= end {
            break;
        }
        let mut stream = connect_from(source(0x3_0000 + n), site.port)?;
        match n % 3 {
            0 => stream.shutdown(Shutdown::Write)?,
            1 => stream.shutdown(Shutdown::Read)?,
            _ => stream.write_all(&login_header(number)[..40])?,
        }
        held.push(stream);
        sleep(Duration::from_millis(2));
    }
    sleep(Duration::from_millis(200).min(end.saturating_duration_since(Instant::now())));
    Ok(())
}

fn impatient(source: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let stream = connect_from(source, port)?;
    stream.set_write_timeout(Some(Duration::from_millis(200)))?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    Ok(stream)
}

/// Random bytes instead of a login.
fn babble(site: &Site, number: u16, _: Instant) -> io::Result<()> {
    let mut stream = impatient(source(0x4_0000 + u32::from(number)), site.port)?;
    let garbage = noise(u64::from(number), 16 << 10);
    for _ in 0..16 {
        stream.write_all(&garbage)?;
    }
    Ok(())
}

/// A login with the largest lengths its fields allow, or one that never ends.
fn announce(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    for kind in 0..4 {
        let mut stream = impatient(source(0x5_0000 + u32::from(number)), site.port)?;
        let mut header = login_header(number);
        match kind {
            0 => header[4] = 0xff,
            1 => header[5..8].fill(0xff),
            2 => header[1] = 0x44,
            _ => header[6] = 0x20,
        }
        header[1] &= if kind == 2 { 0x44 } else { 0xff };
        if kind == 2 {
            // Continued for ever.
            for _ in 0..64 {
                send(&mut stream, &mut header, &noise(1, 8192))?;
            }
        } else {
            stream.write_all(&header)?;
            let _ = stream.write_all(&noise(2, 64 << 10));
        }
        let _ = stream.read(&mut [0; 512]);
        site.did();
        if Instant::now() >= end {
            break;
        }
    }
    Ok(())
}

/// The first request of a login, under varying initiator names.
fn first_request(stream: &mut TcpStream, number: u16, name: u32, target: &str) -> io::Result<()> {
    let mut header = login_header(number);
    header[1] = 0x00; // the security stage, and no wish to leave it
    let text = format!(
        "InitiatorName=iqn.2026-11.io.sanstone:stranger-{name}\0TargetName={target}\0\
         SessionType=Normal\0AuthMethod=CHAP\0"
    );
    send(stream, &mut header, text.as_bytes())
}

/// Logins that are begun and abandoned.
fn begin_and_wait(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    let mut held = Vec::new();
    for n in 0..600 {
        if Instant::now() >= end {
            break;
        }
        let mut stream = impatient(source(0x6_0000 + n), site.port)?;
        first_request(&mut stream, number, n, GUARDED)?;
        held.push(stream);
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Guesses a secret, several attempts at once from one address.
fn guess(site: &Site, number: u16, end: Instant) -> io::Result<()> {
    let mut stream = connect_from(Ipv4Addr::new(127, 0, 0, 10), site.port)?;
    stream.set_read_timeout(Some(
        end.saturating_duration_since(Instant::now()) + Duration::from_millis(1),
    ))?;
    first_request(&mut stream, number, number.into(), GUARDED)?;
    let mut reply = [0; 512];
    for text in [
        "CHAP_A=5\0".to_owned(),
        format!("CHAP_N=db\0CHAP_R=0x{}\0", "5a".repeat(16)),
    ] {
        let received = stream.read(&mut reply)?;
        if received < 48 || reply[36] != 0 {
            break;
        }
        let mut header = login_header(number);
        header[1] = 0x00;
        header[28..32].copy_from_slice(&reply[24..28]);
        send(&mut stream, &mut header, text.as_bytes())?;
    }
    let received = stream.read(&mut reply)?;
    assert!(
        received < 48 || reply[36] != 0 || reply[1] & 0x80 == 0,
        "a wrong guess was let in"
    );
    Ok(())
}
