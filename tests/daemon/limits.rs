//! Connection limits as initiators see them: an initiator that is displaced or finds no place is told so if it has
//! begun a login, and established sessions continue, even when the system runs out of descriptors.

use harness::directory::Directory;
use harness::process::Daemon;
use harness::sanstone::{IQN, Sanstone, binary, target_table};
use harness::wire::{Session, connect_from, login_header, opcode, send};
use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

const VOLUME: &str = "[volume.disk]\nram = { size = \"16MiB\" }\n";
/// Long, so that no connection ends by timeout, which looks the same from outside.
const PATIENT: &str = "[limits]\nlogin_time = \"300s\"\n";
const OUT_OF_RESOURCES: [u8; 2] = [3, 2];

fn serve(settings: &str) -> Sanstone {
    let directory = Directory::new();
    let port = harness::free_port();
    let configuration = format!("{settings}\n{VOLUME}{}", target_table(port, &["disk"]));
    Sanstone::serve_configuration(directory.path(), &configuration, port).owning(directory)
}

/// A connection from 127.0.0.`host` whose login stops after the first response.
fn begin_login(server: &Sanstone, host: u8) -> TcpStream {
    let mut stream =
        connect_from(Ipv4Addr::new(127, 0, 0, host), server.port()).expect("a connection");
    let limit = Some(Duration::from_secs(120));
    stream.set_read_timeout(limit).expect("a time limit");
    let mut header = login_header(u16::from(host));
    header[1] = 0x04; // operational negotiation, and no wish to leave it
    let text = format!(
        "InitiatorName=iqn.2026-11.io.sanstone:host-{host}\0TargetName={IQN}\0SessionType=Normal\0"
    );
    send(&mut stream, &mut header, text.as_bytes()).expect("a request");
    assert_eq!(login_status(&mut stream), [0, 0], "the login goes on");
    stream
}

/// Receives a Login Response.
fn login_status(stream: &mut TcpStream) -> [u8; 2] {
    let mut header = [0; 48];
    stream.read_exact(&mut header).expect("an answer");
    assert_eq!(header[0] & 0x3f, opcode::LOGIN_RESPONSE);
    let data = usize::from(header[6]) << 8 | usize::from(header[7]);
    let mut data = vec![0; data.next_multiple_of(4)];
    stream.read_exact(&mut data).expect("its text");
    [header[36], header[37]]
}

fn is_closed(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0]).is_ok_and(|received| received == 0)
}

#[test]
fn who_has_to_make_room_is_told_if_it_has_begun() {
    let mut server = serve(&format!("{PATIENT}logins = 3"));
    // The connection that waited for the port to open is gone, or is displaced first.
    let mut begun: Vec<TcpStream> = (1..=3)
        .map(|host| begin_login(&server, 10 + host))
        .collect();
    let _silent = connect_from(Ipv4Addr::new(127, 0, 0, 20), server.port()).expect("room");
    let log = server.daemon().log_with("limits.logins");
    // One of those that have waited longest.
    let told = (0..3).find(|n| log.contains(&format!("peer=127.0.0.{}:", 11 + n)));
    let told = &mut begun[told.expect("one of them")];
    assert_eq!(login_status(told), OUT_OF_RESOURCES);
    assert!(is_closed(told));
    let address = format!("127.0.0.1:{}", server.port());
    Session::login(&address, IQN, 0, 1, &[]).expect("there is room for a login");
}

#[test]
fn a_host_beyond_its_share_makes_room_itself() {
    let mut server = serve(&format!("{PATIENT}logins_per_peer = 2"));
    let mut own: Vec<TcpStream> = (0..3).map(|_| begin_login(&server, 10)).collect();
    let _other = begin_login(&server, 11);
    assert_eq!(login_status(&mut own[0]), OUT_OF_RESOURCES);
    server.daemon().log_with("limits.logins_per_peer");
}

#[test]
fn a_session_too_many_is_refused_and_a_place_is_kept_for_who_had_it() {
    let mut server = serve("connections = 2\n[limits]\nreserved = 1");
    let address = format!("127.0.0.1:{}", server.port());
    let login = |number| Session::login(&address, IQN, 0, number, &[]);
    let database = login(1).expect("a place");
    let mut other = login(2).expect("a place");
    let refusal = login(3).expect_err("there is no third");
    assert!(refusal.to_string().contains("0x03 0x02"), "{refusal}");
    drop(database);
    other.wait_until_ready().expect("it does not notice");
    let refusal = login(3).expect_err("the place is kept");
    assert!(refusal.to_string().contains("0x03 0x02"), "{refusal}");
    login(1).expect("for who had it");
    server.daemon().log_with("out of resources");
}

#[test]
fn connections_beyond_the_systems_limit_make_room_too() {
    let directory = Directory::new();
    let port = harness::free_port();
    let configuration = format!("{VOLUME}{}", target_table(port, &["disk"]));
    let file = directory.write("sanstone.toml", configuration);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64 && exec \"$0\" serve -c \"$1\""]);
    command.arg(binary()).arg(file);
    let mut daemon = Daemon::start(&command, directory.join("sanstone.log"));
    daemon.wait_for_port(port);
    let address = format!("127.0.0.1:{port}");
    let mut database = Session::login(&address, IQN, 0, 1, &[]).expect("a login");
    database.wait_until_ready().expect("a ready disk");
    let mut crowd = Vec::new();
    for n in 0..200 {
        crowd.push(connect_from(Ipv4Addr::new(127, 0, 1, n), port).expect("a queue"));
    }
    for number in 2..5 {
        let mut session = Session::login(&address, IQN, 0, number, &[]).expect("a login");
        session.wait_until_ready().expect("a ready disk");
        database.wait_until_ready().expect("it does not notice");
    }
    daemon.log_with("the limit on open files is too low");
    daemon.log_with("could not be accepted");
}
