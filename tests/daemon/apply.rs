//! `sanstone apply` gives a running daemon another configuration.

use std::os::unix::fs::PermissionsExt;
use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Command,
    time::Duration,
};

use harness::{
    directory::Directory,
    initiator::{at_url, on_lane},
    process::program,
    run::{Ran, run},
    sanstone::{IQN, Sanstone, call},
    wire::{Direction, Session, is_closed, opcode, write_10},
};
use serde_json::Value;
use volume::{IscsiDisk, Volume};

const SECOND: &str = "iqn.2026-11.io.sanstone:second";
pub(crate) const VOLUMES: &str = "[volume.a]\nfile = { path = \"a.img\", size = \"16MiB\" }\n\
                       [volume.b]\nfile = { path = \"b.img\", size = \"16MiB\" }\n\
                       [volume.c]\nram = { size = \"1MiB\" }\n";
pub(crate) const TEST_UNIT_READY: [u8; 6] = [0; 6];
const CHECK_CONDITION: u8 = 2;

pub(crate) fn target(name: &str, port: u16, luns: &str, rest: &str) -> String {
    format!("[target.\"{name}\"]\nportals = [\"127.0.0.1:{port}\"]\nluns = {luns}\n{rest}\n")
}

pub(crate) const ALL: &str = "allow = [\"*\"]";

pub(crate) fn serve(directory: &Path) -> Sanstone {
    let port = harness::free_port();
    let configuration = format!("{VOLUMES}{}", target(IQN, port, "[\"a\"]", ALL));
    serve_text(directory, &configuration, port)
}

fn serve_text(directory: &Path, configuration: &str, port: u16) -> Sanstone {
    let server = Sanstone::serve_configuration(directory, configuration, port);
    server.answering(&directory.join("sanstone.state"))
}

pub(crate) fn configuration(directory: &Path) -> String {
    let path = directory.join("sanstone.toml");
    path.to_str().expect("plain text").to_owned()
}

pub(crate) fn apply_with(directory: &Path, text: &str, more: &[&str]) -> Ran {
    fs::write(directory.join("sanstone.toml"), text).expect("room");
    let configuration = configuration(directory);
    call(&[&["apply", "-c", &configuration], more].concat())
}

fn apply(directory: &Path, text: &str) -> Ran {
    apply_with(directory, text, &[])
}

/// What is served, without statistics.
fn described(directory: &Path) -> Value {
    let shown = call(&["show", "-c", &configuration(directory), "--json", "-"]).success();
    let mut shown: Value = serde_json::from_str(&shown.stdout).expect("it is JSON");
    fn forget(node: &mut Value) {
        node["requests"] = Value::Null;
        // What others on this machine leave of the file system.
        if let Some(space) = node.get_mut("space") {
            space["free_bytes"] = Value::Null;
        }
        let children = node.get_mut("children").and_then(Value::as_array_mut);
        children.into_iter().flatten().for_each(forget);
    }
    for of_the_process in ["sessions", "pid", "started_unix_s"] {
        shown[of_the_process] = Value::Null;
    }
    let volumes = shown["volumes"].as_object_mut().expect("an object");
    for volume in volumes.values_mut() {
        forget(&mut volume["tree"]);
        volume["commands"] = Value::Null;
    }
    shown
}

pub(crate) fn login(port: u16, target: &str, lun: u8, number: u16) -> Session {
    let address = format!("127.0.0.1:{port}");
    let session = Session::login(&address, target, lun, number, &[]);
    let mut session = session.expect("a login");
    session.wait_until_ready().expect("a ready disk");
    session
}

/// Sends a command and returns its status and, for CHECK CONDITION, sense key, code and qualifier.
pub(crate) fn send(session: &mut Session, cdb: &[u8], data: &[u8]) -> (u8, [u8; 3]) {
    let sent = session.command(cdb, Direction::Write, data.len() as u32, data);
    sent.expect("a command");
    let response = session.receive().expect("a response");
    assert_eq!(response.opcode(), opcode::SCSI_RESPONSE);
    let sense = match response.status() {
        // The sense data follow their length.
        CHECK_CONDITION => [response.data[4] & 0xF, response.data[14], response.data[15]],
        _ => [0; 3],
    };
    (response.status(), sense)
}

#[test]
fn targets_volumes_and_luns_come_and_go_while_others_are_served() {
    let directory = Directory::new();
    let at = directory.path();
    let mut server = serve(at);
    let port = server.port();
    let mut session = login(port, IQN, 0, 1);
    assert_eq!(send(&mut session, &write_10(0, 1), &[1; 512]).0, 0);

    let with_second = |luns: &str| {
        let first = target(IQN, port, "[\"a\"]", ALL);
        format!("{VOLUMES}{first}{}", target(SECOND, port, luns, ALL))
    };
    let before = described(at);
    let text = with_second("{ 0 = \"b\" }");
    let ran = apply_with(at, &text, &["--dry-run"]).success();
    assert!(
        ran.stdout.contains(&format!("+ target {SECOND}\n")),
        "{ran}"
    );
    assert!(ran.stdout.contains("this was a dry run"), "{ran}");
    assert_eq!(described(at), before);
    let ran = apply(at, &text).success();
    assert!(ran.stdout.ends_with("applied\n"), "{ran}");
    assert!(
        apply(at, &text)
            .success()
            .stdout
            .contains("nothing changes")
    );

    // LUN 1 is added, then removed.
    let mut second = login(port, SECOND, 0, 2);
    assert_eq!(send(&mut second, &write_10(0, 1), &[2; 512]).0, 0);
    apply(at, &with_second("{ 0 = \"b\", 1 = \"c\" }")).success();
    let reported_luns_changed = (CHECK_CONDITION, [6, 0x3F, 0x0E]);
    assert_eq!(
        send(&mut second, &TEST_UNIT_READY, &[]),
        reported_luns_changed
    );
    let mut new = login(port, SECOND, 1, 3);
    assert_eq!(send(&mut new, &write_10(0, 1), &[3; 512]).0, 0);
    apply(at, &with_second("{ 0 = \"b\" }")).success();
    assert_eq!(
        send(&mut second, &TEST_UNIT_READY, &[]),
        reported_luns_changed
    );
    let not_supported = (CHECK_CONDITION, [5, 0x25, 0]);
    assert_eq!(send(&mut new, &write_10(0, 1), &[3; 512]), not_supported);

    // The whole target is removed, and its sessions with it.
    let text = format!("{VOLUMES}{}", target(IQN, port, "[\"a\"]", ALL));
    let ran = apply(at, &text).success();
    assert!(ran.stdout.contains(&format!("- target {SECOND}")), "{ran}");
    let ended = (0..10).find_map(|_| second.receive().err());
    assert!(is_closed(&ended.expect("the session has ended")));
    // The other session has noticed nothing of all this.
    assert_eq!(send(&mut session, &write_10(0, 1), &[4; 512]), (0, [0; 3]));

    // A restart serves the same.
    let live = described(at);
    server.daemon().signal("TERM");
    let limit = Duration::from_secs(60);
    server.daemon().wait(limit).expect("it ends");
    drop(server);
    let _server = serve_text(at, &text, port);
    assert_eq!(described(at), live);
}

#[test]
fn a_file_that_gets_a_larger_size_grows_under_its_sessions() {
    const MIB: u64 = 1 << 20;
    let directory = Directory::new();
    let at = directory.path();
    let mut server = serve(at);
    let port = server.port();
    let mut session = login(port, IQN, 0, 1);
    let text = |size: &str| {
        let resized = VOLUMES.replacen("16MiB", size, 1);
        format!("{resized}{}", target(IQN, port, "[\"a\"]", ALL))
    };
    let len = || fs::metadata(at.join("a.img")).expect("it is served").len();
    let end = write_10((24 * MIB / 512 - 1) as u32, 1);
    let grows = "~ volume a grows from 16 MiB to 24 MiB\n";
    let ran = apply_with(at, &text("24MiB"), &["--dry-run"]).success();
    assert!(ran.stdout.contains(grows), "{ran}");
    assert_eq!(len(), 16 * MIB);
    let out_of_range = (CHECK_CONDITION, [5, 0x21, 0]);
    assert_eq!(send(&mut session, &end, &[5; 512]), out_of_range);

    let ran = apply(at, &text("24MiB")).success();
    assert!(ran.stdout.contains(grows), "{ran}");
    assert_eq!(len(), 24 * MIB);
    let capacity_changed = (CHECK_CONDITION, [6, 0x2A, 9]);
    // All lanes tell their sessions on their own.
    let told = (0..100).find_map(|_| {
        let told = send(&mut session, &TEST_UNIT_READY, &[]);
        std::thread::sleep(Duration::from_millis(20));
        (told.0 != 0).then_some(told)
    });
    assert_eq!(told, Some(capacity_changed));
    assert_eq!(send(&mut session, &end, &[5; 512]), (0, [0; 3]));
    let again = apply(at, &text("24MiB")).success();
    assert!(again.stdout.contains("nothing changes"), "{again}");

    let smaller = apply(at, &text("8MiB"));
    assert_eq!(smaller.code(), Some(2), "{smaller}");
    let why = "volume \"a\": its size cannot become 8MiB while it is served with 24MiB";
    assert!(smaller.stderr.contains(why), "{smaller}");

    // A restart serves the same.
    fs::write(at.join("sanstone.toml"), text("24MiB")).expect("room");
    let live = described(at);
    server.daemon().signal("TERM");
    let limit = Duration::from_secs(60);
    server.daemon().wait(limit).expect("it ends");
    drop(server);
    let _server = serve_text(at, &text("24MiB"), port);
    assert_eq!(described(at), live);
}

#[test]
fn a_lun_that_becomes_another_disk_ends_the_session_that_had_it() {
    let directory = Directory::new();
    let at = directory.path();
    let server = serve(at);
    let port = server.port();
    let mut session = login(port, IQN, 0, 1);
    let ran = apply(
        at,
        &format!("{VOLUMES}{}", target(IQN, port, "[\"b\"]", ALL)),
    )
    .success();
    let announced = format!("! target {IQN}: LUN 0 becomes another disk");
    assert!(ran.stdout.contains(&announced), "{ran}");
    let ended = (0..10).find_map(|_| session.receive().err());
    assert!(is_closed(&ended.expect("the session has ended")));
    // The same initiator port is told before its commands reach the new disk.
    let address = format!("127.0.0.1:{port}");
    let mut again = Session::login(&address, IQN, 0, 1, &[]).expect("a login");
    let told: Vec<_> = (0..4)
        .map(|_| send(&mut again, &TEST_UNIT_READY, &[]).1)
        .collect();
    assert_eq!(
        told,
        [[6, 0x29, 0], [6, 0x3F, 3], [6, 0x3F, 0xE], [0, 0, 0]]
    );
}

#[test]
fn what_cannot_be_changed_or_does_not_work_changes_nothing() {
    let directory = Directory::new();
    let at = directory.path();
    let server = serve(at);
    let port = server.port();
    let before = described(at);
    let mut session = login(port, IQN, 0, 1);
    let first = target(IQN, port, "[\"a\"]", ALL);
    let other_cache = VOLUMES.replace("\"a.img\",", "\"a.img\", cache = \"write-through\",");
    let taken = harness::free_port();
    let listener = TcpListener::bind(("127.0.0.1", taken)).expect("it is free");
    let more = |luns: &str, port| target(SECOND, port, luns, ALL);
    for (text, code, part) in [
        (
            format!("lanes = 3\n{VOLUMES}{first}"),
            2,
            "lanes: set only at startup; restart",
        ),
        (
            format!("wait = \"cpu\"\n{VOLUMES}{first}"),
            2,
            "wait: set only at startup; restart",
        ),
        (
            format!("memory = \"64MiB\"\n{VOLUMES}{first}"),
            2,
            "memory or limits.transfer: set only at startup",
        ),
        (
            format!("state = \"elsewhere\"\n{VOLUMES}{first}"),
            2,
            "write state = ",
        ),
        (
            format!("{other_cache}{first}"),
            2,
            "volume \"a\": these settings cannot change while it is served",
        ),
        (
            format!("{VOLUMES}{first}nonsense = 1\n"),
            2,
            "sanstone.toml:",
        ),
        (
            format!(
                "{VOLUMES}[volume.d]\nfile = {{ path = \"d.img\" }}\n{first}{}",
                more("[\"d\"]", port)
            ),
            2,
            "d.img",
        ),
        // A volume that could be opened, and is closed again.
        (
            format!("{VOLUMES}{first}{}", more("[\"b\"]", taken)),
            1,
            "cannot listen on",
        ),
    ] {
        let ran = apply(at, &text);
        // Another state directory means another daemon, and none is running there.
        let is_elsewhere = text.starts_with("state");
        let (code, part) = match is_elsewhere {
            true => (1, "runs with the state directory"),
            false => (code, part),
        };
        assert_eq!(ran.code(), Some(code), "{ran}");
        assert!(ran.stderr.contains(part), "no {part:?} in {ran}");
        fs::write(at.join("sanstone.toml"), format!("{VOLUMES}{first}")).expect("room");
        assert_eq!(described(at), before, "{text}");
    }
    drop(listener);
    // What was opened for the last attempt is free again: it works now.
    apply(at, &format!("{VOLUMES}{first}{}", more("[\"b\"]", taken))).success();
    login(taken, SECOND, 0, 2);
    assert_eq!(send(&mut session, &write_10(0, 1), &[1; 512]), (0, [0; 3]));
}

#[test]
fn who_may_not_use_a_target_any_more_is_sent_away_and_the_rest_stays() {
    let directory = Directory::new();
    let at = directory.path();
    let server = serve(at);
    let port = server.port();
    let mut session = login(port, IQN, 0, 1);
    // A new secret is required at the next login.
    let file = directory.write("secret", "a-secret-of-16-b");
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let secret = "allow = [\"*\"]\nchap = { user = \"db\", secret_file = \"secret\" }";
    let ran = apply(
        at,
        &format!("{VOLUMES}{}", target(IQN, port, "[\"a\"]", secret)),
    )
    .success();
    assert!(ran.stdout.contains("authentication"), "{ran}");
    assert!(!ran.text().contains("a-secret"), "{ran}");
    assert_eq!(send(&mut session, &write_10(0, 1), &[1; 512]).0, 0);
    let address = format!("127.0.0.1:{port}");
    let refused = Session::login(&address, IQN, 0, 2, &[]);
    refused.expect_err("it proves nothing");
    let nobody = "allow = [\"iqn.2026-11.io.sanstone:nobody\"]";
    apply(
        at,
        &format!("{VOLUMES}{}", target(IQN, port, "[\"a\"]", nobody)),
    )
    .success();
    let ended = (0..10).find_map(|_| session.receive().err());
    assert!(is_closed(&ended.expect("the session has ended")));
}

#[test]
fn a_new_disk_works_with_our_initiator_and_with_libiscsi() {
    let directory = Directory::new();
    let at = directory.path();
    let server = serve(at);
    let port = server.port();
    let first = target(IQN, port, "[\"a\"]", ALL);
    apply(
        at,
        &format!("{VOLUMES}{first}{}", target(SECOND, port, "[\"b\"]", ALL)),
    )
    .success();
    let url = format!("iscsi://127.0.0.1:{port}/{SECOND}/0");
    on_lane(async {
        let disk = IscsiDisk::open(at_url(&url)).await.expect("it is served");
        let data = engine::Payload::zeroes(4096);
        let written = disk.write(0, data, volume::Durability::Fua).await;
        written.expect("it takes writes");
    });
    let mut command = Command::new(program("iscsi-inq", "libiscsi-bin"));
    let ran = run(command.arg(&url), Duration::from_secs(60)).success();
    assert!(ran.stdout.contains("SANSTONE"), "{ran}");
}

#[test]
fn limits_and_portals_change_for_who_comes() {
    let directory = Directory::new();
    let at = directory.path();
    let server = serve(at);
    let port = server.port();
    let mut session = login(port, IQN, 0, 1);
    let other = harness::free_port();
    let first = target(IQN, other, "[\"a\"]", ALL);
    let ran = apply(at, &format!("connections = 1\n{VOLUMES}{first}")).success();
    assert!(ran.stdout.contains("~ limits"), "{ran}");
    assert!(
        ran.stdout.contains(&format!("~ target {IQN}: portals")),
        "{ran}"
    );
    assert_eq!(send(&mut session, &write_10(0, 1), &[1; 512]), (0, [0; 3]));
    let login_at = |port: u16| {
        let address = format!("127.0.0.1:{port}");
        Session::login(&address, IQN, 0, 2, &[])
    };
    login_at(port).expect_err("nobody listens there any more");
    let full = login_at(other).expect_err("there is a session");
    assert!(full.to_string().contains("0x03 0x02"), "{full}");
    apply(at, &format!("connections = 2\n{VOLUMES}{first}")).success();
    login_at(other).expect("there is room");
}

#[test]
fn a_file_without_a_target_takes_nothing_away() {
    let directory = Directory::new();
    let server = serve(directory.path());
    let mut session = login(server.port(), IQN, 0, 1);
    for text in ["", VOLUMES] {
        let ran = apply(directory.path(), text);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains("there is no target to serve"), "{ran}");
    }
    assert_eq!(send(&mut session, &TEST_UNIT_READY, &[]).0, 0);
}

#[test]
fn a_daemon_is_looked_at_and_ends_while_it_waits_for_a_disk() {
    let directory = Directory::new();
    let mut server = serve(directory.path());
    // A portal where nobody listens.
    let away = format!(
        "[volume.away]\niscsi = {{ url = \"iscsi://127.0.0.1:{}/{IQN}/0\", wait_at_start = \"10min\" }}\n",
        harness::free_port()
    );
    let text = format!(
        "{VOLUMES}{away}{}",
        target(IQN, server.port(), "[\"a\", \"away\"]", ALL)
    );
    std::thread::scope(|scope| {
        let applying = scope.spawn(|| apply(directory.path(), &text));
        server.daemon().log_with("waiting for the disk");
        // Queries are answered in the meantime, and show what is served until then.
        let shown = described(directory.path());
        assert!(shown["volumes"].get("away").is_none(), "{shown}");
        let top = ["top", "--once", "--json", "-", "--state"];
        let state = directory.path().join("sanstone.state");
        let state = state.to_str().expect("plain text");
        call(&[&top[..], &[state]].concat()).success();
        server.daemon().signal("TERM");
        let ended = server.daemon().wait(Duration::from_secs(120));
        assert!(ended.expect("it does not wait for the disk").success());
        let ran = applying.join().expect("no panic");
        assert_eq!(ran.code(), Some(1), "{ran}");
    });
}

#[test]
fn a_daemon_ends_while_it_waits_for_the_flush_of_a_disk_that_it_removed() {
    let directory = Directory::new();
    let port = harness::free_port();
    let hung = "[volume.hung]\nfault = { rules = [{ on = \"flush\", hang = true }], of = \
                { file = { path = \"hung.img\", size = \"1MiB\" } } }\n";
    let without = format!("{VOLUMES}{}", target(IQN, port, "[\"a\"]", ALL));
    let with = format!("{without}{hung}{}", target(SECOND, port, "[\"hung\"]", ALL));
    let mut server = serve_text(directory.path(), &with, port);
    let mut session = login(port, SECOND, 0, 1);
    std::thread::scope(|scope| {
        let applying = scope.spawn(|| apply(directory.path(), &without));
        let ended = (0..10).find_map(|_| session.receive().err());
        assert!(is_closed(&ended.expect("the session has ended")));
        server.daemon().signal("TERM");
        let ended = server.daemon().wait(Duration::from_secs(120));
        assert!(ended.expect("it does not wait for the disk").success());
        let ran = applying.join().expect("no panic").success();
        assert!(ran.stdout.contains("! the daemon stops"), "{ran}");
    });
}

/// The number of sessions of a daemon.
fn sessions(directory: &Path) -> usize {
    let shown = call(&["show", "-c", &configuration(directory), "--json", "-"]).success();
    let shown: Value = serde_json::from_str(&shown.stdout).expect("it is JSON");
    shown["sessions"].as_array().map_or(0, Vec::len)
}

#[test]
fn a_remote_disk_has_a_session_for_each_lane_or_as_many_as_asked_for_and_none_when_it_is_gone() {
    let (below, above) = (Directory::new(), Directory::new());
    let port = harness::free_port();
    let storage = "[volume.a]\nram = { size = \"1MiB\" }\n";
    let text = format!("{storage}{}", target(IQN, port, "[\"a\"]", ALL));
    let mut storage = serve_text(below.path(), &text, port);
    let own = harness::free_port();
    let with = |more: &str| {
        format!(
            "lanes = 3\n{VOLUMES}[volume.far]\niscsi = {{ url = \"iscsi://127.0.0.1:{port}/{IQN}/0\"{more} }}\n{}",
            target(IQN, own, "[\"c\", \"far\"]", ALL)
        )
    };
    let without = format!("lanes = 3\n{VOLUMES}{}", target(IQN, own, "[\"c\"]", ALL));
    let gateway = serve_text(above.path(), &without, own);
    for (more, count) in [("", 3), (", sessions = 2", 2), (", sessions = 5", 5)] {
        apply(above.path(), &with(more)).success();
        assert_eq!(sessions(below.path()), count, "{more}");
        check_sessions_of_leaf(above.path(), port, count);
        let far = login(own, IQN, 1, 1);
        apply(above.path(), &without).success();
        // The target answers the logouts before it has removed the sessions.
        storage.daemon().wait_until(|| sessions(below.path()) == 0);
        drop(far);
    }
    drop(gateway);
}

/// The sessions of the volume `far`, as `show` has them.
fn check_sessions_of_leaf(directory: &Path, port: u16, count: usize) {
    let state = directory.join("sanstone.state");
    let call_of = |more: &[&str]| {
        let state = state.to_str().expect("plain text");
        call(&[&["show", "--state", state], more].concat()).success()
    };
    let shown: Value = serde_json::from_str(&call_of(&["--json", "-"]).stdout).expect("it is JSON");
    let sessions = shown["volumes"]["far"]["tree"]["sessions"].as_array();
    let sessions = sessions.expect("a list");
    assert_eq!(sessions.len(), count, "{shown}");
    let mut locals = BTreeSet::new();
    for session in sessions {
        assert_eq!(session["state"], "logged in", "{shown}");
        assert_eq!(session["portal"], format!("127.0.0.1:{port}"), "{shown}");
        let local: SocketAddr = session["local"]
            .as_str()
            .and_then(|it| it.parse().ok())
            .expect("an address");
        locals.insert(local);
    }
    assert_eq!(
        locals.len(),
        count,
        "each has a connection of its own: {shown}"
    );
    let lanes: BTreeSet<_> = sessions.iter().map(|it| it["lane"].as_u64()).collect();
    assert_eq!(lanes.len(), count.min(3), "{shown}");
    for local in locals {
        let line = format!("session from {local} at 127.0.0.1:{port}, on lane ");
        assert!(call_of(&[]).stdout.contains(&line), "{line}");
    }
}

/// A volume at a portal where nobody listens; no request waits for it to come back.
fn away() -> String {
    format!(
        "[volume.away]\niscsi = {{ url = \"iscsi://127.0.0.1:{}/{IQN}/0\" }}\n",
        harness::free_port()
    )
}

#[test]
fn an_apply_that_fails_leaves_no_file_and_no_record_behind() {
    let directory = Directory::new();
    let at = directory.path();
    let server = serve(at);
    let port = server.port();
    directory.write("old.img", "\0".repeat(1 << 20));
    let records = || {
        let records = fs::read_to_string(at.join("sanstone.state/volumes.toml"));
        records.expect("it is there")
    };
    let before = records();
    // The other files of the state directory, and the numbers of ports.
    let others = || {
        let entries = fs::read_dir(at.join("sanstone.state")).expect("it is there");
        let names = entries.map(|entry| entry.expect("it is read").file_name());
        let ports = fs::read_to_string(at.join("sanstone.state/ports.toml"));
        (names.collect::<BTreeSet<_>>(), ports.expect("it is there"))
    };
    let others_before = others();
    let new = "[volume.new]\nfile = { path = \"new.img\", size = \"1MiB\" }\n\
               [volume.old]\nfile = { path = \"old.img\" }\n";
    let taken = harness::free_port();
    let listener = TcpListener::bind(("127.0.0.1", taken)).expect("it is free");
    let first = target(IQN, port, "[\"a\"]", ALL);
    let second = |luns: &str, port| target(SECOND, port, luns, ALL);
    // First the second disk cannot be opened; then all can, but the portal cannot be bound.
    let luns = "[\"new\", \"away\"]";
    let disk_away = format!("{VOLUMES}{new}{}{first}{}", away(), second(luns, port));
    let luns = "[\"new\", \"old\"]";
    let port_taken = format!("{VOLUMES}{new}{first}{}", second(luns, taken));
    for text in [&disk_away, &port_taken] {
        let ran = apply(at, text);
        assert_ne!(ran.code(), Some(0), "{ran}");
        assert!(!at.join("new.img").exists(), "{ran}");
        assert!(at.join("old.img").exists(), "{ran}");
        assert!(!records().contains("new"), "{}", records());
        assert_eq!(others(), others_before, "{ran}");
    }
    // Disks that were marked are recorded; of the others nothing is left.
    let mut text = records();
    if let Some(start) = text.find("old.img") {
        assert!(text[..start].contains("marked"), "{text}");
        text = before.clone();
    }
    assert_eq!(text, before);
    // A dry run tries the port, and creates nothing.
    let ran = apply_with(at, &port_taken, &["--dry-run"]);
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.stderr.contains("cannot listen on"), "{ran}");
    drop(listener);
    let ran = apply_with(at, &port_taken, &["--dry-run"]).success();
    assert!(ran.stdout.contains("this was a dry run"), "{ran}");
    assert!(!at.join("new.img").exists(), "{ran}");
    apply(at, &port_taken).success();
    assert!(at.join("new.img").exists() && records().contains("new"));
}

#[test]
fn what_the_daemon_itself_has_is_told_as_that() {
    let directory = Directory::new();
    let at = directory.path();
    let server = serve(at);
    let port = server.port();
    let first = target(IQN, port, "[\"a\"]", ALL);
    let everywhere = first.replace("127.0.0.1", "0.0.0.0");
    let renamed = VOLUMES.replace("volume.a", "volume.z");
    let renamed = format!("{renamed}{}", target(IQN, port, "[\"z\"]", ALL));
    let everywhere = format!("{VOLUMES}{everywhere}");
    for (text, part) in [
        (&everywhere, "this daemon already listens on 127.0.0.1:"),
        (&renamed, "is still open for a volume that is being removed"),
    ] {
        let ran = apply(at, text);
        assert_ne!(ran.code(), Some(0), "{ran}");
        assert!(ran.stderr.contains(part), "{ran}");
        assert!(ran.stderr.contains("and apply"), "{ran}");
    }
    // The configuration file's own name makes no difference; the loss of data that is only in memory is reported.
    let luns = "[\"a\", \"c\"]";
    let with_ram = format!("{VOLUMES}{}", target(IQN, port, luns, ALL));
    apply(at, &with_ram).success();
    let other = directory.write("other.toml", format!("{VOLUMES}{first}"));
    let state = "state = \"sanstone.state\"\n";
    fs::write(&other, format!("{state}{VOLUMES}{first}")).expect("room");
    let other = other.to_str().expect("plain text");
    let ran = call(&["apply", "-c", other]).success();
    let gone = "! volume c: closing it discards its data, which is only in memory\n";
    assert!(ran.stdout.contains(gone), "{ran}");
    assert!(!ran.stderr.contains("state directory"), "{ran}");
    // An endless file is not a configuration.
    let ran = call(&["apply", "-c", "/dev/zero"]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(
        ran.stderr.contains("a character device, not a file"),
        "{ran}"
    );
}

#[test]
fn many_clients_at_once_are_answered_or_told_why_not() {
    let directory = Directory::new();
    let _server = serve(directory.path());
    let configuration = configuration(directory.path());
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..40)
            .map(|_| scope.spawn(|| call(&["show", "-c", &configuration, "--json", "-"])))
            .collect();
        for client in clients {
            let ran = client.join().expect("no panic");
            let is_told = ran
                .stderr
                .contains("other clients are being served; try again");
            assert!(ran.code() == Some(0) || is_told, "{ran}");
        }
    });
    // A file that is not regular has no length.
    call(&["show", "-c", &configuration, "--json", "/dev/stdout"]).success();
}
