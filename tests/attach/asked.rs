//! `sanstone show` and `top` look at an attached volume, whatever it is at, and its socket comes and goes with it.

use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use harness::{
    directory::Directory,
    process::{Daemon, program},
    run::Ran,
    sanstone::{binary, call},
};
use serde_json::Value;

use crate::attached::{Attached, LONG, Mounted, can_attach, ran, text};

const THIN: &str = "[volume.db]\nfile = { path = \"db.img\", size = \"64MiB\" }\n";

fn ask(verb: &str, directory: &Directory, more: &[&str]) -> Ran {
    let configuration = directory.join("sanstone.toml");
    call(&[&[verb, "-c", text(&configuration)], more].concat())
}

fn shown(directory: &Directory) -> Value {
    let ran = ask("show", directory, &["--json", "-"]).success();
    serde_json::from_str(&ran.stdout).expect("it is JSON")
}

fn socket(directory: &Directory) -> PathBuf {
    directory.join("sanstone.state/attached/db/admin.sock")
}

fn writable(path: &Path) -> fs::File {
    let file = fs::OpenOptions::new().write(true).open(path);
    file.expect("it is attached")
}

#[test]
fn what_was_asked_of_each_node_is_shown() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let file = writable(&attached.path);
    file.write_all_at(&[1; 8192], 0).expect("a write");
    file.sync_all().expect("a flush");
    drop(file);
    let shown = shown(&attached.directory);
    assert_eq!(shown["attached"]["front"], "fuse");
    assert_eq!(shown["attached"]["place"], text(&attached.path));
    let volume = &shown["volumes"]["db"];
    assert_eq!(volume["uuid"].as_str().map(str::len), Some(36), "{volume}");
    let requests = &volume["tree"]["requests"];
    assert_eq!(requests["write"]["bytes"], 8192, "{volume}");
    assert_eq!(requests["flush"]["requests"], 1, "{volume}");
    // The kernel's requests, by stage; the flush among the others.
    let commands = &volume["commands"];
    assert_eq!(commands["write"]["bytes"], 8192, "{volume}");
    assert_eq!(commands["other"]["commands"], 1, "{volume}");
    let sum_us = |of: &Value| of.as_f64().expect("a sum");
    let stages = &commands["other"]["sum_us"];
    let parts = ["transfer", "queue", "volume", "reply"].map(|stage| sum_us(&stages[stage]));
    let total_us = sum_us(&stages["total"]);
    assert!(
        (parts.iter().sum::<f64>() - total_us).abs() < 1.0,
        "{volume}"
    );
    assert!(sum_us(&requests["flush"]["sum_us"]) > 0.0, "{volume}");
    let ran = ask("show", &attached.directory, &[]).success();
    let line = format!("attached db as the file {}\n", text(&attached.path));
    for part in ["volume db  ", "  file db.img, 64 MiB", "flush", &line] {
        assert!(ran.stdout.contains(part), "no {part:?} in\n{ran}");
    }
    assert!(!ran.stdout.contains("no sessions"), "{ran}");
    attached.stop();
}

#[test]
fn top_tells_what_the_volume_does_now() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let file = writable(&attached.path);
    let is_over = AtomicBool::new(false);
    let ran = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                file.write_all_at(&[1; 4096], 0).expect("a write");
            }
        });
        let ran = ask("top", &attached.directory, &["--json", "-", "--once"]);
        is_over.store(true, Ordering::Relaxed);
        ran.success()
    });
    drop(file);
    let line: Value = serde_json::from_str(&ran.stdout).expect("a line of JSON");
    for rates in [
        &line["total"],
        &line["volumes"]["db"]["kinds"]["write"],
        &line["nodes"]["db/file"]["kinds"]["write"],
        &line["initiators"]["attach"]["all"],
    ] {
        for figure in ["iops", "bytes", "queue", "p99_us"] {
            assert!(rates[figure].as_f64().is_some_and(|it| it > 0.0), "{line}");
        }
    }
    attached.stop();
}

#[test]
fn the_socket_is_its_users_alone_and_goes_with_the_attach() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(THIN);
    let socket = socket(&attached.directory);
    let mode = fs::metadata(&socket)
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    // What a killed one leaves is in nobody's way.
    attached.daemon.signal("KILL");
    attached.daemon.wait(LONG).expect("it ends");
    let ran = ask("show", &attached.directory, &[]);
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.stderr.contains("has exited; start it again"), "{ran}");
    attached.start_again(THIN);
    ask("show", &attached.directory, &[]).success();
    attached.stop();
    assert!(!socket.exists());
    let ran = ask("show", &attached.directory, &[]);
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.stderr.contains("`attach` runs with"), "{ran}");
    // Whoever unmounts the file ends it, too.
    attached.start_again(THIN);
    ran_umount(&attached.path);
    attached.daemon.wait(LONG).expect("it ends");
    assert!(!socket.exists());
}

#[track_caller]
fn ran_umount(path: &Path) {
    ran("umount", "mount", &[text(path)]).success();
}

/// A volume in a cache of this size over a file of that size, and whatever else the configuration says.
fn cached(cache: &str, file: &str, more: &str) -> String {
    format!(
        "[volume.db.cache]\nsize = \"{cache}\"\nof = {{ file = {{ path = \"db.img\", size = \"{file}\" }} }}\n{more}"
    )
}

#[test]
fn another_configuration_is_applied_as_far_as_it_concerns_the_volume() {
    if !can_attach() {
        return;
    }
    let mut attached = Attached::start(&cached("8MiB", "64MiB", ""));
    let other = "[volume.other]\nfile = { path = \"nowhere.img\" }\n";
    let larger = cached("16MiB", "128MiB", other);
    attached.directory.write("sanstone.toml", &larger);
    let len = || fs::metadata(&attached.path).expect("it is attached").len();
    let changes = "~ volume db grows from 64 MiB to 128 MiB\n";
    for (more, end, len_mib) in [
        (
            &["--dry-run"][..],
            "nothing was changed: this was a dry run",
            64,
        ),
        (&[], "applied\n", 128),
        (&[], "nothing changes\n", 128),
    ] {
        let ran = ask("apply", &attached.directory, more).success();
        assert!(ran.stdout.contains(end), "{ran}");
        let is_same = end.starts_with("nothing changes");
        for change in ["~ volume db: its cache's size 8MiB → 16MiB\n", changes] {
            assert_eq!(ran.stdout.contains(change), !is_same, "{ran}");
        }
        while len() != len_mib << 20 {
            thread::sleep(std::time::Duration::from_millis(50));
        }
    }
    let file = writable(&attached.path);
    file.write_all_at(b"beyond what it was", 100 << 20)
        .and_then(|()| file.sync_all())
        .expect("it is as long as it says");
    drop(file);
    let shown = shown(&attached.directory);
    assert_eq!(shown["volumes"]["db"]["tree"]["memory_bytes"], 16 << 20);
    for (text, parts) in [
        (
            larger.replace("db.img", "other.img"),
            [
                "cannot change while it is served",
                "cache.of.file.path \"db.img\" → \"other.img\"",
            ],
        ),
        (
            larger.replace("128MiB", "64MiB"),
            ["do not expect a disk to shrink", "size = \"128MiB\""],
        ),
        (
            larger.replace("volume.db", "volume.wal"),
            ["no volume \"db\", which is attached", "end its `attach`"],
        ),
        (
            format!("lanes = 7\n{larger}"),
            ["lanes: set only at startup", "restart"],
        ),
    ] {
        attached.directory.write("sanstone.toml", text);
        let ran = ask("apply", &attached.directory, &[]);
        assert_eq!(ran.code(), Some(2), "{ran}");
        for part in parts {
            assert!(ran.stderr.contains(part), "no {part:?} in {ran}");
        }
    }
    attached.daemon.signal("HUP");
    let said = "`sanstone apply -c` with this path puts into effect what concerns the volume";
    attached.daemon.log_with(said);
    attached.stop();
}

/// Two processes attach volumes of one configuration, and are told apart.
#[test]
fn two_volumes_of_one_configuration_are_attached_at_the_same_time() {
    if !can_attach() {
        return;
    }
    let files = |size: &str| {
        let file = |name: &str| format!("file = {{ path = \"{name}.img\", size = \"{size}\" }}");
        format!(
            "[volume.db]\nstats = {{ of = \"disk\" }}\n[volume.disk]\n{}\n[volume.wal]\n{}\n",
            file("disk"),
            file("wal")
        )
    };
    let mut db = Attached::start(&files("64MiB"));
    let configuration = db.directory.join("sanstone.toml");
    let path = db.path.with_file_name("wal.disk");
    let wal = |volume: &str| {
        let mut command = Command::new(binary());
        command.args([
            "attach",
            "-c",
            text(&configuration),
            volume,
            "--fuse",
            text(&path),
        ]);
        command
    };
    let mut other = Daemon::start(&wal("wal"), db.directory.join("wal.log"));
    other.log_with(" attached ");
    let _guard = Mounted(path.clone());
    writable(&path)
        .write_all_at(b"wal", 0)
        .expect("it is attached");
    // One of several has to be named.
    let ran = ask("show", &db.directory, &[]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    for part in [
        "several volumes are attached",
        "db, wal",
        "--attached VOLUME",
    ] {
        assert!(ran.stderr.contains(part), "no {part:?} in {ran}");
    }
    let ran = ask("show", &db.directory, &["--attached", "wal"]).success();
    assert!(ran.stdout.contains("attached wal as the file"), "{ran}");
    // How all of them are is one word.
    let ran = ask("status", &db.directory, &[]);
    assert_eq!((ran.code(), &ran.stdout[..]), (Some(0), "ok\n"), "{ran}");
    other.signal("STOP");
    let ran = ask("status", &db.directory, &[]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(
        ran.stdout
            .contains("  down: wal: its process does not answer; "),
        "{ran}"
    );
    other.signal("CONT");
    // What is attached, or part of it, is nobody else's.
    for (volume, held) in [("wal", "wal"), ("disk", "disk")] {
        let elsewhere = db.path.with_file_name("elsewhere");
        let arguments = [
            "attach",
            "-c",
            text(&configuration),
            volume,
            "--fuse",
            text(&elsewhere),
        ];
        let ran = call(&arguments);
        assert_eq!(ran.code(), Some(1), "{ran}");
        let said = format!("volume \"{held}\" is attached by process ");
        assert!(ran.stderr.contains(&said), "{ran}");
    }
    let target = "[target.\"iqn.2026-11.io.sanstone:t\"]\nportals = [\"127.0.0.1:1\"]\nluns = [\"wal\"]\nallow = [\"*\"]\n";
    db.directory
        .write("sanstone.toml", format!("{}{target}", files("64MiB")));
    let ran = call(&["serve", "-c", text(&configuration)]);
    assert_eq!(ran.code(), Some(1), "{ran}");
    // Both take another configuration.
    db.directory.write("sanstone.toml", files("96MiB"));
    let ran = ask("apply", &db.directory, &[]).success();
    for volume in ["disk", "wal"] {
        let grows = format!("~ volume {volume} grows from 64 MiB to 96 MiB\n");
        assert!(ran.stdout.contains(&grows), "{ran}");
    }
    db.stop();
    let ran = ask("show", &db.directory, &[]).success();
    assert!(ran.stdout.contains("attached wal as the file"), "{ran}");
    other.signal("TERM");
    let status = other.wait(LONG).expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", other.log());
    // Neither has forgotten what the other has recorded.
    let records = fs::read_to_string(db.directory.join("sanstone.state/volumes.toml"));
    let records = records.expect("it is there");
    for volume in ["volume = \"db\"", "volume = \"wal\""] {
        assert!(records.contains(volume), "{records}");
    }
    assert_eq!(records.matches("bytes = 100663296").count(), 2, "{records}");
}

#[test]
fn a_mount_that_waits_for_the_volume_is_looked_into() {
    if !can_attach() {
        return;
    }
    let directory = Directory::new();
    let files = directory.join("files");
    fs::create_dir(&files).expect("a directory");
    let hanging = "[volume.db.fault]\nrules = [{ on = \"read\", hang = true }]\n\
                   of = { ram = { size = \"1MiB\" } }\n";
    let attached = Attached::start_in(directory, hanging, &["--mount", text(&files)]);
    // It reads what file system there is, for ever.
    let shown = shown(&attached.directory);
    assert_eq!(shown["attached"]["volume"], "db", "{shown}");
    assert!(!attached.daemon.log().contains(" mounted "));
}

#[test]
fn a_file_system_that_is_still_in_use_at_the_end_is_looked_into() {
    if !can_attach() {
        return;
    }
    let directory = Directory::new();
    let image = directory.sparse("db.img", 64 << 20);
    ran("mkfs.ext4", "e2fsprogs", &["-q", "-F", text(&image)]).success();
    let files = directory.path().canonicalize().expect("it is there");
    let files = files.join("files");
    fs::create_dir(&files).expect("a directory");
    let mut attached = Attached::start_in(directory, THIN, &["--mount", text(&files)]);
    attached.daemon.log_with(" mounted ");
    let _guard = Mounted(files.clone());
    let mut user = Command::new(program("sleep", "coreutils"));
    user.arg("3600").current_dir(&files);
    let mut user = Daemon::start(&user, attached.directory.join("user.log"));
    attached.daemon.signal("TERM");
    attached.daemon.log_with("in use by process");
    assert_eq!(shown(&attached.directory)["attached"]["volume"], "db");
    user.signal("KILL");
    user.wait(LONG).expect("it ends");
    let status = attached.daemon.wait(LONG).expect("it ends");
    assert_eq!(status.code(), Some(0), "{}", attached.daemon.log());
    assert!(!socket(&attached.directory).exists());
}
