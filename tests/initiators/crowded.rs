//! The right initiator beside a crowd from its own address that knows all but its secret, as behind a NAT: it logs in each
//! time.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use harness::sanstone::{IQN, Sanstone};
use harness::wire::{login_header, send};

use crate::authentication::{CHAP, SECRET, inquiry, let_in, serve, url};

/// How many others there are at a time.
const CROWD: u16 = 200;
/// How often the right one logs in.
const LOGINS: usize = 20;

/// The first request of a login, under the right name for all that anybody can tell.
fn begin(stream: &mut TcpStream, number: u16) -> io::Result<()> {
    let mut header = login_header(number);
    header[1] = 0x00; // the security stage, and no wish to leave it
    let text = format!(
        "InitiatorName=iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-inq\0TargetName={IQN}\0\
         SessionType=Normal\0AuthMethod=CHAP\0"
    );
    send(stream, &mut header, text.as_bytes())
}

/// Receives a Login Response; returns its header.
fn answer(stream: &mut TcpStream) -> io::Result<[u8; 48]> {
    let mut header = [0; 48];
    stream.read_exact(&mut header)?;
    let len = usize::from(u16::from_be_bytes([header[6], header[7]]));
    stream.read_exact(&mut vec![0; len.next_multiple_of(4)])?;
    Ok(header)
}

/// Logs in with a wrong proof, and waits for the answer to it.
fn guess(port: u16, number: u16) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    begin(&mut stream, number)?;
    for text in [
        "CHAP_A=5\0".to_owned(),
        format!("CHAP_N=host\0CHAP_R=0x{}\0", "5a".repeat(16)),
    ] {
        let told = answer(&mut stream)?;
        let mut header = login_header(number);
        header[1] = 0x00;
        header[28..32].copy_from_slice(&told[24..28]);
        send(&mut stream, &mut header, text.as_bytes())?;
    }
    let told = answer(&mut stream)?;
    assert_ne!(told[36], 0, "a wrong guess was let in");
    Ok(())
}

/// Holds connections on which it has said what `say` says, and opens others for those that are closed.
fn stall(port: u16, stop: &AtomicBool, say: fn(&mut TcpStream, u16) -> io::Result<()>) {
    let open = |number| {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        say(&mut stream, number)?;
        stream.set_nonblocking(true)?;
        io::Result::Ok(stream)
    };
    let is_open = |stream: &mut TcpStream| loop {
        match stream.read(&mut [0; 512]) {
            Ok(1..) => {}
            ended => {
                return ended.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            }
        }
    };
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        held.retain_mut(is_open);
        let missing = usize::from(CROWD) - held.len();
        held.extend((0..missing as u16).filter_map(|number| open(number).ok()));
        thread::yield_now();
    }
}

/// The right initiator logs in each time beside `crowd`, which is called with the port until told to stop.
fn logs_in_beside(crowd: impl Fn(u16, &AtomicBool) + Sync) {
    let server: Sanstone = serve("", CHAP);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| crowd(server.port(), &stop));
        let right = url(&server, "host", SECRET);
        // Whoever fails here must not keep the crowd going.
        let ran: Vec<_> = (0..LOGINS).map(|_| inquiry(&[], &right)).collect();
        stop.store(true, Ordering::Relaxed);
        ran.iter().for_each(let_in);
    });
}

#[test]
fn guesses_from_its_own_address_keep_no_initiator_out() {
    logs_in_beside(|port, stop| {
        thread::scope(|scope| {
            for number in 0..CROWD {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        // Whoever was displaced comes back.
                        let _ = guess(port, number);
                    }
                });
            }
        });
    });
}

#[test]
fn half_headers_from_its_own_address_keep_no_initiator_out() {
    logs_in_beside(|port, stop| {
        stall(port, stop, |stream, number| {
            stream.write_all(&login_header(number)[..22])
        });
    });
}

#[test]
fn stalled_logins_from_its_own_address_keep_no_initiator_out() {
    logs_in_beside(|port, stop| stall(port, stop, begin));
}
