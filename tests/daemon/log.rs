//! A log that nobody reads: whatever happens to standard error, and however much is logged, the daemon serves and
//! stops.

use harness::directory::Directory;
use harness::process::Daemon;
use harness::sanstone::{IQN, Sanstone, binary, call, target_table};
use harness::wire::{Direction, Session};
use std::process::Command;
use std::time::Duration;

/// Serves with standard error as the shell's `redirection` makes it, with `before` run first; logs
/// more than a pipe holds, stops, and expects that all went well.
fn serve_without_a_log(before: &str, redirection: &str) {
    let directory = Directory::new();
    let port = harness::free_port();
    let volume = "[volume.disk]\nram = { size = \"16MiB\" }\n";
    let configuration = format!("{volume}{}", target_table(port, &["disk"]));
    let file = directory.join("sanstone.toml");
    std::fs::write(&file, configuration).expect("a configuration");
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{before}\nexec \"$0\" \"$@\" {redirection}"))
        .arg(binary())
        .args(["--log", "debug", "serve", "-c"])
        .arg(&file)
        .current_dir(directory.path());
    let mut daemon = Daemon::start(&command, directory.join("output.log"));
    daemon.wait_for_port(port);
    let address = format!("127.0.0.1:{port}");
    for isid in 1..=200 {
        Session::login(&address, IQN, 0, isid, &[]).expect("a login");
    }
    daemon.signal("TERM");
    let status = daemon.wait(Duration::from_secs(120)).expect("it stops");
    assert_eq!(status.code(), Some(0), "{}", daemon.log());
}

#[test]
fn a_full_log_is_no_reason_to_stop() {
    serve_without_a_log("", "2>/dev/full");
}

#[test]
fn a_closed_log_is_no_reason_to_stop() {
    serve_without_a_log("", "2>&-");
}

#[test]
fn a_log_whose_reader_has_gone_is_no_reason_to_stop() {
    let reader = "mkfifo log\n(read -r line <log) &";
    serve_without_a_log(reader, "2>log");
}

#[test]
fn a_log_that_nobody_reads_holds_nothing_up() {
    serve_without_a_log("mkfifo log", "2<>log");
}

#[test]
fn why_a_command_has_failed_is_an_error_in_its_json_log() {
    let mut command = Command::new(binary());
    command.args(["--log-format", "json", "check", "-c", "/none/sanstone.toml"]);
    let ran = harness::run::run(&mut command, Duration::from_secs(120));
    assert!(ran.stderr.contains(r#""level":"ERROR""#), "{ran}");
}

/// An EXTENDED COPY of 8 blocks within a unit; FFFFh is the unit that receives it.
fn copy_within_a_unit() -> ([u8; 16], Vec<u8>) {
    let mut segment = vec![0x02, 0, 0, 24, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 8];
    segment.extend(0_u64.to_be_bytes());
    segment.extend(1000_u64.to_be_bytes());
    let mut list = vec![
        1,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        segment.len() as u8,
        0,
        0,
        0,
        0,
    ];
    list.extend(segment);
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x83, list.len() as u8);
    (cdb, list)
}

/// Each copy that fails is worth a line, and an initiator may send as many as it likes.
#[test]
fn an_initiator_does_not_flood_the_log() {
    let directory = Directory::new();
    let volume = "[volume.disk]\nfault = { rules = [{ on = \"write\", fail = \"medium\" }], \
                  of = { ram = { size = \"16MiB\" } } }\n";
    let mut server = Sanstone::serve(directory.path(), volume, &["disk"]);
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let (cdb, list) = copy_within_a_unit();
    for _ in 0..2000 {
        let sent = session.command(&cdb, Direction::Write, list.len() as u32, &list);
        sent.expect("a command");
        let response = session.receive().expect("a response");
        assert_eq!(response.status(), 2, "CHECK CONDITION");
    }
    let log = server
        .daemon()
        .log_with("lines like: a copy failed and was stopped");
    let lines = log.lines().filter(|line| line.contains("a copy failed"));
    let lines = lines.count();
    assert!((50..1000).contains(&lines), "{lines} lines");
}

#[test]
fn what_cannot_be_said_is_an_error_and_no_panic() {
    let directory = Directory::new();
    let file = directory.join("sanstone.toml");
    let volume = "[volume.disk]\nram = { size = \"16MiB\" }\n";
    let configuration = format!("{volume}{}", target_table(3260, &["disk"]));
    std::fs::write(&file, configuration).expect("a configuration");
    let check = |redirection: &str| {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("exec \"$0\" check -c \"$1\" {redirection}")])
            .arg(binary())
            .arg(&file);
        harness::run::run(&mut command, Duration::from_secs(60))
    };
    let full = check(">/dev/full");
    assert_eq!(full.code(), Some(1), "{full}");
    let message = "sanstone: writing to standard output: No space left on device (os error 28)\n";
    assert!(full.stderr.ends_with(message), "{full}");
    assert!(!full.stderr.contains("panicked"), "{full}");
    assert_eq!(check(">/dev/full 2>/dev/full").code(), Some(1));
}

#[test]
fn a_log_filter_that_would_log_nothing_is_refused() {
    for (filter, said) in [
        (
            "debg",
            "sanstone: --log \"debg\": \"debg\" is not a level; write off, ",
        ),
        ("", "--log \"\": \"\" is not a level; write off, "),
    ] {
        let ran = call(&["--log", filter, "check", "-c", "nowhere.toml"]);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains(said), "{ran}");
    }
}

#[test]
fn what_is_logged_changes_while_the_daemon_serves() {
    let directory = Directory::new();
    let port = harness::free_port();
    let volume = "[volume.disk]\nram = { size = \"16MiB\" }\n";
    let configuration = format!("{volume}{}", target_table(port, &["disk"]));
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let state = directory.join("sanstone.state");
    let mut server = server.answering(&state);
    let state = state.to_str().expect("plain text");
    let level = |more: &[&str]| call(&[&["log-level", "--state", state], more].concat());
    let log_in = |isid| {
        let address = format!("127.0.0.1:{port}");
        Session::login(&address, IQN, 0, isid, &[]).expect("a login");
    };
    assert_eq!(level(&[]).success().stdout, "info\n");
    log_in(1);
    assert!(
        !server.daemon().log().contains("DEBUG"),
        "{}",
        server.daemon().log()
    );
    let ran = level(&["front_iscsi=debug,warn"]).success();
    let changed = "log level: info → front_iscsi=debug,warn, until it ends or the next log-level\n";
    assert_eq!(ran.stdout, changed);
    log_in(2);
    server.daemon().log_with("DEBUG");
    assert_eq!(level(&[]).success().stdout, "front_iscsi=debug,warn\n");
    let wrong = level(&["loud"]);
    assert_eq!(wrong.code(), Some(2), "{wrong}");
    let said = "log-level \"loud\": \"loud\" is not a level; write off, ";
    assert!(wrong.stderr.contains(said), "{wrong}");
    assert_eq!(level(&[]).success().stdout, "front_iscsi=debug,warn\n");
}

/// systemd names the journal's socket by device and inode; a program that has another standard error writes plain lines.
#[test]
fn the_journal_is_told_how_grave_each_line_is() {
    let directory = Directory::new();
    let ranks = |stream: &str| -> Vec<String> {
        let file = directory.join("standard-error");
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &format!("{stream} exec \"$0\" serve -c nowhere.toml 2>\"$1\""),
        ]);
        command.arg(binary()).arg(&file);
        harness::run::run(&mut command, Duration::from_secs(60));
        let text = std::fs::read_to_string(file).expect("a log");
        let start = |line: &str| line.chars().take(3).collect();
        text.lines().map(start).collect()
    };
    let journal = "JOURNAL_STREAM=$(: >\"$1\"; stat -c %d:%i \"$1\"); export JOURNAL_STREAM;";
    assert_eq!(ranks(journal), ["<3>"]);
    let other = "JOURNAL_STREAM=8:1; export JOURNAL_STREAM;";
    assert_eq!(ranks(other), ["san"]);
    assert_eq!(ranks(""), ["san"]);
}
