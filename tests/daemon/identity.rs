//! A disk's identity belongs to the disk: it survives renames of the configuration, the volume and the file, moves and
//! copies. If it cannot be determined, the start is refused; nothing is guessed.

use harness::directory::Directory;
use harness::process::{Daemon, wait_until_free};
use harness::run::Ran;
use harness::sanstone::{IQN, binary, call, target_table};
use harness::wire::{Session, read_10, write_10};
use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const GOOD: u8 = 0x00;
const DATA: [u8; 512] = [0x5A; 512];

/// What initiators know a disk by: its serial number, and its first designator.
type Names = (Vec<u8>, Vec<u8>);

/// Serves `config`, an existing file, until `look` ends; returns its result and the log.
#[track_caller]
fn serve<T>(config: &Path, port: u16, look: impl FnOnce(&mut Session) -> T) -> (T, String) {
    let mut command = Command::new(binary());
    command.args(["serve", "-c"]).arg(config);
    // The port of the previous daemon.
    wait_until_free((Ipv4Addr::LOCALHOST, port).into());
    let mut daemon = Daemon::start(&command, config.with_extension("log"));
    daemon.wait_for_port(port);
    let address = format!("127.0.0.1:{port}");
    let mut session = Session::login(&address, IQN, 0, 1, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let seen = look(&mut session);
    daemon.signal("TERM");
    let ended = daemon.wait(Duration::from_secs(120)).expect("it ends");
    assert!(ended.success(), "{}", daemon.log());
    (seen, daemon.log())
}

fn names(session: &mut Session) -> Names {
    let mut page = |code| {
        let inquiry = [0x12, 1, code, 1, 0, 0];
        let (status, data) = session.execute(&inquiry, &[], 256).expect("a response");
        assert_eq!(status, GOOD);
        data
    };
    let designators = page(0x83);
    let first = 8 + usize::from(designators[7]);
    (page(0x80), designators[4..first].to_vec())
}

fn write(session: &mut Session) {
    let written = session.execute(&write_10(8, 1), &DATA, 0);
    assert_eq!(written.expect("a response").0, GOOD);
}

fn read(session: &mut Session) -> Vec<u8> {
    let (status, data) = session
        .execute(&read_10(8, 1), &[], 512)
        .expect("a response");
    assert_eq!(status, GOOD);
    data
}

fn run(program: &str, arguments: &[impl AsRef<OsStr>]) {
    let ran = Command::new(program).args(arguments).output();
    let ran = ran.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(ran.status.success(), "{program}: {ran:?}");
}

/// A configuration in its own directory that has been served once.
struct Served {
    directory: Directory,
    port: u16,
    names: Names,
}

impl Served {
    /// `app.toml`, whose volume `db` is `db.img`, or that file by its absolute path.
    fn once(is_absolute: bool) -> Served {
        let directory = Directory::new();
        let port = harness::free_port();
        let path = match is_absolute {
            true => directory.join("db.img"),
            false => "db.img".into(),
        };
        directory.write("app.toml", config(port, "db", &path));
        let (names, _) = serve(&directory.join("app.toml"), port, |session| {
            write(session);
            names(session)
        });
        Served {
            directory,
            port,
            names,
        }
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.directory.join(name)
    }

    /// Checks that the disk is served under the same names, with the data that was written.
    #[track_caller]
    fn is_found_by(&self, config: &Path) -> String {
        let check = call(&["check", "-c", &config.to_string_lossy()]).success();
        let (seen, log) = serve(config, self.port, |session| (names(session), read(session)));
        assert_eq!(seen.0, self.names, "another disk:\n{log}");
        assert_eq!(seen.1, DATA, "another content:\n{log}");
        // A warning of one verb is a note of the other.
        let warned = log.lines().filter(|line| line.contains("WARN")).count();
        let noted = check.stderr.matches("note:").count();
        assert!(noted >= warned, "{log}{check}");
        // Once the disk is known, there is nothing more to report.
        let (again, log) = serve(config, self.port, names);
        assert_eq!(again, self.names);
        assert!(!log.contains("WARN"), "{log}");
        log
    }

    /// Checks that both verbs refuse with a message that has these words, and change nothing.
    #[track_caller]
    fn is_refused_by(&self, config: &Path, parts: &[&str]) -> Ran {
        let mut refused = None;
        for verb in ["check", "serve"] {
            let before = listing(self.directory.path());
            let ran = call(&[verb, "-c", &config.to_string_lossy()]);
            assert_eq!(ran.code(), Some(2), "{verb}: {ran}");
            for part in parts {
                assert!(ran.stderr.contains(part), "{verb}: no {part:?} in\n{ran}");
            }
            assert_eq!(listing(self.directory.path()), before);
            refused = Some(ran);
        }
        refused.expect("two verbs")
    }
}

/// The files below a directory, with their lengths.
fn listing(directory: &Path) -> Vec<(std::path::PathBuf, u64)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).expect("it is there").flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.extend(listing(&path));
        }
        all.push((path, entry.metadata().map_or(0, |file| file.len())));
    }
    all.sort();
    all
}

fn config(port: u16, volume: &str, path: &Path) -> String {
    let target = target_table(port, &[volume]);
    format!("[volume.{volume}]\nfile = {{ path = {path:?}, size = \"4MiB\" }}\n{target}")
}

#[test]
fn a_renamed_configuration_is_refused_until_its_state_follows() {
    let served = Served::once(false);
    let (old, new) = (served.at("app.toml"), served.at("app-prod.toml"));
    fs::rename(&old, &new).expect("it is there");
    let state = served.at("app.state");
    let mend = format!(
        "mv {} {}",
        state.display(),
        served.at("app-prod.state").display()
    );
    served.is_refused_by(&new, &[&mend, "state = \"app.state\""]);

    // An empty mount point under the new name: no blank disk in its place.
    fs::rename(served.at("db.img"), served.at("away")).expect("it is there");
    served.is_refused_by(&new, &["db.img", &mend]);
    fs::rename(served.at("away"), served.at("db.img")).expect("it is there");

    // One remedy, then the other.
    let text = fs::read_to_string(&new).expect("it is there");
    fs::write(&new, format!("state = \"app.state\"\n{text}")).expect("room");
    served.is_found_by(&new);
    fs::write(&new, text).expect("room");
    run("sh", &["-c", &mend]);
    served.is_found_by(&new);
}

#[test]
fn a_renamed_volume_and_a_renamed_file_are_the_same_disk() {
    let served = Served::once(false);
    let file = served.at("app.toml");
    fs::write(&file, config(served.port, "accounts", Path::new("db.img"))).expect("room");
    served.is_found_by(&file);
    fs::rename(served.at("db.img"), served.at("moved.img")).expect("it is there");
    // The file is expected where it was, and not created there anew.
    served.is_refused_by(&file, &["db.img", "served before", "[disk."]);
    fs::write(
        &file,
        config(served.port, "accounts", Path::new("moved.img")),
    )
    .expect("room");
    served.is_found_by(&file);
    // Everything at once.
    fs::rename(served.at("moved.img"), served.at("db.img")).expect("it is there");
    fs::write(&file, config(served.port, "db", Path::new("db.img"))).expect("room");
    let (_, log) = serve(&file, served.port, names);
    let line = log.lines().find(|line| line.contains("as before"));
    let line = line.expect("a line about what changed");
    assert!(
        line.contains("INFO") && line.contains("\"accounts\"") && line.contains("moved.img"),
        "{line}"
    );
}

#[test]
fn a_configuration_in_another_directory_serves_the_same_disk() {
    let served = Served::once(true);
    let elsewhere = Directory::new();
    let moved = elsewhere.join("app.toml");
    // Its state stays behind: the mark identifies the disk, and the message says what is missing.
    fs::rename(served.at("app.toml"), &moved).expect("it is there");
    let log = {
        let (seen, log) = serve(&moved, served.port, names);
        assert_eq!(seen, served.names);
        log
    };
    assert!(
        log.contains("WARN") && log.contains("reservations"),
        "{log}"
    );
    // Its state is moved too.
    fs::remove_dir_all(elsewhere.join("app.state")).expect("it was made");
    run("mv", &[served.at("app.state"), elsewhere.join("app.state")]);
    served.is_found_by(&moved);
}

#[test]
fn a_copy_beside_its_original_is_refused() {
    let served = Served::once(false);
    let file = served.at("app.toml");
    run(
        "cp",
        &[
            OsStr::new("-a"),
            served.at("db.img").as_os_str(),
            served.at("copy.img").as_os_str(),
        ],
    );
    let both = format!(
        "[volume.db]\nfile = {{ path = \"db.img\" }}\n[volume.copy]\nfile = {{ path = \"copy.img\" }}\n{}",
        target_table(served.port, &["db", "copy"])
    );
    fs::write(&file, &both).expect("room");
    served.is_refused_by(
        &file,
        &["db.img", "copy.img", "setfattr -x user.sanstone.disk"],
    );
    // The copy alone, in the original's place.
    fs::write(&file, config(served.port, "db", Path::new("copy.img"))).expect("room");
    served.is_refused_by(
        &file,
        &["db.img", "copy.img", "setfattr -x user.sanstone.disk"],
    );
    // A copy without the mark is a different disk.
    fs::remove_file(served.at("copy.img")).expect("it is there");
    run("cp", &[served.at("db.img"), served.at("copy.img")]);
    fs::write(&file, &both).expect("room");
    let (_, log) = serve(&file, served.port, names);
    let told =
        |log: &str| log.contains("copy.img has no mark") && log.contains("the original keeps");
    assert!(told(&log), "{log}");
    let log = served.is_found_by(&file);
    assert!(!told(&log), "only the first time: {log}");
}

#[test]
fn a_copy_of_everything_keeps_the_identity() {
    for options in ["-a", "-r"] {
        let served = Served::once(false);
        let copy = Directory::new();
        let all = format!("{}/.", served.directory.path().display());
        run(
            "cp",
            &[
                OsStr::new(options),
                OsStr::new(&all),
                copy.path().as_os_str(),
            ],
        );
        let config = copy.join("app.toml");
        if options == "-a" {
            let (seen, log) = serve(&config, served.port, |session| {
                (names(session), read(session))
            });
            assert_eq!(seen, (served.names.clone(), DATA.to_vec()), "{log}");
            assert!(log.contains("WARN"), "the original is still there: {log}");
        } else {
            // Without its mark it could be any file, because the marked one still exists.
            let mend = "setfattr -n user.sanstone.disk";
            served.is_refused_by(&config, &["still exists", "another file", mend]);
        }
        // As on another machine, where there is no original.
        fs::remove_file(served.at("db.img")).expect("it is there");
        served.is_found_by(&config);
    }
}

#[test]
fn a_state_directory_of_an_older_release_is_taken_over() {
    let served = Served::once(false);
    let record = served.at("app.state/volumes.toml");
    let text = fs::read_to_string(&record).expect("the record");
    let uuid = text
        .split("[disk.")
        .nth(1)
        .and_then(|rest| rest.split(']').next());
    let old = format!(
        "version = 1\n\n[volume]\ndb = \"{}\"\n",
        uuid.expect("a disk")
    );
    let copied = served.at("copied");
    run("cp", &[served.at("db.img"), copied.clone()]);
    fs::rename(&copied, served.at("db.img")).expect("it is there");
    fs::write(&record, &old).expect("room");
    served.is_found_by(&served.at("app.toml"));
    let text = fs::read_to_string(&record).expect("the record");
    assert!(
        text.contains("version = 2") && text.contains("marked = true"),
        "{text}"
    );

    // Renamed before it was served again: the state directory knows the name, and its configuration is gone.
    run("cp", &[served.at("db.img"), copied.clone()]);
    fs::rename(&copied, served.at("db.img")).expect("it is there");
    fs::write(&record, &old).expect("room");
    let new = served.at("new.toml");
    fs::rename(served.at("app.toml"), &new).expect("it is there");
    served.is_refused_by(&new, &["app.state", "remove the line of \"db\""]);
}

#[test]
fn a_restored_file_is_the_disk_and_a_new_one_is_not() {
    let served = Served::once(false);
    let config = served.at("app.toml");
    let file = served.at("db.img");
    run("cp", &[file.clone(), served.at("backup")]);
    fs::remove_file(&file).expect("it is there");
    served.directory.sparse("db.img", 4 << 20);
    served.is_refused_by(
        &config,
        &["blank", "setfattr -n user.sanstone.disk", "[disk."],
    );
    run("cp", &[served.at("backup"), file]);
    let (seen, log) = serve(&config, served.port, names);
    assert_eq!(seen, served.names);
    assert!(log.contains("lost its mark"), "{log}");
    served.is_found_by(&config);
}

#[test]
fn a_new_disk_in_place_of_one_that_is_gone_is_told_aloud() {
    let served = Served::once(false);
    let file = served.at("app.toml");
    fs::rename(served.at("db.img"), served.at("moved.img")).expect("it is there");
    let new = config(served.port, "accounts", Path::new("accounts.img"));
    fs::write(&file, new).expect("room");
    let check = call(&["check", "-c", &file.to_string_lossy()]).success();
    let told = |text: &str| text.contains("\"db\"") && text.contains("is gone");
    assert!(told(&check.stderr), "{check}");
    let (seen, log) = serve(&file, served.port, names);
    assert_ne!(seen, served.names);
    let line = log.lines().find(|line| line.contains("WARN"));
    assert!(line.is_some_and(told), "{log}");
    // The remedy from the message.
    fs::write(&file, config(served.port, "db", Path::new("moved.img"))).expect("room");
    served.is_found_by(&file);
}

#[test]
fn a_state_directory_of_another_configuration_is_not_to_be_mended() {
    let served = Served::once(true);
    let (first, second) = (served.at("app.toml"), served.at("second.toml"));
    let of_second = |path: &str| {
        let config = config(served.port, "db", Path::new(path));
        fs::write(&second, format!("state = \"app.state\"\n{config}")).expect("room");
    };
    of_second("second.img");
    let first_shown = first.display().to_string();
    let ran = served.is_refused_by(&second, &[&first_shown, "another state = "]);
    assert!(!ran.stderr.contains("remove the table"), "{ran}");
    // The same disk in another configuration: it is served, with a message.
    of_second("db.img");
    let (seen, log) = serve(&second, served.port, names);
    assert_eq!(seen, served.names);
    let told = |line: &str| line.contains("WARN") && line.contains(&first_shown);
    assert!(log.lines().any(told), "{log}");
    // Once that configuration is gone, the directory belongs to this one.
    fs::remove_file(&first).expect("it is there");
    let (_, log) = serve(&second, served.port, names);
    assert!(!log.contains("WARN"), "{log}");
}

#[test]
fn two_names_of_one_file_and_a_mark_that_is_none_are_told_with_the_mend() {
    let served = Served::once(false);
    let file = served.at("app.toml");
    fs::hard_link(served.at("db.img"), served.at("hard.img")).expect("room");
    std::os::unix::fs::symlink("db.img", served.at("soft.img")).expect("room");
    for link in ["hard.img", "soft.img"] {
        let both = format!(
            "[volume.db]\nfile = {{ path = \"db.img\" }}\n[volume.x]\nfile = {{ path = {link:?} }}\n{}",
            target_table(served.port, &["db", "x"])
        );
        fs::write(&file, both).expect("room");
        let ran = served.is_refused_by(&file, &["db.img are the same file", link]);
        assert_eq!(ran.stderr.lines().count(), 1, "{ran}");
    }
    fs::write(&file, config(served.port, "db", Path::new("db.img"))).expect("room");
    let image = served.at("db.img").display().to_string();
    let mend = format!("`setfattr -x user.sanstone.disk {image}`");
    for mark in ["x".repeat(600), "1\n2".to_owned()] {
        let set = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&image, "user.sanstone.disk", mark.as_bytes(), set).expect("room");
        served.is_refused_by(&file, &[&mend]);
    }
    rustix::fs::removexattr(&image, "user.sanstone.disk").expect("it is there");
    served.is_found_by(&file);
}

#[test]
fn a_stripe_is_told_by_its_superblock() {
    let directory = Directory::new();
    let port = harness::free_port();
    let config = |name: &str, first: &str| {
        format!(
            "[volume.{name}]\ncache = {{ size = \"4MiB\", of = {{ stripe = {{ of = [\n\
             {{ file = {{ path = \"{first}\", size = \"4MiB\" }} }},\n\
             {{ file = {{ path = \"b.img\", size = \"4MiB\" }} }} ] }} }} }}\n{}",
            target_table(port, &[name])
        )
    };
    let file = directory.write("app.toml", config("db", "a.img"));
    call(&["volume", "create", "-c", &file.to_string_lossy(), "db"]).success();
    let (first, _) = serve(&file, port, names);
    // Another name, another file, no state.
    fs::rename(directory.join("a.img"), directory.join("c.img")).expect("it is there");
    let elsewhere = Directory::new();
    run(
        "mv",
        &[directory.join("app.state"), elsewhere.join("state")],
    );
    fs::write(&file, config("accounts", "c.img")).expect("room");
    let (second, _) = serve(&file, port, names);
    assert_eq!(first, second);
}

#[test]
fn a_concat_that_another_state_directory_knows_is_refused_before_it_is_claimed() {
    let directory = Directory::new();
    let port = harness::free_port();
    let child = |name: &str| format!("{{ file = {{ path = \"{name}\", size = \"4MiB\" }} }}");
    let children = ["a.img", "b.img"].map(child).join(", ");
    let table = target_table(port, &["db"]);
    let text = format!("[volume.db]\nconcat = {{ of = [{children}] }}\n{table}");
    let file = directory.write("app.toml", &text);
    call(&["volume", "create", "-c", &file.to_string_lossy(), "db"]).success();
    serve(&file, port, names);
    let record = fs::read_to_string(directory.join("app.state/volumes.toml")).expect("a record");
    assert!(record.contains("kind = \"concat\""), "{record}");
    // Served by a daemon that is then killed: its claim remains.
    let mut command = Command::new(binary());
    command.args(["serve", "-c"]).arg(&file);
    wait_until_free((Ipv4Addr::LOCALHOST, port).into());
    let mut daemon = Daemon::start(&command, directory.join("killed.log"));
    daemon.wait_for_port(port);
    let other = directory.write("other.toml", &text);
    // While it runs, the message says so.
    let verbs = ["check", "serve"];
    for verb in verbs {
        let refused = call(&[verb, "-c", &other.to_string_lossy()]);
        let said = format!("a.img is in use by process {}", daemon.pid());
        assert!(refused.stderr.contains(&said), "{refused}");
    }
    daemon.signal("KILL");
    daemon.wait(Duration::from_secs(120)).expect("it is killed");
    let before = ["a.img", "b.img"].map(|name| fs::read(directory.join(name)).expect("a child"));
    for verb in verbs {
        let refused = call(&[verb, "-c", &other.to_string_lossy()]);
        assert_eq!(refused.code(), Some(2), "{refused}");
        assert!(refused.stderr.contains("app.state"), "{refused}");
    }
    let after = ["a.img", "b.img"].map(|name| fs::read(directory.join(name)).expect("a child"));
    assert!(before == after, "something was written");
}

#[test]
fn a_remote_disk_that_is_served_on_has_one_identity_of_its_own() {
    let (far, near) = (Directory::new(), Directory::new());
    let volumes = "[volume.db]\nfile = { path = \"db.img\", size = \"4MiB\" }\n";
    let mut share = harness::sanstone::Sanstone::serve(far.path(), volumes, &["db"]);
    let address = format!("127.0.0.1:{}", share.port());
    let mut session = Session::login(&address, IQN, 0, 9, &[]).expect("a login");
    session.wait_until_ready().expect("a ready disk");
    let of_share = names(&mut session);

    let (port, url) = (harness::free_port(), share.url(0));
    let config = |name: &str| {
        let iscsi = format!("iscsi = {{ url = \"{url}\", request_timeout = \"5s\" }}");
        let target = target_table(port, &[name]);
        format!(
            "[volume.{name}]\nthrottle = {{ rate = \"1Gbit/s\", of = {{ {iscsi} }} }}\n{target}"
        )
    };
    let file = near.write("app.toml", config("db"));
    let (first, _) = serve(&file, port, names);
    assert!(first.0 != of_share.0 && first.1 != of_share.1);
    fs::write(&file, config("accounts")).expect("room");
    let (second, _) = serve(&file, port, names);
    assert_eq!(first, second, "its volume has another name");
    // Another daemon shows another disk, whose reservations are its own.
    let elsewhere = Directory::new();
    let file = elsewhere.write("app.toml", config("db"));
    let (other, _) = serve(&file, port, names);
    assert!(other.0 != first.0 && other.1 != first.1 && other.0 != of_share.0);
    share.daemon().signal("TERM");
}

/// Serves these volumes read-only, and gives their serial numbers.
fn serials(config: &Path, port: u16, volumes_toml: &str, volumes: &[&str]) -> Vec<Vec<u8>> {
    let luns = volumes.iter();
    let luns = luns.map(|name| format!("{{ volume = \"{name}\", read_only = true }}"));
    let luns: Vec<_> = luns.collect();
    let table =
        target_table(port, &[]).replace("luns = []", &format!("luns = [{}]", luns.join(", ")));
    fs::write(config, format!("{volumes_toml}{table}")).expect("room");
    let look = |_: &mut Session| {
        let serial = |lun: usize| {
            let (address, lun) = (format!("127.0.0.1:{port}"), lun as u8);
            let session = Session::login(&address, IQN, lun, 2 + u16::from(lun), &[]);
            let mut session = session.expect("a login");
            session.wait_until_ready().expect("a ready disk");
            names(&mut session).0
        };
        (0..volumes.len()).map(serial).collect()
    };
    serve(config, port, look).0
}

#[test]
fn volumes_that_nobody_writes_to_may_be_views_of_one_disk() {
    let served = Served::once(false);
    let config = served.at("app.toml");
    // Views whose names sort before and after it.
    let views = |of: &str| {
        let view = |name| format!("[volume.{name}]\nstats = {{ of = \"{of}\" }}\n");
        ["a", "z"].map(view).concat()
    };
    let file = "[volume.db]\nfile = { path = \"db.img\" }\n";
    let volumes = format!("{file}{}", views("db"));
    let first = serials(&config, served.port, &volumes, &["db", "a", "z"]);
    assert_eq!(first[0], served.names.0);
    assert!(first[0] != first[1] && first[1] != first[2] && first[2] != first[0]);
    let second = serials(&config, served.port, &volumes, &["db", "a", "z"]);
    assert_eq!(first, second);

    let stripe = "[volume.two]\nstripe = { of = [\n\
        { file = { path = \"s.img\", size = \"4MiB\" } },\n\
        { file = { path = \"t.img\", size = \"4MiB\" } } ] }\n";
    fs::write(
        &config,
        format!("{stripe}{}", target_table(served.port, &["two"])),
    )
    .expect("room");
    call(&["volume", "create", "-c", &config.to_string_lossy(), "two"]).success();
    let alone = serials(&config, served.port, stripe, &["two"]);
    let volumes = format!("{stripe}{}", views("two"));
    let beside = serials(&config, served.port, &volumes, &["two", "a", "z"]);
    assert_eq!(alone[0], beside[0]);
    // The views keep their names.
    assert_eq!(beside[1..], first[1..]);
}
