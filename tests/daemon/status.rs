//! `sanstone status`: one word, a line for each reason with its mend, and an exit code; `show` and `top` say the same. Each
//! trouble of a disk, its sessions and its requests is brought about, seen, and seen to end; those of several disks together
//! are in `status_of_sets`, and of secrets in `rotation`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use harness::{
    attachment::{Attachment, Front},
    directory::Directory,
    health::Health,
    sanstone::{IQN, Sanstone, call, target_table},
    wire::{Direction, Session, read_10, write_10},
};
use serde_json::Value;

use crate::{
    atomic::{Mounted, run},
    far::{Far, PATIENT},
};

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;

/// Serves this configuration, which has a portal at `port`.
fn serve(directory: &Path, configuration: &str, port: u16) -> (Sanstone, Health) {
    let state = directory.join("sanstone.state");
    let server = Sanstone::serve_configuration(directory, configuration, port);
    (server.answering(&state), Health::of(&state))
}

/// Serves this volume, called `db`.
fn serve_volume(directory: &Path, volume: &str) -> (Sanstone, Health) {
    let port = harness::free_port();
    let configuration = format!("[volume.db]\n{volume}\n{}", target_table(port, &["db"]));
    serve(directory, &configuration, port)
}

fn login(server: &Sanstone) -> Session {
    let portal = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&portal, IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    session
}

fn execute(session: &mut Session, cdb: &[u8], data: &[u8]) -> u8 {
    session.execute(cdb, data, 0).expect("a response").0
}

/// A file system of its own; gone when this is dropped.
struct Small(PathBuf);

impl Small {
    /// `None`: it needs root.
    fn mounted(directory: &Directory, arguments: &[&str]) -> Option<Small> {
        if !rustix::process::geteuid().is_root() {
            harness::skip("a file system of its own needs root");
            return None;
        }
        let place = directory.join("small");
        fs::create_dir(&place).expect("a directory of ours");
        run(Command::new("mount").args(arguments).arg(&place)).expect("it is mounted");
        Some(Small(place))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Whoever was killed may still have something open.
        run(Command::new("umount").arg("-l").arg(&self.0)).expect("it is ours");
    }
}

#[test]
fn a_daemon_that_does_not_answer_is_down() {
    let directory = Directory::new();
    fs::create_dir(directory.join("sanstone.state")).expect("a directory of ours");
    let state = directory.join("sanstone.state");
    let ran = call(&["status", "--state", state.to_str().expect("plain text")]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains("sanstone: down: "), "{ran}");
}

#[test]
fn requests_that_hang_are_seen_until_they_end_and_nothing_above_them_is_idle() {
    let (directory, far) = (Directory::new(), Far::new(1));
    let volume = format!("stats = {{ of = {{ {} }} }}", far.volume(PATIENT));
    let (server, health) = serve_volume(directory.path(), &volume);
    health.is_ok();
    let mut session = login(&server);
    far.ways[0].stall();
    let task = session.command(&write_10(0, 8), Direction::Write, 4096, &[0x5A; 4096]);
    let task = task.expect("a command");
    let line = health.shows(1, "1 write in progress, the oldest for");
    // The lowest node that has the request, and where that is.
    assert!(
        line.starts_with("degraded: db/stats/iscsi (iscsi://127.0.0.1"),
        "{line}"
    );
    assert!(
        line.ends_with("; look at the disk or the target below: it has not answered"),
        "{line}"
    );
    let top = health.top();
    let initiator = top["initiators"]
        .as_object()
        .expect("a table")
        .values()
        .next();
    for row in [
        &top["nodes"]["db/stats"]["all"],
        &top["nodes"]["db/stats/iscsi"]["all"],
        &top["volumes"]["db"]["all"],
        &initiator.expect("it is logged in")["all"],
        &top["total"],
    ] {
        assert_eq!(row["queue"], 1.0, "{top:#}");
        assert_eq!(row["iops"], 0.0, "{top:#}");
        assert!(
            row["oldest_s"].as_f64().is_some_and(|s| s >= 3.0),
            "{top:#}"
        );
    }
    far.ways[0].mend();
    let answers = session.responses_to(&[task]).expect("it ends");
    assert_eq!(answers[0].0, GOOD);
    health.is_ok();
    let top = health.top();
    assert_eq!(top["volumes"]["db"]["all"]["queue"], 0.0, "{top:#}");
}

#[test]
fn the_screen_of_top_has_the_whole_line_and_its_mend() {
    let (directory, far) = (Directory::new(), Far::new(1));
    let (_server, health) = serve_volume(directory.path(), &far.volume(PATIENT));
    far.ways[0].break_all();
    health.shows(2, "no session: ");
    let top = format!(
        "stty cols 80 rows 24; exec {} top --once --state {}",
        harness::sanstone::binary().display(),
        directory.join("sanstone.state").display()
    );
    let mut terminal = Command::new("script");
    terminal
        .args(["-qec", &top, "/dev/null"])
        .env("TERM", "xterm");
    let screen = harness::run::run(&mut terminal, std::time::Duration::from_secs(60)).success();
    let screen = words(&screen.stdout);
    assert!(
        screen.contains("down: db/iscsi (iscsi://127.0.0.1"),
        "{screen}"
    );
    assert!(screen.contains("and it logs in by itself"), "{screen}");
}

/// What stands on a terminal, without where it stands.
fn words(drawn: &str) -> String {
    let mut text = String::new();
    let mut rest = drawn.chars();
    while let Some(char) = rest.next() {
        if char == '\x1b' {
            // To the letter that ends the sequence.
            let _ = rest.by_ref().skip(1).find(char::is_ascii_alphabetic);
            text.push(' ');
        } else {
            text.push(char);
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
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
    let (directory, far) = (Directory::new(), Far::new(1));
    let (_server, health) =
        serve_volume(directory.path(), &far.volume(&format!("{PATIENT}{more}")));
    health.is_ok();
    let back = far.away();
    let line = health.shows(2, "no session: ");
    assert!(
        line.starts_with("down: db/iscsi (iscsi://127.0.0.1"),
        "{line}"
    );
    assert!(
        line.contains("; look at the target and the network"),
        "{line}"
    );
    let state = directory.join("sanstone.state");
    let arguments = [
        "status",
        "--json",
        "-",
        "--state",
        state.to_str().expect("plain text"),
    ];
    let json: Value = serde_json::from_str(&call(&arguments).stdout).expect("it is JSON");
    assert_eq!(
        (&json["health"], &json["reasons"][0]["health"]),
        (&"down".into(), &"down".into())
    );
    let _far = back();
    health.is_ok();
}

#[test]
fn a_lost_path_is_seen_until_it_is_back() {
    let (directory, far) = (Directory::new(), Far::new(2));
    let (_server, health) =
        serve_volume(directory.path(), &far.volume("reconnect_timeout = \"1h\""));
    health.is_ok();
    let lost = format!("the path to {} is lost: ", far.ways[1].address());
    far.ways[1].break_all();
    let line = health.shows(1, &lost);
    assert!(line.starts_with("degraded: db/iscsi (iscsi://"), "{line}");
    assert!(
        line.ends_with("; look at that portal and its network; it logs in by itself"),
        "{line}"
    );
    far.ways[1].mend();
    health.is_ok();
    // A cut cable, of which nobody is told.
    far.ways[1].stall();
    health.shows(1, &lost);
    far.ways[1].mend();
    health.is_ok();
}

#[test]
fn a_disk_that_its_target_does_not_offer_any_more_is_seen_until_it_does() {
    let (directory, far) = (Directory::new(), Far::new(1));
    let (server, health) = serve_volume(directory.path(), &far.volume(PATIENT));
    let mut session = login(&server);
    assert_eq!(execute(&mut session, &write_10(0, 1), &[1; 512]), GOOD);
    health.is_ok();
    far.offers(false);
    assert_ne!(execute(&mut session, &write_10(0, 1), &[2; 512]), GOOD);
    let line = health.shows(2, "its last write has failed: ");
    assert!(
        line.starts_with("down: db/iscsi (iscsi://127.0.0.1"),
        "{line}"
    );
    assert!(line.contains("has no LUN 0"), "{line}");
    far.offers(true);
    let deadline = Instant::now() + Duration::from_secs(60);
    while execute(&mut session, &write_10(0, 1), &[3; 512]) != GOOD {
        assert!(Instant::now() < deadline, "it is offered again");
        sleep(Duration::from_millis(100));
    }
    health.is_ok();
}

#[test]
fn a_volume_that_refuses_writes_after_a_failed_flush_is_down_until_it_is_opened_anew() {
    let directory = Directory::new();
    let volume = |times: u32| {
        let child = |name: &str| format!("{{ file = {{ path = \"{name}\", size = \"9MiB\" }} }}");
        format!(
            "stripe = {{ of = [{{ fault = {{ rules = [{{ on = \"flush\", fail = \"medium\", skip = {times} }}], of = {} }} }}, {}] }}",
            child("a"),
            child("b")
        )
    };
    // Its superblock and label are flushed, too.
    let text = format!("[volume.db]\n{}\n", volume(1000));
    let file = directory.write("sanstone.toml", &text);
    call(&[
        "volume",
        "create",
        "-c",
        file.to_str().expect("plain text"),
        "db",
    ])
    .success();
    let flush = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (server, health) = serve_volume(directory.path(), &volume(3));
    let mut session = login(&server);
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert!(Instant::now() < deadline, "no flush fails");
        let written = execute(&mut session, &write_10(0, 1), &[2; 512]);
        if written != GOOD || execute(&mut session, &flush, &[]) != GOOD {
            break;
        }
    }
    let line = health.shows(
        2,
        "writes that were acknowledged may be lost, and it takes no others: ",
    );
    assert!(line.starts_with("down: db/stripe"), "{line}");
    drop((session, server));
    let (server, health) = serve_volume(directory.path(), &volume(1000));
    let mut session = login(&server);
    assert_eq!(execute(&mut session, &write_10(0, 1), &[2; 512]), GOOD);
    health.is_ok();
}

#[test]
fn what_an_initiator_has_set_for_all_is_seen_until_one_takes_it_back() {
    const MODE_SELECT: [u8; 6] = [0x15, 0x10, 0, 0, 16, 0];
    const EJECT: [u8; 6] = [0x1B, 0, 0, 0, 0x02, 0];
    const LOAD: [u8; 6] = [0x1B, 0, 0, 0, 0x03, 0];
    /// A control page, with SWP or without.
    const fn page(swp: u8) -> [u8; 16] {
        [
            0, 0, 0, 0, 0x0A, 0x0A, 0x02, 0x10, swp, 0x40, 0, 0, 0xFF, 0xFF, 0, 0,
        ]
    }
    let directory = Directory::new();
    let port = harness::free_port();
    let target = target_table(port, &["db"]).replace(
        "luns = [\"db\"]",
        "luns = [{ volume = \"db\", removable = true }]",
    );
    let configuration = format!("[volume.db]\nram = {{ size = \"16MiB\" }}\n{target}");
    let (server, health) = serve(directory.path(), &configuration, port);
    let mut session = login(&server);
    assert_eq!(execute(&mut session, &MODE_SELECT, &page(0x08)), GOOD);
    let line = health.shows(
        1,
        "write-protected by an initiator (SWP); an initiator that may",
    );
    assert!(line.starts_with("degraded: db: "), "{line}");
    assert_eq!(execute(&mut session, &MODE_SELECT, &page(0)), GOOD);
    health.is_ok();
    assert_eq!(execute(&mut session, &EJECT, &[]), GOOD);
    let line = health.shows(
        2,
        "an initiator has ejected it; an initiator loads it again",
    );
    assert!(line.starts_with("down: db: "), "{line}");
    assert_eq!(execute(&mut session, &LOAD, &[]), GOOD);
    health.is_ok();
}

/// SANITIZE (SBC-3 5.30) with OVERWRITE, of one pass of zeroes.
fn overwrite(session: &mut Session, immed: u8) -> u8 {
    const LIST: [u8; 8] = [1, 0, 0, 4, 0, 0, 0, 0];
    const AUSE: u8 = 0x20;
    let cdb = [
        0x48,
        immed | AUSE | 0x01,
        0,
        0,
        0,
        0,
        0,
        0,
        LIST.len() as u8,
        0,
    ];
    execute(session, &cdb, &LIST)
}

#[test]
fn a_sanitize_is_seen_while_it_runs_and_when_it_has_failed() {
    const IMMED: u8 = 0x80;
    const EXIT_FAILURE_MODE: [u8; 10] = [0x48, 0x1F, 0, 0, 0, 0, 0, 0, 0, 0];
    let (directory, far) = (Directory::new(), Far::new(1));
    let volume = format!(
        "fault = {{ rules = [{{ on = \"write\", fail = \"medium\", times = 1 }}], of = {{ {} }} }}",
        far.volume(PATIENT)
    );
    let (server, health) = serve_volume(directory.path(), &volume);
    let mut session = login(&server);
    assert_eq!(overwrite(&mut session, 0), CHECK_CONDITION);
    let line = health.shows(
        2,
        "a sanitize has failed; sanitize it again, or leave the failure mode",
    );
    assert!(line.starts_with("down: db: "), "{line}");
    assert_eq!(execute(&mut session, &EXIT_FAILURE_MODE, &[]), GOOD);
    health.shows(1, "its last write has failed: ");
    assert_eq!(execute(&mut session, &write_10(0, 1), &[1; 512]), GOOD);
    health.is_ok();
    far.ways[0].stall();
    assert_eq!(overwrite(&mut session, IMMED), GOOD);
    health.shows(2, "a sanitize is running 0 %; it ends by itself");
    far.ways[0].mend();
    health.is_ok();
}

#[test]
fn a_file_system_that_is_full_is_down_and_one_that_fills_up_degraded() {
    let directory = Directory::new();
    let Some(mounted) = Small::mounted(&directory, &["-t", "tmpfs", "-o", "size=40m", "none"])
    else {
        return;
    };
    let small = &mounted.0;
    let volume = "file = { path = \"small/db.img\", size = \"1GiB\", cache = \"write-back\" }";
    let (server, health) = serve_volume(directory.path(), volume);
    let line = health.shows(1, "its file system has ");
    assert!(
        line.contains("its file may still grow by 1023 MiB"),
        "{line}"
    );
    fs::write(small.join("other"), vec![1; 30 << 20]).expect("there is room");
    health.shows(2, "its file system has ");
    fs::remove_file(small.join("other")).expect("ours");
    health.shows(1, "its file system has ");
    let mut grow = Command::new("mount");
    grow.args(["-o", "remount,size=2g"]).arg(small);
    assert!(grow.status().expect("mount").success());
    health.is_ok();
    drop(server);
}

#[test]
fn a_state_directory_in_which_nothing_can_be_kept_is_seen() {
    let directory = Directory::new();
    let Some(small) = Small::mounted(&directory, &["-t", "tmpfs", "-o", "size=4m", "none"]) else {
        return;
    };
    let port = harness::free_port();
    let configuration = format!(
        "state = \"small/state\"\n[volume.db]\nfile = {{ path = \"db.img\", size = \"1MiB\" }}\n{}",
        target_table(port, &["db"])
    );
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let state = small.0.join("state");
    let (_server, health) = (server.answering(&state), Health::of(&state));
    health.is_ok();
    fs::write(small.0.join("hog"), vec![1; 4 << 20]).expect_err("there is no room for all of it");
    let line = health.shows(1, "cannot be kept: its file system has ");
    assert!(line.starts_with("degraded: the state directory "), "{line}");
    fs::remove_file(small.0.join("hog")).expect("ours");
    health.is_ok();
}

#[test]
fn a_disk_that_takes_no_writes_any_more_is_down_although_reads_go_on() {
    let mounted = match Mounted::new("ext4") {
        Ok(mounted) => mounted,
        Err(why) => return harness::skip(&why),
    };
    let mut errors = Command::new("mount");
    errors.args(["-o", "remount,errors=remount-ro"]);
    run(errors.arg(&mounted.place)).expect("it is ours");
    let volume = "file = { path = \"mounted/db.img\", size = \"1MiB\", cache = \"direct-sync\" }";
    let (server, health) = serve_volume(mounted.directory.path(), volume);
    let mut session = login(&server);
    let written = |session: &mut Session| execute(session, &write_10(0, 1), &[1; 512]);
    assert_eq!(written(&mut session), GOOD);
    health.is_ok();
    let found = Command::new("findmnt")
        .args(["-no", "SOURCE"])
        .arg(&mounted.place)
        .output();
    let device = String::from_utf8(found.expect("util-linux").stdout).expect("plain text");
    let device = device.trim().trim_start_matches("/dev/");
    let fail = format!("/sys/fs/ext4/{device}/trigger_fs_error");
    fs::write(fail, "as a test").expect("it turns read-only");
    assert_eq!(written(&mut session), CHECK_CONDITION);
    let line = health.shows(2, "its last write has failed: ");
    assert!(line.starts_with("down: db/file "), "{line}");
    let read = session.execute(&read_10(0, 1), &[], 512);
    assert_eq!(read.expect("a response").0, GOOD);
    health.shows(2, "its last write has failed: ");
}

#[test]
fn an_attached_volume_says_the_same_of_itself() {
    let far = Far::new(1);
    let configuration = format!("[volume.db]\n{}\n", far.volume(PATIENT));
    let attached = Attachment::start(Front::Nbd, &configuration);
    let health = Health::of(&attached.state());
    health.is_ok();
    far.ways[0].break_all();
    health.shows(2, "no session: ");
    far.ways[0].mend();
    health.is_ok();
}

#[test]
fn a_file_that_is_removed_or_replaced_while_it_is_served_is_told_until_it_is_back() {
    let directory = Directory::new();
    let volume = "file = { path = \"db.img\", size = \"1MiB\" }";
    let (_server, health) = serve_volume(directory.path(), volume);
    health.is_ok();
    let (path, aside) = (directory.join("db.img"), directory.join("aside"));
    fs::rename(&path, &aside).expect("ours");
    let line = health.shows(1, "its file was removed, renamed or replaced");
    assert!(line.starts_with("degraded: db"), "{line}");
    fs::write(&path, [0; 512]).expect("a directory of ours");
    health.shows(1, "its file was removed, renamed or replaced");
    fs::rename(&aside, &path).expect("ours");
    health.is_ok();
}
