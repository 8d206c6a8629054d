//! The file under a disk disappears: no initiator may see a blank disk or zeroes in place of its data.

use harness::directory::Directory;
use harness::run::Ran;
use harness::sanstone::{IQN, Sanstone, call};
use harness::wire::{Session, read_10, write_10};
use std::time::Duration;

const FILE: &str = "[volume.db]\nfile = { path = \"db.img\", size = \"16MiB\" }\n";
const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;

fn login(server: &Sanstone) -> Session {
    let address = format!("127.0.0.1:{}", server.port());
    let mut session = Session::login(&address, IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    session
}

fn stop(mut server: Sanstone) -> String {
    server.daemon().signal("TERM");
    let ended = server.daemon().wait(Duration::from_secs(120));
    assert!(
        ended.expect("it ends").success(),
        "{}",
        server.daemon().log()
    );
    server.daemon().log()
}

/// Calls `sanstone VERB` with the configuration that was served from there.
fn again(verb: &str, directory: &Directory) -> Ran {
    let file = directory.join("sanstone.toml");
    call(&[verb, "-c", &file.to_string_lossy()])
}

/// Both verbs must refuse the state of this file, say how to fix it, and change nothing.
#[track_caller]
fn refused(directory: &Directory, name: &str, is_there: bool) {
    for verb in ["check", "serve"] {
        let ran = again(verb, directory);
        assert_eq!(ran.code(), Some(2), "{ran}");
        let record = directory.join("sanstone.state/volumes.toml");
        for part in [name, "has been served before", &*record.to_string_lossy()] {
            assert!(ran.stderr.contains(part), "no {part:?} in\n{ran}");
        }
        let len = std::fs::metadata(directory.join(name)).map(|file| file.len());
        assert_eq!(len.ok(), is_there.then_some(0), "{name} was made anew");
    }
}

#[test]
fn a_file_that_was_served_is_not_made_anew() {
    let directory = Directory::new();
    let log = stop(Sanstone::serve(directory.path(), FILE, &["db"]));
    let line = log.lines().find(|line| line.contains("blank file"));
    let line = line.expect("a file that is made is logged");
    assert!(
        line.contains("db.img") && line.contains("16777216"),
        "{line}"
    );

    let file = directory.join("db.img");
    std::fs::remove_file(&file).expect("it was made");
    refused(&directory, "db.img", false);
    std::fs::write(&file, "").expect("an empty file");
    refused(&directory, "db.img", true);

    // The remedy in the message: another disk, under another name.
    let record = directory.join("sanstone.state/volumes.toml");
    let before = std::fs::read_to_string(&record).expect("the record");
    let (rest, table) = before.split_once("[disk.").expect("one disk");
    assert!(table.contains("volume = \"db\""), "{before}");
    std::fs::write(&record, rest).expect("written");
    again("check", &directory).success();
    let log = stop(Sanstone::serve(directory.path(), FILE, &["db"]));
    assert!(log.contains("blank file"), "{log}");
    let after = std::fs::read_to_string(&record).expect("the record");
    assert!(after.contains("\"db\"") && after != before, "{after}");
}

#[test]
fn a_child_of_a_stripe_that_was_served_is_not_made_anew() {
    let directory = Directory::new();
    let volumes = "[volume.half]\nfile = { path = \"b.img\", size = \"16MiB\" }\n\
        [volume.db]\nstripe = { of = [{ file = { path = \"a.img\", size = \"16MiB\" } }, \"half\"] }\n";
    let file = directory.write("sanstone.toml", volumes);
    call(&["volume", "create", "-c", &file.to_string_lossy(), "db"]).success();
    for name in ["a.img", "b.img"] {
        stop(Sanstone::serve(directory.path(), volumes, &["db"]));
        let (there, away) = (directory.join(name), directory.join("away"));
        std::fs::rename(&there, &away).expect("it was made");
        refused(&directory, name, false);
        std::fs::rename(&away, &there).expect("it is restored");
    }
    stop(Sanstone::serve(directory.path(), volumes, &["db"]));
}

#[test]
fn a_file_cut_short_while_it_is_served_reads_as_an_error() {
    for cache in ["direct", "write-back"] {
        let directory = Directory::new();
        let volume = format!(
            "[volume.db]\nfile = {{ path = \"db.img\", size = \"16MiB\", cache = \"{cache}\" }}\n"
        );
        let mut server = Sanstone::serve(directory.path(), &volume, &["db"]);
        let mut session = login(&server);
        let written = session.execute(&write_10(4096, 8), &[0x5A; 4096], 0);
        assert_eq!(written.expect("a response").0, GOOD);
        let file = std::fs::File::options()
            .write(true)
            .open(directory.join("db.img"));
        file.and_then(|file| file.set_len(1 << 20))
            .expect("it is cut");
        // Beyond the end, and across it.
        for lba in [4096, 2044] {
            let read = session.execute(&read_10(lba, 8), &[], 4096);
            assert_eq!(
                read.expect("a response").0,
                CHECK_CONDITION,
                "{cache} {lba}"
            );
        }
        // QEMU asks for this first, and does not read what is reported as a hole.
        let mut status = [0; 16];
        (status[0], status[1], status[8], status[13]) = (0x9E, 0x12, 16, 24);
        let status = session.execute(&status, &[], 24);
        assert_eq!(status.expect("a response").0, CHECK_CONDITION, "{cache}");
        let before = session.execute(&read_10(2040, 8), &[], 4096);
        assert_eq!(before.expect("a response").0, GOOD);
        let log = server.daemon().log_with("ERROR");
        let line = log.lines().find(|line| line.contains("ERROR"));
        assert!(line.is_some_and(|line| line.contains("db.img")), "{log}");
    }
}

#[test]
fn a_file_that_is_removed_or_replaced_while_it_is_served_is_an_error_in_the_log() {
    for replaced in [false, true] {
        let directory = Directory::new();
        let mut server = Sanstone::serve(directory.path(), FILE, &["db"]);
        server.daemon().signal("HUP");
        server
            .daemon()
            .log_with("no file or remote disk has changed");
        assert!(!server.daemon().log().contains("ERROR"));
        let file = directory.join("db.img");
        std::fs::remove_file(&file).expect("it was made");
        if replaced {
            directory.sparse("db.img", 16 << 20);
        }
        server.daemon().signal("HUP");
        let log = server.daemon().log_with("ERROR");
        assert!(log.contains("db.img was removed, renamed or"), "{log}");
        let log = stop(server);
        assert_eq!(log.matches("db.img was removed").count(), 2, "{log}");
    }
}

#[test]
fn a_write_beyond_the_limit_on_file_sizes_fails_and_the_daemon_serves_on() {
    let directory = Directory::new();
    let mut server = Sanstone::serve(directory.path(), FILE, &["db"]);
    let mut session = login(&server);
    // Like a shell's `ulimit -f 1024`.
    let limited = std::process::Command::new("prlimit")
        .args(["--fsize=1048576", "--pid", &server.pid().to_string()])
        .status();
    assert!(limited.expect("prlimit").success());
    for _ in 0..2 {
        let written = session.execute(&write_10(4096, 8), &[0x5A; 4096], 0);
        assert_eq!(written.expect("a response").0, CHECK_CONDITION);
    }
    let written = session.execute(&write_10(8, 8), &[0x5A; 4096], 0);
    assert_eq!(written.expect("a response").0, GOOD);
    server.daemon().log_with("ulimit -f");
    stop(server);
}

#[test]
fn a_file_longer_than_its_size_is_logged() {
    for (len, is_logged) in [(17 << 20, true), (16 << 20, false)] {
        let directory = Directory::new();
        directory.sparse("db.img", len);
        let log = stop(Sanstone::serve(directory.path(), FILE, &["db"]));
        let line = log
            .lines()
            .find(|line| line.contains("the rest is not served"));
        let names_it =
            line.is_some_and(|line| line.contains("db.img") && line.contains("16777216"));
        assert_eq!(names_it, is_logged, "{log}");
    }
}
