//! `sanstone apply` adds paths to a remote disk that is served, and removes them.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use harness::{
    directory::Directory,
    run::Ran,
    sanstone::{IQN, Sanstone, call},
    wire::{Direction, Session, opcode, read_10, write_10},
};
use serde_json::Value;

/// The number of an initiator port.
const SESSION: u16 = 1;

fn serve(directory: &Path, text: &str, port: u16) -> Sanstone {
    let server = Sanstone::serve_configuration(directory, text, port);
    server.answering(&directory.join("sanstone.state"))
}

fn apply(directory: &Path, text: &str, more: &[&str]) -> Ran {
    let path = directory.join("sanstone.toml");
    fs::write(&path, text).expect("room");
    let path = path.to_str().expect("plain text");
    call(&[&["apply", "-c", path], more].concat())
}

fn shown(directory: &Path) -> Value {
    let state = directory.join("sanstone.state");
    let state = state.to_str().expect("plain text");
    let shown = call(&["show", "--state", state, "--json", "-"]).success();
    serde_json::from_str(&shown.stdout).expect("it is JSON")
}

/// The portals of the sessions with the remote disk, each of which must be logged in.
fn portals(directory: &Path) -> Vec<String> {
    let shown = shown(directory);
    let sessions = shown["volumes"]["far"]["tree"]["sessions"].as_array();
    let sessions = sessions.expect("a list").iter();
    let portal = |session: &Value| {
        assert_eq!(session["state"], "logged in", "{shown}");
        session["portal"].as_str().expect("text").to_owned()
    };
    sessions.map(portal).collect()
}

/// Our ends of the connections of those sessions.
fn locals(directory: &Path) -> BTreeSet<String> {
    let shown = shown(directory);
    let sessions = shown["volumes"]["far"]["tree"]["sessions"].as_array();
    let sessions = sessions.expect("a list").iter();
    sessions.map(|it| it["local"].to_string()).collect()
}

/// Storage at two portals of one group, and at a third portal a target of the same name with another disk.
fn storage(directories: [&Directory; 2], ports: [u16; 2]) -> [Sanstone; 2] {
    let text = |portals: &str| {
        format!(
            "[volume.a]\nram = {{ size = \"1MiB\" }}\n\
             [target.\"{IQN}\"]\nportals = [{portals}]\nluns = [\"a\"]\nallow = [\"*\"]\n"
        )
    };
    let [port, other] = ports;
    let both = format!("\"127.0.0.1:{port}\", \"127.0.0.2:{port}\"");
    [
        serve(directories[0].path(), &text(&both), port),
        serve(
            directories[1].path(),
            &text(&format!("\"127.0.0.1:{other}\"")),
            other,
        ),
    ]
}

/// Writes blocks and reads them back until told to stop; every answer must be GOOD and right.
fn load(session: &mut Session, is_over: &AtomicBool, done: &AtomicU64) {
    for round in 0.. {
        if is_over.load(Relaxed) {
            return;
        }
        let (lba, byte) = (round % 64, (round % 251) as u8);
        let data = [byte; 512];
        let sent = session.command(&write_10(lba, 1), Direction::Write, 512, &data);
        sent.expect("a command");
        let written = session.receive().expect("an answer");
        assert_eq!(written.opcode(), opcode::SCSI_RESPONSE);
        assert_eq!(written.status(), 0, "{round}");
        let sent = session.command(&read_10(lba, 1), Direction::Read, 512, &[]);
        sent.expect("a command");
        let read = session.receive().expect("data");
        assert_eq!((&read.data[..], read.status()), (&data[..], 0), "{round}");
        done.fetch_add(1, Relaxed);
    }
}

#[test]
fn paths_of_a_remote_disk_come_and_go_under_a_load() {
    let [below, elsewhere, above] = [(); 3].map(|()| Directory::new());
    let [port, other, own] = [(); 3].map(|()| harness::free_port());
    let _storage = storage([&below, &elsewhere], [port, other]);
    let [one, two, wrong, nobody] = [
        format!("127.0.0.1:{port}"),
        format!("127.0.0.2:{port}"),
        format!("127.0.0.1:{other}"),
        format!("127.0.0.1:{}", harness::free_port()),
    ];
    let text = |paths: &[&String]| {
        let paths = paths.iter().map(|it| format!("{{ portal = \"{it}\" }}"));
        let paths: Vec<_> = paths.collect();
        format!(
            "lanes = 2\n[volume.far]\niscsi = {{ url = \"iscsi://storage/{IQN}/0\", paths = [{}] }}\n\
             [target.\"{IQN}\"]\nportals = [\"127.0.0.1:{own}\"]\nluns = [\"far\"]\nallow = [\"*\"]\n",
            paths.join(", ")
        )
    };
    let at = above.path();
    let mut gateway = serve(at, &text(&[&one]), own);
    let mut session = Session::login(&format!("127.0.0.1:{own}"), IQN, 0, SESSION, &[]);
    let session = session.as_mut().expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let loaded = scope.spawn(|| load(session, &is_over, &done));
        let goes_on = || {
            let before = done.load(Relaxed);
            while done.load(Relaxed) < before + 10 {
                assert!(!loaded.is_finished(), "an answer was wrong");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        };
        goes_on();
        let added = format!("~ volume far: a path to {two} is added\n");
        let removed = format!("~ volume far: the path to {one} is removed\n");
        let before = locals(at);
        let ran = apply(at, &text(&[&one, &two]), &["--dry-run"]).success();
        assert!(ran.stdout.contains(&added), "{ran}");
        assert_eq!(locals(at), before, "it was a dry run");
        let ran = apply(at, &text(&[&one, &two]), &[]).success();
        assert_eq!(ran.stdout, format!("{added}applied\n"));
        assert_eq!(portals(at), [one.clone(), two.clone()]);
        goes_on();
        let before = locals(at);
        let ran = apply(at, &text(&[&one, &two]), &[]).success();
        assert!(ran.stdout.contains("nothing changes"), "{ran}");
        assert_eq!(locals(at), before, "no session was touched");

        // A path to another disk: nothing changes.
        let ran = apply(at, &text(&[&one, &two, &wrong]), &[]);
        assert_eq!(ran.code(), Some(1), "{ran}");
        let said = format!("the path through {wrong}: LUN 0 at {wrong} is another disk");
        assert!(ran.stderr.contains(&said), "{ran}");
        assert_eq!(locals(at), before, "no session was touched");
        goes_on();

        // Nobody listens there: it is tried again, as at a start.
        let ran = apply(at, &text(&[&one, &two, &nobody]), &[]).success();
        let said = format!("! volume far: the path to {nobody} does not work yet: ");
        assert!(ran.stdout.contains(&said), "{ran}");
        goes_on();
        // But it cannot be the only one.
        let ran = apply(at, &text(&[&nobody]), &[]);
        assert_eq!(ran.code(), Some(1), "{ran}");
        let said = "none of the paths that would be left works: ";
        assert!(ran.stderr.contains(said), "{ran}");
        goes_on();

        let ran = apply(at, &text(&[&two]), &[]).success();
        assert!(ran.stdout.contains(&removed), "{ran}");
        assert_eq!(portals(at), [two.clone(), two.clone()], "one for each lane");
        goes_on();
        is_over.store(true, Relaxed);
        loaded.join().expect("every answer was right");
    });
    // The one that was never there has been reported, and no other.
    let log = gateway.daemon().log();
    let lost: Vec<_> = log
        .lines()
        .filter(|it| it.contains("session lost"))
        .collect();
    assert!(lost.iter().all(|line| line.contains(&nobody)), "{lost:?}");
    let first = shown(at)["volumes"]["far"]["tree"]["session"].clone();
    assert_eq!(first["address"], two, "{first}");
    assert_eq!(first["relogins"], 0, "{first}");

    // A restart has the same.
    gateway.daemon().signal("TERM");
    let limit = std::time::Duration::from_secs(60);
    gateway.daemon().wait(limit).expect("it ends");
    drop(gateway);
    let _gateway = serve(at, &text(&[&two]), own);
    assert_eq!(portals(at), [two.clone(), two.clone()]);
}
