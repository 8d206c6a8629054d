//! What the log says about failed logins and sessions: one line for each, with the initiator and the reason in words.

use harness::directory::Directory;
use harness::process::{Daemon, program};
use harness::run::run;
use harness::sanstone::{IQN, Sanstone, binary, call, target_table};
use harness::wire::{Direction, Session, login_header, opcode, read_10, send, write_10};
use std::fs::Permissions;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

const RAM: &str = "[volume.disk]\nram = { size = \"16MiB\" }\n";
const NAMELESS: [&str; 2] = [
    "InitiatorName=iqn.2026-11.io.sanstone:host",
    "SessionType=Normal",
];

fn serve() -> Sanstone {
    let directory = Directory::new();
    Sanstone::serve(directory.path(), RAM, &["disk"]).owning(directory)
}

/// Sends a request with this text in place of a login and waits for the end of the connection.
fn log_in_wrongly(server: &Sanstone, mut header: [u8; 48], text: &[&str]) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
    let limit = Some(Duration::from_secs(120));
    stream.set_read_timeout(limit).expect("a time limit");
    let text: String = text.iter().map(|pair| format!("{pair}\0")).collect();
    send(&mut stream, &mut header, text.as_bytes()).expect("a request");
    let mut answer = Vec::new();
    stream
        .read_to_end(&mut answer)
        .expect("an answer and the end");
}

/// The line of the log with `text` in it.
fn line(daemon: &Daemon, text: &str) -> String {
    let log = daemon.log_with(text);
    let line = log.lines().find(|line| line.contains(text));
    line.expect("a whole line").to_owned()
}

#[test]
fn a_refused_login_leaves_a_line_with_its_reason() {
    let mut server = serve();
    let target = format!("TargetName={IQN}");
    let mut new_version = login_header(1);
    new_version[3] = 1;
    let mut nowhere = login_header(1);
    nowhere[1] = 0x8c;
    let mut no_login = login_header(1);
    no_login[0] = 0x40; // NOP-Out
    let whole = [NAMELESS[0], &target];
    for (header, text, said) in [
        (
            new_version,
            &whole[..],
            "unsupported version (status 0x0205)",
        ),
        (
            login_header(1),
            &NAMELESS,
            "missing parameter (status 0x0207)",
        ),
        (
            login_header(1),
            &["SessionType=Boot"],
            "session type not supported (status 0x0209)",
        ),
        (no_login, &whole, "PDU invalid during login (status 0x020b)"),
        (
            nowhere,
            &whole,
            "initiator error (status 0x0200): its request names a stage that is not allowed",
        ),
        (
            login_header(1),
            &[NAMELESS[0], &target, "CHAP_A=5"],
            "initiator error (status 0x0200): it sent CHAP keys without AuthMethod=CHAP",
        ),
    ] {
        log_in_wrongly(&server, header, text);
        let line = line(server.daemon(), &format!("login refused: {said}"));
        assert!(line.contains("peer=127.0.0.1:"), "{line}");
    }
    let line = line(server.daemon(), "missing parameter");
    assert!(
        line.contains("initiator=\"iqn.2026-11.io.sanstone:host\""),
        "{line}"
    );
    let mut security = login_header(1);
    security[1] = 0x81;
    log_in_wrongly(
        &server,
        security,
        &[NAMELESS[0], &target, "AuthMethod=CHAP"],
    );
    server
        .daemon()
        .log_with("authentication failed: it requires authentication");
    let log = server.daemon().log();
    assert!(!log.contains("suppressed"), "nothing was left out:\n{log}");
    let lines = log.matches("WARN").count();
    assert_eq!(lines, 7, "one line each:\n{log}");
}

#[test]
fn a_refusal_says_whether_it_is_by_name_or_by_address() {
    let directory = Directory::new();
    let port = harness::free_port();
    let target = |name: &str, rest: &str| {
        format!(
            "[target.\"{IQN}-{name}\"]\nportals = [\"127.0.0.1:{port}\"]\nluns = [\"disk\"]\n{rest}\n"
        )
    };
    let other = "allow = [\"iqn.1993-08.org.debian:01:dbhost\"]";
    let elsewhere = "allow_from = [\"192.0.2.0/24\"]";
    let configuration = [
        RAM.to_owned(),
        target("name", other),
        target("address", &format!("allow = [\"*\"]\n{elsewhere}")),
        target("both", &format!("{other}\n{elsewhere}")),
    ]
    .concat();
    let mut server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    for (name, why) in [
        ("name", "its name is not in `allow`"),
        ("address", "its address is not in `allow_from`"),
        (
            "both",
            "its name is not in `allow`, nor its address in `allow_from`",
        ),
    ] {
        let name = format!("TargetName={IQN}-{name}");
        log_in_wrongly(&server, login_header(1), &[NAMELESS[0], NAMELESS[1], &name]);
        let said = "login refused: initiator not allowed to use this target (status 0x0202): ";
        let line = line(server.daemon(), &format!("{said}{why} "));
        assert!(
            line.contains("WARN") && line.contains("peer=127.0.0.1:"),
            "{line}"
        );
    }
    // Discovery lists nothing, which looks like a target without disks.
    let mut list = Command::new(program("iscsi-ls", "libiscsi-bin"));
    list.args(["-i", "iqn.2026-11.io.sanstone:host"])
        .arg(server.portal());
    assert_eq!(run(&mut list, Duration::from_secs(60)).stdout, "");
    let line = line(server.daemon(), "discovery returned no targets: its ");
    assert!(
        line.contains("WARN") && line.contains("sanstone:host"),
        "{line}"
    );
}

#[test]
fn a_login_that_the_initiator_gives_up_leaves_a_line() {
    let mut server = serve();
    let mut header = login_header(1);
    header[1] = 0x04;
    let target = format!("TargetName={IQN}\0");
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
    let text = format!("{}\0{target}", NAMELESS[0]);
    send(&mut stream, &mut header, text.as_bytes()).expect("a request");
    stream.read_exact(&mut [0; 48]).expect("an answer");
    drop(stream);
    let line = line(server.daemon(), "login abandoned: ");
    assert!(
        line.contains("sanstone:host") && !line.contains("mutual"),
        "{line}"
    );
}

#[test]
fn a_target_that_cannot_prove_itself_says_where_to_look() {
    let directory = Directory::new();
    let secret = |name: &str, text: &str| {
        let path = directory.write(name, text);
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("its mode");
    };
    secret("host", "correct-horse-battery");
    secret("target", "staple-of-the-target");
    secret("mistaken", "another-secret-of-it");
    let chap = "chap = { user = \"host\", secret_file = \"host\" }";
    let mutual = |file: &str| format!("mutual = {{ user = \"t\", secret_file = \"{file}\" }}");
    let port = harness::free_port();
    let table = target_table(port, &["disk"]);
    let served = format!("{RAM}{table}{chap}\n{}\n", mutual("target"));
    let mut server = Sanstone::serve_configuration(directory.path(), &served, port);
    let url = format!("url = \"iscsi://127.0.0.1:{port}/{IQN}/0\"");
    let leaf = format!("iscsi = {{ {url}, {chap}, {} }}", mutual("mistaken"));
    let table = target_table(harness::free_port(), &["far"]);
    let file = directory.write("client.toml", format!("[volume.far]\n{leaf}\n{table}"));
    let mut client = Command::new(binary());
    let ran = run(
        client.args(["serve", "-c"]).arg(file),
        Duration::from_secs(60),
    );
    assert_ne!(ran.code(), Some(0), "{ran}");
    let line = line(server.daemon(), "login abandoned: ");
    assert!(line.contains("check user and secret of `mutual`"), "{line}");
}

#[test]
fn a_lun_that_the_target_does_not_have_is_named_with_where_to_look() {
    let server = serve();
    let directory = Directory::new();
    let leaf = format!("iscsi = {{ url = \"{}\" }}", server.url(7));
    let table = target_table(harness::free_port(), &["far"]);
    let file = directory.write("client.toml", format!("[volume.far]\n{leaf}\n{table}"));
    let ran = call(&["serve", "-c", &file.to_string_lossy()]);
    assert_eq!(ran.code(), Some(1), "{ran}");
    let said = format!(
        "the target {IQN} has no LUN 7, or none for this initiator; check the number at the end of the url, \
         and the target's LUNs (it reports ILLEGAL REQUEST, logical unit not supported"
    );
    assert!(
        ran.stderr.contains("client.toml:2:17: ") && ran.stderr.contains(&said),
        "{ran}"
    );
}

#[test]
fn a_session_that_is_lost_is_told_from_one_that_logs_out() {
    let mut server = serve();
    let address = format!("127.0.0.1:{}", server.port());
    let login = |number| Session::login(&address, IQN, 0, number, &[]).expect("a login");
    drop(login(1));
    let lost = line(
        server.daemon(),
        "connection lost: the peer closed the connection",
    );
    assert!(lost.contains("sanstone:wire-1"), "{lost}");
    assert!(!server.daemon().log().contains("logged out"));
    let mut polite = login(2);
    polite.log_out().expect("a Logout Response");
    let line = line(server.daemon(), "logged out");
    assert!(line.contains("sanstone:wire-2"), "{line}");
    let _third = login(3);
    let _again = login(3);
    server
        .daemon()
        .log_with("connection lost: the initiator logged in again");
    assert!(!server.daemon().log().contains("suppressed"));
}

#[test]
fn a_lost_session_of_an_iscsi_leaf_is_told_once() {
    let directories = [Directory::new(), Directory::new()];
    let volume = "[volume.disk]\nfile = { path = \"disk.img\", size = \"16MiB\" }\n";
    let mut far = Sanstone::serve(directories[0].path(), volume, &["disk"]);
    let port = far.port();
    let leaf = format!(
        "[volume.near]\niscsi = {{ url = \"{}\", reconnect_timeout = \"10min\", sessions = 1 }}\n",
        far.url(0)
    );
    let mut near = Sanstone::serve(directories[1].path(), &leaf, &["near"]);
    let address = format!("127.0.0.1:{}", near.port());
    let mut session = Session::login(&address, IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    for losses in 1..=2 {
        far.daemon().signal("KILL");
        far.daemon().wait(Duration::from_secs(60)).expect("it ends");
        let reads = [0; 8].map(|_| {
            let read = session.command(&read_10(0, 8), Direction::Read, 4096, &[]);
            read.expect("a command")
        });
        near.daemon().log_with_times("session lost", losses);
        std::thread::sleep(Duration::from_secs(1));
        let log = near.daemon().log();
        assert_eq!(log.matches("session lost").count(), losses, "{log}");
        far = Sanstone::serve_on(port, directories[0].path(), volume, &["disk"]);
        for (status, _) in session.responses_to(&reads).expect("answers") {
            assert_eq!(status, 0);
        }
        let log = near.daemon().log_with_times("logged in again", losses);
        assert_eq!(log.matches("logged in again").count(), losses, "{log}");
    }
}

#[test]
fn a_daemon_that_stops_logs_out_of_its_shares() {
    let mut share = serve();
    let directory = Directory::new();
    let leaf = format!(
        "[volume.far]\niscsi = {{ url = \"{}\" }}\n[volume.near]\ncache = {{ size = \"1MiB\", only_writer = true, of = \"far\" }}\n",
        share.url(0)
    );
    let mut server = Sanstone::serve(directory.path(), &leaf, &["near"]).owning(directory);
    server.daemon().signal("TERM");
    let ended = server.daemon().wait(Duration::from_secs(120));
    assert!(ended.expect("it ends").success());
    line(share.daemon(), "logged out");
    assert!(!share.daemon().log().contains("connection lost"));
}

#[test]
fn a_wrong_data_digest_of_a_command_that_is_over_ends_the_connection_with_its_reason() {
    let mut server = serve();
    let address = format!("127.0.0.1:{}", server.port());
    let keys = ["DataDigest=CRC32C", "ImmediateData=No", "InitialR2T=Yes"];
    let mut session = Session::login(&address, IQN, 0, 1, &keys).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let write = session.command(&write_10(0, 1), Direction::Write, 512, &[]);
    let write = write.expect("a command");
    let r2t = loop {
        let pdu = session.receive().expect("an R2T");
        if pdu.opcode() == opcode::R2T {
            break pdu;
        }
    };
    const ABORT_TASK: u8 = 1;
    let aborted = session.task_management(ABORT_TASK, Some(write));
    let aborted = session.responses_to(&[aborted.expect("a function")]);
    assert_eq!(aborted.expect("its response")[0].0, 0, "function complete");
    session.has_wrong_data_digests = true;
    session.answer_r2t(&r2t, &[1; 512]).expect("late data");
    while session.receive().is_ok() {}
    let line = line(server.daemon(), "the peer violated the protocol");
    assert!(line.contains("digest"), "{line}");
    server
        .daemon()
        .log_with("connection lost: the peer violated the protocol");
    Session::login(&address, IQN, 0, 2, &[]).expect("others are served");
}

#[test]
fn a_login_that_waits_for_hung_io_is_refused_and_the_log_says_where_it_hangs() {
    let directory = Directory::new();
    let port = harness::free_port();
    let volume = "[limits]\nlogin_time = \"2s\"\n[volume.disk.fault]\n\
                  rules = [{ on = \"write\", hang = true }]\nof = { ram = { size = \"16MiB\" } }\n";
    let configuration = format!("{volume}{}", target_table(port, &["disk"]));
    let mut server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let write = session.command(&write_10(0, 1), Direction::Write, 512, &[1; 512]);
    write.expect("a command");
    // Sent after it, so once this is answered the other has begun.
    let read = session.execute(&read_10(8, 1), &[], 512).expect("a read");
    assert_eq!(read.0, 0);
    Session::login(&address, IQN, 0, 1, &[]).expect_err("the old session has not ended");
    let line = line(server.daemon(), "its initiator port cannot log in again");
    let said = "1 of its I/Os on LUN 0 (volume disk) still hang";
    assert!(
        line.contains(said) && line.contains("sanstone:wire-1"),
        "{line}"
    );
}
