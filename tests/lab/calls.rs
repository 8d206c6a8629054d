//! Invalid calls end with code 2 and say what to write, and user data is never overwritten.

use std::{fs, os::unix::net::UnixListener, process::Command};

use harness::{directory::Directory, noise, sanstone::call};

use crate::{Place, assert_gone};

#[track_caller]
fn refused(arguments: &[&str], part: &str) {
    let place = Place::new();
    let ran = place.run(arguments);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains(part), "{ran}");
}

#[test]
fn a_wrong_call_is_refused_with_what_to_write() {
    refused(&["run", "queue"], "--on with a file");
    refused(
        &["run", "quue", "--on", "./f"],
        "queue, iozone, effectiveness, commit",
    );
    refused(
        &["run", "queue", "--on", "iscsi://127.0.0.1"],
        "names no target",
    );
    refused(
        &["run", "queue", "--on", "./f", "--pid", "999999999"],
        "no such process",
    );
    refused(&["run", "queue", "--on", "./f", "--with", "bonnie"], "fio");
    let compare = [
        "compare",
        "./a",
        "./b",
        "--profile",
        "queue",
        "--pairs",
        "3",
    ];
    refused(&compare, "write 6 or more");
    for other in ["./a", "././a"] {
        refused(
            &["compare", "./a", other, "--profile", "queue"],
            "are the same",
        );
    }
    refused(
        &["run", "queue", "--on", "./a", "--on", "././a"],
        "are the same",
    );
    refused(&["run", "queue", "--on", "."], "this is a directory");
    refused(
        &["run", "queue", "--on", ""],
        "--on '': this is empty; write the name of a volume,",
    );
    refused(
        &["run", "queue", "--on", "/dev/null"],
        "--on /dev/null: this is a character device; write",
    );
    refused(
        &["history", "nope.json"],
        "nope.json: No such file or directory (os error 2); name the JSON files of runs",
    );
    let nowhere = ["run", "queue", "--on", "/nowhere/there.img"];
    let place = Place::new();
    let ran = place.run(&nowhere);
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.stderr.contains("/nowhere/there.img"), "{ran}");
}

#[test]
fn a_pipe_and_a_socket_are_no_disks() {
    let directory = Directory::new();
    let (pipe, socket) = (directory.join("pipe"), directory.join("socket"));
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("coreutils has it").success());
    let _listener = UnixListener::bind(&socket).expect("a fresh directory");
    for (path, kind) in [(pipe, "a pipe"), (socket, "a socket")] {
        let path = path.to_string_lossy();
        let told =
            format!("--on {path}: this is {kind}; write the name of a volume, the path of a file");
        // One that only reads, one that writes, and one that needs a file system.
        for profile in ["queue", "commit", "sql-mariadb"] {
            refused(&["run", profile, "--quick", "--on", &path], &told);
        }
        refused(&["compare", "./a", &path, "--profile", "queue"], &told);
        assert_gone("./a");
    }
}

#[test]
fn what_fio_writes_is_not_verified() {
    let place = Place::new();
    let printed = call(&["lab", "profiles", "iozone"]).success().stdout;
    let profile = printed.replace("verify = false", "verify = true");
    let profile = place.directory.write("verified.toml", profile);
    let (profile, file) = (profile.to_string_lossy(), place.path("made.img"));
    for call in [
        &["run", &*profile, "--on", &file, "--with", "fio"][..],
        &["compare", &file, "--with", "fio", "--profile", &profile],
    ] {
        let ran = place.run(call);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains("write verify = false"), "{ran}");
        assert_gone(&file);
    }
}

#[test]
fn a_volume_that_is_not_there_is_named_with_those_that_are() {
    let place = Place::new();
    let configuration = place.configuration();
    // Those that open volumes, and those that need a file system.
    for profile in ["queue", "commit", "sql-mariadb", "oltp"] {
        let ran = place.run(&["run", profile, "-c", &configuration, "--on", "dba"]);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains("db, fast, slow"), "{ran}");
        assert_gone("dba");
    }
    let compare = [
        "compare",
        "db",
        "dba",
        "--profile",
        "queue",
        "-c",
        &configuration,
    ];
    let ran = place.run(&compare);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(ran.stderr.contains("db, fast, slow"), "{ran}");
    let ran = place.run(&["run", "queue", "-c", &configuration]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(
        ran.stderr.contains("--on with one of db, fast, slow"),
        "{ran}"
    );
}

#[test]
fn data_is_not_written_over_unless_it_may_be_lost() {
    let place = Place::new();
    let data = noise(2, 64 << 20);
    let file = place.directory.write("data.img", &data);
    let shown = file.to_string_lossy();
    for profile in ["iozone", "effectiveness"] {
        let ran = place.run(&["run", profile, "--on", &shown, "--quick"]);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(
            ran.stderr.contains("holds data") && ran.stderr.contains("--overwrite"),
            "{ran}"
        );
    }
    assert!(
        fs::read(&file).expect("it is there") == data,
        "the file was changed"
    );
    let overwrite = [
        "run",
        "effectiveness",
        "--on",
        &shown,
        "--quick",
        "--overwrite",
    ];
    place.run(&overwrite).success();
    assert!(
        fs::read(&file).expect("it is there") != data,
        "nothing was written"
    );
    // What a run leaves behind does not count as user data.
    place
        .run(&["run", "effectiveness", "--on", &shown, "--quick"])
        .success();
}

#[test]
fn nothing_is_written_to_a_disk_before_all_are_found_fit() {
    let place = Place::new();
    let data = noise(4, 2 << 20);
    let file = place.directory.write("data.img", &data);
    let shown = file.to_string_lossy();
    let small = "kind = \"sql-scan\"\nabout = \"A scan\"\nrows = 100000\npages = [\"64KiB\"]\ncaches = [\"0B\"]\nmemory \
                 = \"1MiB\"\ntime = \"1h\"\nstatements = [ { name = \"failed-drives\", runs = 1 } ]\n";
    let small = place.directory.write("small.toml", small);
    for (call, part) in [
        (
            &[
                "compare",
                &shown,
                "/nowhere/b.img",
                "--profile",
                "effectiveness",
            ][..],
            "/nowhere/b.img",
        ),
        (
            &[
                "run",
                "effectiveness",
                "--on",
                &shown,
                "--on",
                "/nowhere/b.img",
            ],
            "/nowhere/b.img",
        ),
        (
            &["run", &small.to_string_lossy(), "--on", &shown],
            "name a larger disk",
        ),
    ] {
        let ran = place.run(&[call, &["--overwrite"]].concat());
        assert!(ran.code().is_some_and(|code| code > 0), "{ran}");
        assert!(ran.stderr.contains(part), "{ran}");
        let now = fs::read(&file).expect("it is there");
        assert!(now == data, "the file was changed: {ran}");
    }
}

#[test]
fn a_file_created_behind_a_dangling_link_is_removed_and_the_link_stays() {
    let place = Place::new();
    let (file, link) = (place.path("there.img"), place.path("link"));
    std::os::unix::fs::symlink("there.img", &link).expect("room");
    let run = ["run", "commit", "--quick", "--on", &link];
    place.run(&run).success();
    assert_gone(&file);
    assert!(fs::symlink_metadata(&link).is_ok(), "the link is gone");
}

#[test]
fn nothing_is_written_over_by_what_is_found_out() {
    let place = Place::new();
    let data = noise(3, 1 << 20);
    let file = place.directory.write("data.img", &data);
    let notes = place.directory.write("notes.md", "# Notes\n");
    let on = file.to_string_lossy().into_owned();
    let detour = place.path("./data.img");
    let notes_at = notes.to_string_lossy().into_owned();
    let new = place.path("new.img");
    for (measured, output, part) in [
        (&on, &detour, "would overwrite what is measured"),
        (&new, &new, "would overwrite what is measured"),
        (&on, &notes_at, "neither a report nor JSON"),
    ] {
        for option in ["--json", "--report"] {
            let ran = call(&[
                "lab", "run", "queue", "--quick", "--on", measured, option, output,
            ]);
            assert_eq!(ran.code(), Some(2), "{ran}");
            assert!(ran.stderr.contains(part), "{ran}");
        }
    }
    let compare = [
        "lab",
        "compare",
        &new,
        &on,
        "--profile",
        "queue",
        "--json",
        &on,
    ];
    let ran = call(&compare);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(
        ran.stderr.contains("would overwrite what is measured"),
        "{ran}"
    );
    assert!(fs::read(&file).expect("it is there") == data);
    assert_eq!(
        fs::read_to_string(&notes).expect("it is there"),
        "# Notes\n"
    );
    assert!(!fs::exists(&new).expect("its directory is there"));
}
