//! Sessions from login to end, PDU by PDU: one connection each, a second login of the same initiator port, and peers
//! that fall silent.

use harness::directory::Directory;
use harness::process::Daemon;
use harness::sanstone::{IQN, binary, target_table};
use harness::wire::{Session, is_closed, login_header, opcode};
use std::net::TcpStream;
use std::process::Command;

const RAM: &str = "[volume.disk]\nram = { size = \"16MiB\" }\n";

struct Server {
    daemon: Daemon,
    address: String,
    _directory: Directory,
}

/// Serves a RAM disk with these settings of the daemon.
fn serve(settings: &str) -> Server {
    let directory = Directory::new();
    let port = harness::free_port();
    let table = target_table(port, &["disk"]);
    let file = directory.write("sanstone.toml", format!("{settings}{RAM}{table}"));
    let mut command = Command::new(binary());
    command.args(["serve", "-c"]).arg(file);
    let mut daemon = Daemon::start(&command, directory.join("sanstone.log"));
    daemon.wait_for_port(port);
    Server {
        daemon,
        address: format!("127.0.0.1:{port}"),
        _directory: directory,
    }
}

#[test]
fn a_second_connection_to_a_session_is_refused_and_the_first_goes_on() {
    let server = serve("");
    let keys = ["MaxConnections=4"];
    let mut first = Session::login(&server.address, IQN, 0, 1, &keys).expect("a login");
    assert_eq!(first.answer("MaxConnections"), Some("1"));
    assert_ne!(first.tsih, 0);
    first.wait_until_ready().expect("the disk is ready");
    let join = |number: u16, tsih: u16, cid: u16, keys: &[&str]| {
        let mut header = login_header(number);
        header[14..16].copy_from_slice(&tsih.to_be_bytes());
        header[20..22].copy_from_slice(&cid.to_be_bytes());
        let stream = TcpStream::connect(&server.address).expect("a connection");
        let joined = Session::login_with(stream, IQN, 0, number, header, keys);
        joined.expect_err("nobody joins a session").to_string()
    };
    // Too many connections (RFC 7143 §11.13.5), whether it is a further one or the same again.
    for cid in [1, 0] {
        let said = join(1, first.tsih, cid, &[]);
        assert!(said.contains("0x02 0x06"), "CID {cid}: {said}");
    }
    // Session does not exist: another number, another initiator, a discovery session.
    let wrong = first.tsih.wrapping_add(1);
    for (number, tsih, keys) in [
        (1, wrong, &[][..]),
        (2, first.tsih, &[]),
        (1, first.tsih, &["SessionType=Discovery"]),
    ] {
        let said = join(number, tsih, 1, keys);
        assert!(
            said.contains("0x02 0x0a"),
            "{number} {tsih} {keys:?}: {said}"
        );
    }
    first.wait_until_ready().expect("it goes on");
}

#[test]
fn a_new_login_of_the_same_initiator_port_ends_the_old_session() {
    let server = serve("");
    let login = |number| {
        let session = Session::login(&server.address, IQN, 0, number, &[]);
        let mut session = session.expect("a login");
        session.wait_until_ready().expect("the disk is ready");
        session
    };
    let (mut other, mut old) = (login(2), login(1));
    let mut new = login(1);
    assert_ne!(old.tsih, new.tsih);
    let error = old
        .wait_until_ready()
        .expect_err("the old session lives on");
    assert!(is_closed(&error), "{error}");
    for session in [&mut new, &mut other] {
        session.wait_until_ready().expect("it lives on");
    }
}

#[test]
fn a_peer_that_falls_silent_is_asked_and_then_dropped() {
    let server = serve("ping_interval = \"1s\"\npeer_timeout = \"8s\"\n");
    let login = |number| Session::login(&server.address, IQN, 0, number, &[]).expect("a login");
    let (mut silent, mut alive) = (login(1), login(2));
    let asked = |session: &mut Session| {
        let ping = session.receive().expect("a ping");
        let what = (ping.opcode(), ping.task());
        assert_eq!(what, (opcode::NOP_IN, u32::MAX), "{ping:?}");
        assert_ne!(ping.word(20), u32::MAX, "it asks for no answer");
        ping.word(20)
    };
    for _ in 0..4 {
        let tag = asked(&mut alive);
        alive.nop_out(u32::MAX, tag).expect("the target reads");
    }
    asked(&mut silent);
    let error = silent
        .receive()
        .expect_err("nobody answered, and it goes on");
    assert!(is_closed(&error), "{error}");
    server.daemon.log_with("no answer to a ping within 8s");
    let tag = asked(&mut alive);
    alive.nop_out(u32::MAX, tag).expect("the target reads");
    alive.wait_until_ready().expect("who answers stays");
}

#[test]
fn a_discovery_session_that_says_nothing_is_dropped() {
    let server = serve("ping_interval = \"1s\"\npeer_timeout = \"1s\"\n");
    let keys = ["SessionType=Discovery"];
    let mut session = Session::login(&server.address, IQN, 0, 1, &keys).expect("a login");
    let error = session
        .receive()
        .expect_err("it was not asked for anything");
    assert!(is_closed(&error), "{error}");
}
