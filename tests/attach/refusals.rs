//! Volumes and paths that cannot be attached: each refusal gives the reason and changes nothing.

use std::fs;

use harness::directory::Directory;
use harness::run::Ran;
use harness::sanstone::{Sanstone, call};

use crate::attached::{Attached, can_attach, is_mounted, overwrite, ran, text};

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

/// Two attachments with one state directory are one owner: what the first has claimed is not what a dead one has left.
#[test]
fn what_one_attach_has_claimed_another_volume_over_the_same_disks_does_not_get() {
    if !can_attach() {
        return;
    }
    let storage = Directory::new();
    let file = |name: &str| {
        let how = "size = \"64MiB\", cache = \"direct-sync\"";
        format!("[volume.{name}]\nfile = {{ path = \"{name}.img\", {how} }}\n")
    };
    let names = ["a", "b", "c", "d", "e"];
    let files = names.map(file).concat();
    let storage = Sanstone::serve(storage.path(), &files, &names).owning(storage);
    let remote = |lun| format!("{{ iscsi = {{ url = \"{}\" }} }}", storage.url(lun));
    let set = |kind, first| {
        format!(
            "{kind} = {{ of = [ {}, {} ] }}",
            remote(first),
            remote(first + 1)
        )
    };
    let plain = format!("iscsi = {{ url = \"{}\" }}", storage.url(4));
    for (set, is_labelled) in [
        (set("mirror", 0), true),
        (set("stripe", 2), true),
        (plain, false),
    ] {
        // By another name, so that only what is on the disks tells that they are the same.
        let renamed = set.replace("127.0.0.1", "localhost");
        let other = match is_labelled {
            true => format!("cache = {{ size = \"8MiB\", of = {{ {renamed} }} }}"),
            false => renamed,
        };
        let volumes =
            format!("[volume.db]\n{set}\n[volume.again]\n{set}\n[volume.other]\n{other}\n");
        let directory = Directory::new();
        let config = directory.write("sanstone.toml", &volumes);
        let create = ["volume", "create", "--force", "-c", text(&config), "db"];
        if is_labelled {
            call(&create).success();
        }
        let mut first = Attached::start_in(directory, &volumes, &[]);
        overwrite(&first.path, b"the first").expect("a write");
        let elsewhere = first.directory.join("elsewhere");
        let process = format!("process {}", first.daemon.pid());
        for other in ["again", "other"] {
            let place = [other, "--fuse", text(&elsewhere)];
            let second = [&["attach", "-c", text(&config)], &place[..]].concat();
            refused(&call(&second), 1, &[&process]);
        }
        overwrite(&first.path, b"goes on").expect("a write");
        let log = first.daemon.log();
        assert!(!log.contains("session lost"), "they disturb it: {log}");
        // What it has left, another one takes over.
        first.daemon.signal("KILL");
        first.daemon.wait(crate::attached::LONG).expect("it ends");
        first.start_again(&volumes);
        first.stop();
        let claims = first.directory.join("sanstone.state/claims");
        let left = fs::read_dir(claims).expect("it is there").count();
        assert_eq!(left, 0, "a claim that does not stand is shown");
    }
}

#[test]
fn two_attaches_do_not_share_a_directory() {
    if !can_attach() {
        return;
    }
    let directory = Directory::new();
    for name in ["db.img", "wal.img"] {
        let image = directory.sparse(name, 64 << 20);
        ran("mkfs.ext4", "e2fsprogs", &["-q", "-F", text(&image)]).success();
    }
    let files = directory.path().canonicalize().expect("it is there");
    let files = files.join("files");
    fs::create_dir(&files).expect("a directory");
    let file = |name: &str| {
        format!("[volume.{name}]\nfile = {{ path = \"{name}.img\", size = \"64MiB\" }}\n")
    };
    let volumes = format!("{}{}", file("db"), file("wal"));
    let mut first = Attached::start_in(directory, &volumes, &["--mount", text(&files)]);
    first.daemon.log_with(" mounted ");
    // Nothing is mounted any more, but it is the first one's still.
    ran("umount", "mount", &[text(&files)]).success();
    let config = first.directory.join("sanstone.toml");
    let elsewhere = first.directory.join("elsewhere");
    let place = ["wal", "--fuse", text(&elsewhere), "--mount", text(&files)];
    let second = [&["attach", "-c", text(&config)], &place[..]].concat();
    let said = "another `sanstone attach` mounts its file system on";
    refused(&call(&second), 1, &[said, text(&files)]);
    first.stop();
}
