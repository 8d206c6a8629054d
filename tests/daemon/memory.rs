//! Memory stays bounded whatever clients send: many sessions at once that request reads but never receive the data,
//! announce writes but never send all of it, ignore the command window, send garbage, or make the target do pointless
//! I/O.

use harness::disk::Disk;
use harness::noise;
use harness::process::{program, signal};
use harness::procfs::resident_peak_bytes;
use harness::run::run;
use harness::wire::{Direction, Session, login_header, opcode, read_10, write_10};
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A server to attack.
struct Site {
    settings: &'static str,
    /// What it may hold at most.
    bound_bytes: u64,
}

/// What the server may hold in addition to the payload memory that its configuration allows: 12 MiB for the program,
/// 256 KiB for each session (its reserve and a full window of waiting commands), and 32 KiB for each connection before
/// login, counted twice because as many again may be closing.
const BESIDE_BYTES: u64 = (12 << 20) + CONNECTIONS * (256 << 10) + 2 * LOGINS * (32 << 10);
/// For each lane, its thread and its ring.
const LANE_BYTES: u64 = 256 << 10;
/// One for each attacker, and some for clients that come when they have gone.
const CONNECTIONS: u64 = CLIENTS_PER_KIND as u64 * KINDS.len() as u64 + 16;
/// Connections before login allowed from one address.
const LOGINS: u64 = 64;
/// At this size the test kills the server, before it exhausts the machine's memory.
const GIVE_UP_BYTES: u64 = 1 << 30;
const ATTACK: Duration = Duration::from_secs(8);
const CLIENTS_PER_KIND: u16 = 16;

/// Connections that never log in stay until the server drops them. The `hostile` tests cover the case of hundreds of
/// connections abandoned during a pause of the machine.
const ENDED_WITHIN: Duration = Duration::from_secs(30);

/// An attacker: sends until the time is up or the server drops it.
type Attack = fn(&str, &str, u8, u16, Instant) -> std::io::Result<()>;

/// There are two lots of lazy writers: a session can send 64 KiB of unsolicited data for each command of the window,
/// and a server that accepted all of it from this many would hold 256 MiB.
const KINDS: [Attack; 7] = [
    greedy_reader,
    lazy_writer,
    lazy_writer,
    stalling_writer,
    comparer,
    babbler,
    novelist,
];

/// Reads of 4 MiB each whose data is never received.
fn greedy_reader(
    address: &str,
    target: &str,
    lun: u8,
    n: u16,
    end: Instant,
) -> std::io::Result<()> {
    let mut session = Session::login(address, target, lun, n, &[])?;
    session.wait_until_ready()?;
    session
        .stream()
        .set_write_timeout(Some(Duration::from_millis(200)))?;
    while Instant::now() < end {
        session.command(&read_10(0, 8192), Direction::Read, 4 << 20, &[])?;
    }
    Ok(())
}

/// Keys that allow as much unsolicited data as possible.
const UNASKED: [&str; 3] = [
    "ImmediateData=Yes",
    "InitialR2T=No",
    "FirstBurstLength=65536",
];

/// Writes of 4 MiB each, with 64 KiB of immediate data, whose R2Ts are never answered and whose
/// replies are never read.
fn lazy_writer(address: &str, target: &str, lun: u8, n: u16, end: Instant) -> std::io::Result<()> {
    let mut session = Session::login(address, target, lun, n, &UNASKED)?;
    session.wait_until_ready()?;
    session
        .stream()
        .set_write_timeout(Some(Duration::from_millis(200)))?;
    let data = noise(u64::from(n), 65536);
    while Instant::now() < end {
        session.command(&write_10(0, 8192), Direction::Write, 4 << 20, &data)?;
    }
    Ok(())
}

/// Many concurrent writes of 4 MiB; it sends all solicited data except the last bytes.
fn stalling_writer(
    address: &str,
    target: &str,
    lun: u8,
    n: u16,
    end: Instant,
) -> std::io::Result<()> {
    let mut session = Session::login(address, target, lun, n, &UNASKED)?;
    session.wait_until_ready()?;
    let data = noise(u64::from(n), 4 << 20);
    for _ in 0..64 {
        session.command(&write_10(0, 8192), Direction::Write, 4 << 20, &[])?;
    }
    session
        .stream()
        .set_read_timeout(Some(Duration::from_millis(500)))?;
    while Instant::now() < end {
        let pdu = session.receive()?;
        let last = pdu.word(40) + pdu.word(44) == 4 << 20;
        if pdu.opcode() == opcode::R2T && !last {
            session.answer_r2t(&pdu, &data)?;
        }
    }
    Ok(())
}

/// Commands of a few bytes that make the target read and write 4 MiB each: VERIFY and WRITE SAME.
fn comparer(address: &str, target: &str, lun: u8, n: u16, end: Instant) -> std::io::Result<()> {
    const VERIFY_10: u8 = 0x2f;
    const WRITE_SAME_10: u8 = 0x41;
    let mut session = Session::login(address, target, lun, n, &UNASKED)?;
    session.wait_until_ready()?;
    let block = [n as u8; 512];
    while Instant::now() < end {
        let mut tasks = Vec::new();
        for _ in 0..50 {
            let mut cdb = read_10(0, 8192);
            cdb[0] = VERIFY_10;
            tasks.push(session.command(&cdb, Direction::None, 0, &[])?);
            cdb[0] = WRITE_SAME_10;
            tasks.push(session.command(&cdb, Direction::Write, 512, &block)?);
        }
        session.responses_to(&tasks)?;
    }
    Ok(())
}

/// Random bytes, before and after login.
fn babbler(address: &str, target: &str, lun: u8, n: u16, end: Instant) -> std::io::Result<()> {
    let mut garbage = noise(u64::from(n), 64 << 10);
    let mut stream = if n % 2 == 0 {
        TcpStream::connect(address)?
    } else {
        let mut session = Session::login(address, target, lun, n, &[])?;
        session.stream().try_clone()?
    };
    stream.set_write_timeout(Some(ENDED_WITHIN))?;
    while Instant::now() < end {
        stream.write_all(&garbage)?;
        garbage.rotate_left(1);
    }
    Ok(())
}

/// A login that announces 16 MiB of text and sends it.
fn novelist(address: &str, _target: &str, _lun: u8, n: u16, end: Instant) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_write_timeout(Some(ENDED_WITHIN))?;
    let mut header = login_header(n);
    header[1] = 0x44; // continued: no end of the text in sight
    header[5..8].fill(0xff);
    stream.write_all(&header)?;
    while Instant::now() < end {
        stream.write_all(b"X-com.example.story=once upon a time\0")?;
    }
    Ok(())
}

#[test]
fn memory_stays_bounded_whatever_clients_send() {
    attack(&Site {
        settings: "memory = \"64MiB\"",
        bound_bytes: (64 << 20) + BESIDE_BYTES,
    });
}

/// The bound holds for any number of lanes, even if the longest transfer far exceeds each lane's part.
#[test]
fn memory_stays_bounded_with_many_lanes() {
    attack(&Site {
        settings: "memory = \"32MiB\"\nlanes = 64",
        bound_bytes: (32 << 20) + BESIDE_BYTES + 64 * LANE_BYTES,
    });
}

fn attack(site: &Site) {
    let bound_bytes = site.bound_bytes;
    let settings = format!(
        "{}\nconnections = {CONNECTIONS}\n[limits]\nlogins_per_peer = {LOGINS}\nreserved = 0\n",
        site.settings
    );
    let disk = Disk::with_settings(&settings, 64 << 20);
    let before = resident_peak_bytes(disk.pid);
    let refused = AtomicU64::new(0);
    let attack_one = |attack: Attack, number: u16, end: Instant| {
        let (target, lun) = disk.target_and_lun();
        // Attackers that are dropped or stalled come back, but not in a hot loop.
        while Instant::now() < end {
            let result = attack(disk.address(), target, lun, number, end);
            if result.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
                refused.fetch_add(1, Ordering::Relaxed);
            }
            sleep(Duration::from_millis(100));
        }
    };
    let mut peak = before;
    let attack_one = &attack_one;
    std::thread::scope(|scope| {
        let end = Instant::now() + ATTACK;
        for client in 0..CLIENTS_PER_KIND {
            for (kind, attack) in (0..).zip(KINDS) {
                scope.spawn(move || attack_one(attack, kind * CLIENTS_PER_KIND + client, end));
            }
        }
        while Instant::now() < end && peak < GIVE_UP_BYTES {
            sleep(Duration::from_millis(20));
            peak = resident_peak_bytes(disk.pid);
        }
        if peak >= GIVE_UP_BYTES {
            signal(i64::from(disk.pid), "KILL");
        }
    });
    println!(
        "memory: {} MiB before, {} MiB at the peak of {}, {} connections or logins refused",
        before >> 20,
        peak >> 20,
        bound_bytes >> 20,
        refused.load(Ordering::Relaxed)
    );
    assert!(peak < bound_bytes, "{} MiB at the peak", peak >> 20);
    let mut inquiry = Command::new(program("iscsi-inq", "libiscsi-bin"));
    run(inquiry.arg(&disk.url), Duration::from_secs(120)).success();
}
