//! What an administrator reaches for after the first day: more length for a stripe, space that is set aside, which disk is
//! which, and what programs are told.

use std::{fs, os::unix::fs::MetadataExt, path::Path, process::Command, time::Duration};

use harness::{
    directory::Directory,
    process::Daemon,
    sanstone::{IQN, Sanstone, binary, call, target_table},
    wire::{Direction, Session, write_10},
};
use serde_json::Value;

fn text(path: &Path) -> &str {
    path.to_str().expect("plain text")
}

fn json(arguments: &[&str]) -> Value {
    let ran = call(&[arguments, &["--json", "-"]].concat());
    serde_json::from_str(&ran.stdout).expect("it is JSON")
}

#[test]
fn a_stripe_takes_the_length_of_its_grown_children() {
    let directory = Directory::new();
    let port = harness::free_port();
    for name in ["a", "b"] {
        let file = fs::File::create(directory.join(name)).expect("room");
        file.set_len(9 << 20).expect("room");
    }
    let child = |name| format!("{{ file = {{ path = \"{name}\" }} }}");
    let volumes = format!(
        "[volume.db]\nstripe = {{ of = [{}, {}] }}\n",
        child("a"),
        child("b")
    );
    let configuration = format!("{volumes}{}", target_table(port, &["db"]));
    let file = directory.write("sanstone.toml", &configuration);
    let file = text(&file);
    call(&["volume", "create", "-c", file, "db"]).success();
    let size = |server: Sanstone| {
        let _server = server.answering(&directory.join("sanstone.state"));
        json(&["show", "-c", file])["volumes"]["db"]["tree"]["size_bytes"].clone()
    };
    let serve = || Sanstone::serve_configuration(directory.path(), &configuration, port);
    assert_eq!(size(serve()), 16 << 20);
    for name in ["a", "b"] {
        let file = fs::File::options().write(true).open(directory.join(name));
        file.and_then(|file| file.set_len(21 << 20)).expect("room");
    }
    assert_eq!(size(serve()), 16 << 20, "nobody has said so");
    let grow = &["volume", "grow", "-c", file, "db"];
    {
        let _server = serve().answering(&directory.join("sanstone.state"));
        let ran = call(grow);
        assert_eq!(ran.code(), Some(1), "it is in use: {ran}");
        for part in ["in use by", "`sanstone apply -c"] {
            assert!(ran.stderr.contains(part), "no {part:?} in {ran}");
        }
    }
    let ran = call(grow).success();
    assert!(
        ran.stdout
            .contains("has grown from 16777216 to 41943040 bytes"),
        "{ran}"
    );
    assert_eq!(size(serve()), 40 << 20);
    let ran = call(grow).success();
    assert!(ran.stdout.contains("stays as it is"), "{ran}");
}

#[test]
fn a_stripe_takes_the_length_of_its_disks_while_it_is_served() {
    let directory = Directory::new();
    let port = harness::free_port();
    let configuration = |mib: u64| {
        let child = |name| format!("{{ file = {{ path = \"{name}\", size = \"{mib}MiB\" }} }}");
        let of = ["a", "b"].map(child).join(", ");
        format!(
            "[volume.db]\nstripe = {{ of = [{of}] }}\n{}",
            target_table(port, &["db"])
        )
    };
    let file = directory.write("sanstone.toml", configuration(9));
    let file = text(&file);
    call(&["volume", "create", "-c", file, "db"]).success();
    let server = Sanstone::serve_configuration(directory.path(), &configuration(9), port);
    let _server = server.answering(&directory.join("sanstone.state"));
    let size = || json(&["show", "-c", file])["volumes"]["db"]["tree"]["size_bytes"].clone();
    directory.write("sanstone.toml", configuration(21));
    let dry = call(&["apply", "-c", file, "--dry-run"]).success();
    let grows = "~ volume db: a grows from 9 MiB to 21 MiB\n";
    assert!(dry.stdout.contains(grows), "{dry}");
    assert_eq!(size(), 16 << 20, "it was a dry run");
    let ran = call(&["apply", "-c", file]).success();
    for part in [grows, "~ volume db: its stripe grows from 16 MiB to 40 MiB"] {
        assert!(ran.stdout.contains(part), "no {part:?} in {ran}");
    }
    assert_eq!(size(), 40 << 20);
    let again = call(&["apply", "-c", file]).success();
    assert!(again.stdout.contains("nothing changes"), "{again}");
}

#[test]
fn a_concat_takes_another_child() {
    let directory = Directory::new();
    let port = harness::free_port();
    let configured = |names: &[&str]| {
        let child = |name: &&str| format!("{{ file = {{ path = \"{name}\" }} }}");
        let of: Vec<String> = names.iter().map(child).collect();
        let volumes = format!("[volume.db]\nconcat = {{ of = [{}] }}\n", of.join(", "));
        format!("{volumes}{}", target_table(port, &["db"]))
    };
    for name in ["a", "b", "c"] {
        directory.sparse(name, 9 << 20);
    }
    let file = directory.write("sanstone.toml", configured(&["a", "b"]));
    let file = text(&file);
    call(&["volume", "create", "-c", file, "db"]).success();
    directory.write("sanstone.toml", configured(&["a", "b", "c"]));
    let ran = call(&["serve", "-c", file]);
    assert_eq!(ran.code(), Some(2), "{ran}");
    assert!(
        ran.stderr
            .contains("to add it to a concat `sanstone volume grow`"),
        "{ran}"
    );
    let ran = call(&["volume", "grow", "-c", file, "db"]).success();
    assert!(
        ran.stdout
            .contains("has grown from 16777216 to 25165824 bytes"),
        "{ran}"
    );
    let configuration = configured(&["a", "b", "c"]);
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let _server = server.answering(&directory.join("sanstone.state"));
    let shown = json(&["show", "-c", file]);
    assert_eq!(shown["volumes"]["db"]["tree"]["size_bytes"], 24 << 20);
}

#[test]
fn space_is_set_aside_or_the_daemon_does_not_start() {
    let directory = Directory::new();
    let port = harness::free_port();
    let volume = |size: &str| {
        let volumes = format!(
            "[volume.db]\nfile = {{ path = \"db.img\", size = \"{size}\", preallocate = true }}\n\
             [volume.own]\nfile = {{ path = \"own.img\", preallocate = true }}\n"
        );
        format!("{volumes}{}", target_table(port, &["db", "own"]))
    };
    {
        let own = directory.sparse("own.img", 16 << 20);
        let db = directory.join("db.img");
        let server = Sanstone::serve_configuration(directory.path(), &volume("16MiB"), port);
        let mut server = server.answering(&directory.join("sanstone.state"));
        let allocated = |path| fs::metadata(path).expect("it is there").blocks() * 512;
        let lengthened = |path, len| {
            let file = fs::File::options().write(true).open(path);
            let lengthened = file.and_then(|file| file.set_len(len));
            lengthened.expect("a longer file");
        };
        assert!(allocated(&db) >= 16 << 20, "{}", allocated(&db));
        assert!(allocated(&own) >= 16 << 20, "{}", allocated(&own));
        // When it grows as well, whoever has made the file longer.
        let file = directory.write("sanstone.toml", volume("24MiB"));
        call(&["apply", "-c", text(&file)]).success();
        assert!(allocated(&db) >= 24 << 20, "{}", allocated(&db));
        lengthened(&db, 32 << 20);
        directory.write("sanstone.toml", volume("32MiB"));
        call(&["apply", "-c", text(&file)]).success();
        assert!(allocated(&db) >= 32 << 20, "{}", allocated(&db));
        lengthened(&own, 24 << 20);
        server.daemon().signal("HUP");
        server.daemon().wait_until(|| allocated(&own) >= 24 << 20);
        let told = json(&["apply", "-c", text(&file)]);
        assert_eq!(
            (&told["changes"], &told["dry_run"]),
            (&Value::Array(Vec::new()), &false.into())
        );
    }
    if !rustix::process::geteuid().is_root() {
        return harness::skip("a file system of its own needs root");
    }
    let small = directory.join("small");
    fs::create_dir(&small).expect("a directory of ours");
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "tmpfs", "-o", "size=8m", "none"])
        .arg(&small);
    assert!(mount.status().expect("mount").success());
    let own = "file = { path = \"own.img\", preallocate = true }";
    let full = volume("16MiB").replace("db.img", "small/db.img");
    let full = full.replace(own, "ram = { size = \"1MiB\" }");
    let file = directory.write("full.toml", &full);
    let refused = call(&["check", "-c", text(&file)]);
    let ran = call(&["serve", "-c", text(&file)]);
    let is_left = small.join("db.img").exists();
    let sparse = directory.write("sparse.toml", full.replace(", preallocate = true", ""));
    let checked = call(&["check", "-c", text(&sparse)]);
    let unmounted = Command::new("umount").arg(&small).status();
    assert!(unmounted.expect("umount").success());
    let cannot = "16 MiB are to be set aside (preallocate = true) for ";
    assert!(refused.stderr.contains(cannot), "{refused}");
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(!is_left, "what it has made takes all the space: {ran}");
    assert!(
        ran.stderr.contains("could be set aside; free space there"),
        "{ran}"
    );
    assert!(
        checked
            .stderr
            .contains("db.img may still grow by 16 MiB, and the file system has 8 MiB left"),
        "{checked}"
    );
}

#[test]
fn programs_are_told_which_process_and_which_disk_it_is() {
    let directory = Directory::new();
    let port = harness::free_port();
    let volumes = "[volume.db]\nram = { size = \"16MiB\" }\n";
    let configuration = format!("{volumes}{}", target_table(port, &["db"]));
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let server = server.answering(&directory.join("sanstone.state"));
    let file = directory.join("sanstone.toml");
    let status = json(&["status", "-c", text(&file)]);
    assert_eq!(status["pid"], server.pid());
    assert_eq!(status["health"], "ok");
    assert!(
        status["started_unix_s"]
            .as_u64()
            .is_some_and(|at| at > 1_500_000_000),
        "{status}"
    );
    let disk = &status["volumes"]["db"];
    let uuid = disk["uuid"]
        .as_str()
        .expect("it is served")
        .replace('-', "");
    assert_eq!(disk["serial"], uuid);
    // As an initiator sees it: VPD page 83h.
    let mut session =
        Session::login(&format!("127.0.0.1:{port}"), IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let inquiry = [0x12, 1, 0x83, 0, 252, 0];
    let asked = session.execute(&inquiry, &[], 252).expect("an answer");
    let naa = disk["naa"].as_str().expect("it is served");
    let bytes: Vec<u8> = (0..naa.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&naa[at..at + 2], 16).expect("digits"))
        .collect();
    let seen = format!("{asked:?}");
    let naa_seen = format!("{bytes:?}");
    assert!(
        seen.contains(naa_seen.trim_matches(['[', ']'])),
        "{naa} in {seen}"
    );
    let shown = call(&["show", "-c", text(&file)]).success();
    assert!(
        shown
            .stdout
            .contains(&format!("/dev/disk/by-id/wwn-0x{naa}")),
        "{shown}"
    );
}

#[test]
fn requests_that_hang_have_a_line_in_the_log_and_their_end_as_well() {
    let directory = Directory::new();
    let port = harness::free_port();
    let volumes = "[volume.db]\nfault = { rules = [{ on = \"write\", delay = \"20s\", times = 1 }], \
                   of = { ram = { size = \"16MiB\" } } }\n";
    let configuration = format!("{volumes}{}", target_table(port, &["db"]));
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let mut server = server.answering(&directory.join("sanstone.state"));
    let mut session =
        Session::login(&format!("127.0.0.1:{port}"), IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let task = session.command(&write_10(0, 8), Direction::Write, 4096, &[0x5A; 4096]);
    let task = task.expect("a command");
    let log = server.daemon().log_with("in progress, the oldest for");
    assert!(
        log.contains("1 write in progress") && log.contains("db/fault"),
        "{log}"
    );
    session.responses_to(&[task]).expect("it ends");
    server.daemon().log_with("it is well again");
}

#[test]
fn every_line_of_a_log_in_json_is_an_object() {
    let directory = Directory::new();
    let port = harness::free_port();
    let volumes = "[volume.db]\nram = { size = \"16MiB\" }\n";
    let file = directory.write(
        "sanstone.toml",
        format!("{volumes}{}", target_table(port, &["db"])),
    );
    let mut command = Command::new(binary());
    command
        .args(["--log-format", "json", "serve", "-c"])
        .arg(file);
    let mut daemon = Daemon::start(&command, directory.join("sanstone.log"));
    daemon.wait_for_port(port);
    daemon.signal("TERM");
    daemon.wait(Duration::from_secs(120)).expect("it ends");
    let log = daemon.log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let serving = lines.iter().find(|line| line["message"] == "serving");
    let serving = serving.expect("it has served");
    assert_eq!(serving["portal"], format!("127.0.0.1:{port}"));
    assert_eq!(
        (&serving["level"], &serving["part"]),
        (&"INFO".into(), &"sanstone".into())
    );
    // What the command says of its configuration.
    let note = |line: &Value| {
        line["message"]
            .as_str()
            .is_some_and(|text| text.contains("is in memory"))
    };
    assert!(lines.iter().any(note), "{log}");
}

#[test]
fn help_says_what_exit_codes_mean() {
    let ran = call(&["--help"]).success();
    assert!(
        ran.stdout
            .contains("Exit codes: 0 done, 1 it failed, 2 the call"),
        "{ran}"
    );
}

#[test]
fn programs_are_told_what_is_wrong_with_a_configuration_and_who_logs_in_where() {
    let directory = Directory::new();
    let disk = "[volume.db.iscsi]\nurl = \"iscsi://10.0.0.1/iqn.x:y/0\"\n";
    let common = "[initiator]\nname = \"iqn.2026-11.example:host\"\n";
    for (text, code, errors) in [
        (format!("{common}{disk}"), 0, 0),
        (
            format!("{common}{disk}policy = \"best\"\nlanes = 0\n"),
            2,
            2,
        ),
    ] {
        let path = directory.write("sanstone.toml", text);
        let path = path.to_str().expect("plain text");
        let ran = call(&["check", "-c", path, "--json", "-"]);
        assert_eq!(ran.code(), Some(code), "{ran}");
        let told: Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
        assert_eq!(told["valid"], code == 0, "{told}");
        let said = told["errors"].as_array().expect("a list");
        assert_eq!(said.len(), errors, "{told}");
        let notes = told["notes"].to_string();
        assert!(code != 0 || notes.contains("there is no target"), "{told}");
        let login = "volume db: iscsi://10.0.0.1:3260/iqn.x:y/0 as iqn.2026-11.example:host, by 10.0.0.1:3260";
        let logins = told["logins"].to_string();
        assert_eq!(logins.contains(login), code == 0, "{told}");
        if code == 0 {
            let ran = call(&["check", "-c", path]).success();
            assert!(ran.stdout.contains(login), "{ran}");
        }
    }
}

#[test]
fn a_disk_says_what_it_is_while_it_is_used() {
    let directory = Directory::new();
    let child = |name: &str| format!("{{ file = {{ path = \"{name}.img\", size = \"16MiB\" }} }}");
    let volumes = format!(
        "[volume.db]\nstripe = {{ unit = \"64KiB\", of = [{}, {}] }}\n",
        child("a"),
        child("b")
    );
    let port = harness::free_port();
    let configuration = format!("{volumes}{}", target_table(port, &["db"]));
    let file = directory.write("sanstone.toml", &configuration);
    call(&["volume", "create", "-c", text(&file), "db"]).success();
    let path = directory.join("b.img");
    let before = call(&["volume", "inspect", text(&path)]).success();
    assert!(
        before.stdout.contains("child 1 of 2 of the stripe "),
        "{before}"
    );
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let ran = call(&["volume", "inspect", text(&path)]).success();
    assert!(
        ran.stdout.contains("claimed by sanstone serve -c "),
        "{ran}"
    );
    let told = json(&["volume", "inspect", text(&path)]);
    assert_eq!(
        (&told["set"]["child"], &told["set"]["unit_bytes"]),
        (&1.into(), &65536.into())
    );
    assert!(told["owner"]["generation"].as_u64() >= Some(1), "{told}");
    // Over the network it is an empty disk.
    let ran = call(&["volume", "inspect", &server.url(0)]).success();
    assert!(ran.stdout.contains("its first MiB is blank"), "{ran}");
    let short = directory.write("short", "too short for a label");
    let ran = call(&["volume", "inspect", text(&short)]).success();
    assert!(ran.stdout.contains("holds nothing that is known"), "{ran}");
    let mut mkfifo = Command::new("mkfifo");
    let pipe = directory.join("pipe");
    assert!(mkfifo.arg(&pipe).status().expect("mkfifo").success());
    for no_disk in [&*pipe, Path::new("/dev/null"), directory.path()] {
        let ran = call(&["volume", "inspect", text(no_disk)]);
        assert_eq!(ran.code(), Some(1), "{ran}");
        assert!(ran.stderr.contains("neither a file nor a block"), "{ran}");
    }
    let ran = call(&["volume", "inspect", text(&directory.join("nowhere"))]);
    assert_eq!(ran.code(), Some(1), "{ran}");
    assert!(ran.stderr.contains("nowhere"), "{ran}");
}
