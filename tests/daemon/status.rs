//! `sanstone status`: one word, a line for each reason with its mend, and an exit code; `show` and `top` say the same. Each
//! trouble is brought about, seen, and seen to end.

use std::{
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use harness::{
    directory::Directory,
    run::Ran,
    sanstone::{IQN, Sanstone, call, target_table},
    wire::{Direction, Session, write_10},
};
use serde_json::Value;

/// How long something may take to be seen on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

fn state(directory: &Path) -> String {
    let state = directory.join("sanstone.state");
    state.to_str().expect("plain text").to_owned()
}

fn status(directory: &Path) -> Ran {
    call(&["status", "--state", &state(directory)])
}

/// Waits for this exit code, with a line that has `part`.
#[track_caller]
fn seen(directory: &Path, code: i32, part: &str) -> Ran {
    let begun = Instant::now();
    loop {
        let ran = status(directory);
        if ran.code() == Some(code) && (ran.stdout.contains(part) || ran.stderr.contains(part)) {
            return ran;
        }
        assert!(begun.elapsed() < LIMIT, "no {code} with {part}: {ran}");
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_daemon_that_does_not_answer_is_down() {
    let directory = Directory::new();
    std::fs::create_dir(directory.join("sanstone.state")).expect("a directory of ours");
    let ran = status(directory.path());
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains("sanstone: down: "), "{ran}");
}

#[test]
fn requests_that_hang_are_seen_in_status_show_and_top_until_they_end() {
    let directory = Directory::new();
    let port = harness::free_port();
    let volumes = "[volume.db]\nfault = { rules = [{ on = \"write\", delay = \"20s\", times = 1 }], \
                   of = { file = { path = \"db.img\", size = \"16MiB\" } } }\n";
    let configuration = format!("{volumes}{}", target_table(port, &["db"]));
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let _server = server.answering(&directory.join("sanstone.state"));
    assert_eq!(seen(directory.path(), 0, "ok").stdout, "ok\n");
    let portal = format!("127.0.0.1:{port}");
    let mut session = Session::login(&portal, IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let task = session.command(&write_10(0, 8), Direction::Write, 4096, &[0x5A; 4096]);
    let task = task.expect("a command");
    // A fault below which nothing is reached yet: the node that hangs is the lowest that has the request.
    let ran = seen(directory.path(), 1, "1 write in progress, the oldest for");
    assert!(
        ran.stdout.starts_with("degraded\n  degraded: db/fault"),
        "{ran}"
    );
    let show = call(&["show", "--state", &state(directory.path())]).success();
    assert!(show.stdout.contains("health        degraded\n"), "{show}");
    assert!(show.stdout.contains("1 in progress for up to"), "{show}");
    let arguments = [
        "top",
        "--once",
        "--json",
        "-",
        "--state",
        &state(directory.path()),
    ];
    let top: Value = serde_json::from_str(&call(&arguments).success().stdout).expect("JSON");
    let node = &top["nodes"]["db/fault"]["all"];
    assert_eq!(node["queue"], 1.0, "{top}");
    assert!(node["oldest_s"].as_f64().is_some_and(|s| s >= 3.0), "{top}");
    assert_eq!(top["verdict"]["health"], "degraded", "{top}");
    let answers = session.responses_to(&[task]).expect("it ends");
    assert_eq!(answers[0].0, 0);
    assert_eq!(seen(directory.path(), 0, "ok").stdout, "ok\n");
}

#[test]
fn a_target_that_is_away_is_down_until_it_is_back() {
    is_down_until_it_is_back("");
}

#[test]
fn a_target_with_one_session_and_no_requests_is_down_until_it_is_back() {
    is_down_until_it_is_back(", sessions = 1");
}

fn is_down_until_it_is_back(more: &str) {
    let directories = [Directory::new(), Directory::new()];
    let ports = [harness::free_port(), harness::free_port()];
    let below = |port| {
        let volumes = "[volume.disk]\nfile = { path = \"disk.img\", size = \"16MiB\" }\n";
        let configuration = format!("{volumes}{}", target_table(port, &["disk"]));
        Sanstone::serve_configuration(directories[0].path(), &configuration, port)
    };
    let target = below(ports[0]);
    let volumes = format!(
        "[volume.db]\niscsi = {{ url = \"{}\", reconnect_timeout = \"100s\"{more} }}\n",
        target.url(0)
    );
    let configuration = format!("{volumes}{}", target_table(ports[1], &["db"]));
    let upper = directories[1].path();
    let server = Sanstone::serve_configuration(upper, &configuration, ports[1]);
    let _server = server.answering(&upper.join("sanstone.state"));
    assert_eq!(seen(upper, 0, "ok").stdout, "ok\n");
    drop(target);
    let ran = seen(upper, 2, "no session: ");
    assert!(
        ran.stdout
            .starts_with("down\n  down: db/iscsi (iscsi://127.0.0.1"),
        "{ran}"
    );
    assert!(
        ran.stdout.contains("; look at the target and the network"),
        "{ran}"
    );
    let arguments = ["status", "--json", "-", "--state", &state(upper)];
    let json: Value = serde_json::from_str(&call(&arguments).stdout).expect("it is JSON");
    assert_eq!(
        (&json["health"], &json["reasons"][0]["health"]),
        (&"down".into(), &"down".into())
    );
    let _target = below(ports[0]);
    assert_eq!(seen(upper, 0, "ok").stdout, "ok\n");
}

#[test]
fn a_file_system_that_is_full_is_down_and_one_that_fills_up_degraded() {
    if !rustix::process::geteuid().is_root() {
        harness::skip("a file system of its own needs root");
        return;
    }
    let directory = Directory::new();
    let small = directory.join("small");
    std::fs::create_dir(&small).expect("a directory of ours");
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "tmpfs", "-o", "size=40m", "none"])
        .arg(&small);
    assert!(mount.status().expect("mount").success());
    let port = harness::free_port();
    let volumes = "[volume.db]\nfile = { path = \"small/db.img\", size = \"1GiB\", cache = \"write-back\" }\n";
    let configuration = format!("{volumes}{}", target_table(port, &["db"]));
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let server = server.answering(&directory.join("sanstone.state"));
    let filling = seen(directory.path(), 1, "its file system has ");
    assert!(
        filling
            .stdout
            .contains("its file may still grow by 1023 MiB"),
        "{filling}"
    );
    std::fs::write(small.join("other"), vec![1; 30 << 20]).expect("there is room");
    seen(directory.path(), 2, "its file system has ");
    std::fs::remove_file(small.join("other")).expect("ours");
    seen(directory.path(), 1, "its file system has ");
    drop(server);
    assert!(
        Command::new("umount")
            .arg(&small)
            .status()
            .expect("umount")
            .success()
    );
}
