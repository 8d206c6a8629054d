//! Volumes and paths that cannot be attached: each refusal gives the reason and changes nothing.

use std::fs;

use harness::directory::Directory;
use harness::run::Ran;
use harness::sanstone::call;

use crate::attached::{Attached, can_attach, is_mounted, overwrite, text};

const TWO: &str =
    "[volume.db]\nram = { size = \"1MiB\" }\n[volume.other]\nram = { size = \"1MiB\" }\n";

#[track_caller]
fn refused(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.code(), Some(code), "{ran}");
    for word in words {
        assert!(ran.stderr.contains(word), "no {word:?}\n{ran}");
    }
}

#[test]
fn two_attaches_do_not_share_a_path() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(TWO);
    let other = Directory::new();
    let config = other.write("other.toml", TWO);
    let second = call(&[
        "attach",
        "-c",
        text(&config),
        "other",
        "--fuse",
        text(&attached.path),
    ]);
    refused(
        &second,
        1,
        &[text(&attached.path), "already attached", "stop it"],
    );
    overwrite(&attached.path, b"still served").expect("a write");
    // Nor a volume.
    let config = attached.directory.join("sanstone.toml");
    let elsewhere = other.join("disk");
    let arguments = [
        "attach",
        "-c",
        text(&config),
        "db",
        "--fuse",
        text(&elsewhere),
    ];
    let said = format!(
        "volume \"db\" is attached by process {}",
        attached.daemon.pid()
    );
    refused(&call(&arguments), 1, &[&said]);
    assert!(!elsewhere.exists(), "what was made for nothing is gone");
    attached.stop();
}

#[test]
fn a_path_that_is_no_empty_file_is_left_alone() {
    let directory = Directory::new();
    let config = directory.write("s.toml", TWO);
    let data = directory.write("data", "precious");
    let attach = |path: &str| call(&["attach", "-c", text(&config), "db", "--fuse", path]);
    refused(
        &attach(text(&data)),
        1,
        &["data is not empty", "name an empty file"],
    );
    assert_eq!(fs::read(&data).expect("it is there"), b"precious");
    refused(&attach(text(directory.path())), 1, &["not a regular file"]);
    refused(
        &attach("/dev/null"),
        1,
        &["/dev/null is not a regular file"],
    );
    let nowhere = directory.join("no/where");
    refused(&attach(text(&nowhere)), 1, &["create the directory first"]);
    assert!(!is_mounted(&data));
    assert!(!directory.join("s.state").exists(), "nothing was opened");
}

#[test]
fn a_call_that_is_wrong_says_how_it_is_right() {
    let directory = Directory::new();
    let config = directory.write("s.toml", TWO);
    let config = text(&config);
    let path = directory.join("disk");
    let unknown = call(&["attach", "-c", config, "dB", "--fuse", text(&path)]);
    refused(&unknown, 2, &["no volume called \"dB\"", "db, other"]);
    assert!(!path.exists(), "what was made for nothing is gone");
    let nowhere = call(&["attach", "-c", config, "db"]);
    refused(&nowhere, 2, &["--fuse <PATH>"]);
    let help = call(&["help", "attach"]);
    assert_eq!(help.code(), Some(0), "{help}");
    for word in ["SIGTERM", "SIGHUP", "--fuse <PATH>", "--read-only"] {
        assert!(help.stdout.contains(word), "no {word:?}\n{help}");
    }
}
