//! What `status`, `show` and `top` say of several disks together: the fence and the claim of a stripe, and the copies of a
//! mirror. Each trouble is brought about, seen, and seen to end.

use std::time::Duration;

use harness::{
    attachment::{Attachment, Front},
    directory::Directory,
    foreign::ForeignTarget,
    forwarder::Forwarder,
    health::Health,
    run::Ran,
    sanstone::{IQN, Sanstone, call, target_table},
    wire::{Direction, Session, read_10, write_10},
};

const GOOD: u8 = 0x00;
const LIMIT: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;

/// A host with a volume called `db` in its configuration.
struct Host {
    directory: Directory,
    port: u16,
}

impl Host {
    fn new(volume: &str) -> Host {
        let (directory, port) = (Directory::new(), harness::free_port());
        let host = Host { directory, port };
        host.configure(volume);
        host
    }

    /// From now on this is its volume.
    fn configure(&self, volume: &str) {
        let target = target_table(self.port, &["db"]);
        let text = format!("[volume.db]\n{volume}\n{target}");
        self.directory.write("sanstone.toml", text);
    }

    fn volume(&self, command: &[&str]) -> Ran {
        let file = self.directory.join("sanstone.toml");
        let file = file.to_str().expect("plain text");
        call(
            &[
                &["volume"],
                &command[..1],
                &["-c", file, "db"],
                &command[1..],
            ]
            .concat(),
        )
    }

    fn apply(&self) -> Ran {
        let file = self.directory.join("sanstone.toml");
        call(&["apply", "-c", file.to_str().expect("plain text")])
    }

    fn serve(&self) -> (Sanstone, Health) {
        let file = self.directory.join("sanstone.toml");
        let text = std::fs::read_to_string(file).expect("it was written");
        let server = Sanstone::serve_configuration(self.directory.path(), &text, self.port);
        let state = self.directory.join("sanstone.state");
        (server.answering(&state), Health::of(&state))
    }

    fn login(&self) -> Session {
        let portal = format!("127.0.0.1:{}", self.port);
        let mut session = Session::login(&portal, IQN, 0, 1, &[]).expect("a login");
        session.wait_until_ready().expect("a ready disk");
        session
    }
}

fn end(mut server: Sanstone, signal: &str) {
    server.daemon().signal(signal);
    server.daemon().wait(LIMIT).expect("it ends");
}

#[test]
fn a_claim_without_a_fence_is_seen_as_long_as_there_is_one() {
    let remote = ForeignTarget::serve_without_reservations(16 << 20);
    let disk = format!("{{ iscsi = {{ url = \"{}\" }} }}", remote.url());
    let host = Host::new(&format!("stripe = {{ of = [{disk}] }}"));
    host.volume(&["create"]).success();
    let (_server, health) = host.serve();
    let line = health.shows(
        1,
        "its target has no persistent reservations, so nothing keeps another",
    );
    assert!(
        line.starts_with("degraded: db/stripe/iscsi (iscsi://127.0.0.1"),
        "{line}"
    );
    assert!(
        line.contains("; serve it from a target that has them"),
        "{line}"
    );
    let target = target_table(host.port, &["other"]);
    let other = format!("[volume.other]\nram = {{ size = \"1MiB\" }}\n{target}");
    host.directory.write("sanstone.toml", other);
    host.apply().success();
    health.is_ok();
}

#[test]
fn a_claim_that_another_owner_has_taken_is_seen_until_it_is_ours_again() {
    let directory = Directory::new();
    let disks = "[volume.a]\nfile = { path = \"a.img\", size = \"16MiB\" }\n\
                 [volume.b]\nfile = { path = \"b.img\", size = \"16MiB\" }\n";
    let storage = Sanstone::serve(directory.path(), disks, &["a", "b"]);
    let stripe = |host: &str| {
        let disk = |lun| {
            let url = storage.url(lun);
            format!(
                "{{ iscsi = {{ url = \"{url}\", initiator = \"iqn.2026-11.io.sanstone:{host}\" }} }}"
            )
        };
        format!("stripe = {{ of = [{}, {}] }}", disk(0), disk(1))
    };
    let (one, other) = (Host::new(&stripe("one")), Host::new(&stripe("other")));
    one.volume(&["create"]).success();
    let (server, health) = one.serve();
    health.is_ok();
    other.volume(&["take-over", "--force"]).success();
    let line = health.shows(2, "its claim is lost: ");
    assert!(
        line.starts_with("down: db/stripe: its claim is lost: "),
        "{line}"
    );
    assert!(
        line.contains("; one daemon owns a stripe or concat: stop the other owner"),
        "{line}"
    );
    end(server, "TERM");
    one.volume(&["take-over"]).success();
    let (_server, health) = one.serve();
    health.is_ok();
}

/// A daemon with one copy of a mirror, and the way to it.
struct Storage {
    directory: Directory,
    server: Sanstone,
    way: Forwarder,
}

impl Storage {
    /// One with a copy for this many MiB of data, which answers after this time.
    fn new(data_mib: usize, latency: &str) -> Storage {
        let directory = Directory::new();
        let size = format!("{}MiB", data_mib + 1);
        let file = format!(
            "{{ file = {{ path = \"copy\", size = \"{size}\", cache = \"direct-sync\" }} }}"
        );
        let volume = format!(
            "[volume.copy]\nthrottle = {{ rate = \"1GiB/s\", latency = \"{latency}\", of = {file} }}\n"
        );
        let server = Sanstone::serve(directory.path(), &volume, &["copy"]);
        let way = Forwarder::new("127.0.0.1", ([127, 0, 0, 1], server.port()).into());
        Storage {
            directory,
            server,
            way,
        }
    }

    fn pair(data_mib: usize, latency: &str) -> [Storage; 2] {
        ["0s", latency].map(|latency| Storage::new(data_mib, latency))
    }
}

/// A mirror of these copies.
fn mirror(storages: &[Storage; 2], limit: &str) -> String {
    let copies = storages.iter().map(|storage| {
        let url = storage.server.url(0);
        let portal = storage.way.address();
        format!(
            "{{ iscsi = {{ url = \"{url}\", paths = [{{ portal = \"{portal}\" }}], \
             request_timeout = \"{limit}\", reconnect_timeout = \"{limit}\" }} }}"
        )
    });
    let copies: Vec<String> = copies.collect();
    format!(
        "mirror = {{ copy_timeout = \"5s\", request_timeout = \"100s\", of = [{}] }}",
        copies.join(", ")
    )
}

/// Writes a block at each of the first MiBs.
fn write(session: &mut Session, mibs: usize) {
    let tasks = (0..mibs).map(|mib| {
        let lba = (mib * MIB / 512) as u32;
        let sent = session.command(&write_10(lba, 8), Direction::Write, 4096, &[0x5A; 4096]);
        sent.expect("a command")
    });
    let tasks: Vec<u32> = tasks.collect();
    let answers = session.responses_to(&tasks).expect("they end");
    assert!(
        answers.iter().all(|(status, _)| *status == GOOD),
        "{answers:?}"
    );
}

#[test]
fn a_copy_that_is_away_is_seen_until_it_is_in_sync_again() {
    let storages = Storage::pair(16, "0s");
    let host = Host::new(&mirror(&storages, "5s"));
    host.volume(&["create"]).success();
    let (server, health) = host.serve();
    health.is_ok();
    let mut session = host.login();
    storages[1].way.break_all();
    write(&mut session, 1);
    let line = health.shows(1, " is out: ");
    assert!(line.starts_with("degraded: db/mirror: "), "{line}");
    assert!(
        line.contains(
            "; look at that copy and its network; once that is mended it is filled by itself"
        ),
        "{line}"
    );
    // The daemon goes on without it, and so do requests.
    let line = health.shows(1, "no session: ");
    assert!(!line.contains("requests wait"), "{line}");
    storages[1].way.mend();
    health.is_ok();
    // It starts without it, and its settings change meanwhile.
    end(server, "TERM");
    storages[1].way.break_all();
    let (_server, health) = host.serve();
    health.shows(1, " is out: ");
    host.configure(&mirror(&storages, "6s"));
    let ran = host.apply().success();
    assert!(ran.stdout.contains("request_timeout"), "{ran}");
    write(&mut host.login(), 1);
    storages[1].way.mend();
    health.is_ok();
}

#[test]
fn a_disk_that_somebody_else_has_reserved_is_down() {
    let storages = Storage::pair(16, "0s");
    let host = Host::new(&mirror(&storages, "5s"));
    host.volume(&["create"]).success();
    let (_server, health) = host.serve();
    health.is_ok();
    let url = storages[0].server.url(0);
    let other = format!("[volume.db]\niscsi = {{ url = \"{url}\" }}\n");
    let other = Attachment::start(Front::Nbd, &other);
    let why = "every request fails, as its end cannot be read: ";
    let line = Health::of(&other.state()).shows(2, why);
    assert!(line.starts_with("down: db: "), "{line}");
}

#[test]
fn copies_that_do_not_answer_at_all_are_down_until_they_do() {
    let storages = Storage::pair(16, "0s");
    let host = Host::new(&mirror(&storages, "5s"));
    host.volume(&["create"]).success();
    let (_server, health) = host.serve();
    health.is_ok();
    storages.iter().for_each(|storage| storage.way.break_all());
    // Before one is given up, and after that.
    let line = health.shows(
        2,
        "none of its copies can be reached: requests wait for one",
    );
    assert!(line.starts_with("down: db/mirror: "), "{line}");
    let line = health.shows(2, "no copy that is in sync answers: requests wait for it");
    assert!(line.starts_with("down: db/mirror: "), "{line}");
    assert!(line.contains("; bring that copy back"), "{line}");
    let line = health.shows(2, "is in trouble");
    assert!(line.contains("nothing takes its place"), "{line}");
    storages.iter().for_each(|storage| storage.way.mend());
    health.is_ok();
}

#[test]
fn what_a_copy_has_missed_and_what_may_differ_is_seen_until_both_are_equal() {
    const DATA_MIB: usize = 32;
    // A piece of 1 MiB takes at least this long, so that there is something to see.
    let storages = Storage::pair(DATA_MIB, "500ms");
    let content = vec![7; DATA_MIB * MIB / 2];
    let first = storages[0].directory.join("copy");
    let file = std::fs::File::options().write(true).open(first);
    let file = file.expect("a copy");
    std::os::unix::fs::FileExt::write_all_at(&file, &content, 4 << 20).expect("room");
    file.sync_all().expect("room");
    let host = Host::new(&mirror(&storages, "30s"));
    host.volume(&["create", "--from", "0"]).success();
    let (server, health) = host.serve();
    let line = health.shows(1, " is being filled");
    assert!(line.starts_with("degraded: db/mirror: "), "{line}");
    health.is_ok();
    write(&mut host.login(), DATA_MIB);
    end(server, "KILL");
    let (_server, health) = host.serve();
    let line = health.shows(
        1,
        " KiB may differ between the copies, and are being made equal",
    );
    assert!(
        line.ends_with("; it ends by itself; requests for them wait"),
        "{line}"
    );
    health.is_ok();
}

#[test]
fn a_mirror_that_another_owner_has_taken_is_down_until_it_is_ours_again() {
    let storages = Storage::pair(16, "0s");
    // Neither ends the other's sessions, so only what they ask tells.
    let hosts = ["one", "other"].map(|host| {
        let initiator = format!("{{ iscsi = {{ initiator = \"iqn.2026-11.io.sanstone:{host}\",");
        Host::new(&mirror(&storages, "5s").replace("{ iscsi = {", &initiator))
    });
    hosts[0].volume(&["create"]).success();
    let (mut server, health) = hosts[0].serve();
    health.is_ok();
    // Both were never written to.
    let log = server.daemon().log();
    assert!(!log.contains("gets what it has missed"), "{log}");
    hosts[1].volume(&["take-over"]).success();
    let line = health.shows(2, "the mirror serves nothing: ");
    assert!(line.starts_with("down: db/mirror: "), "{line}");
    assert!(
        line.contains("; `sanstone volume status` has more"),
        "{line}"
    );
    end(server, "TERM");
    hosts[0].volume(&["take-over"]).success();
    let (_server, health) = hosts[0].serve();
    health.is_ok();
}

#[test]
fn a_copy_whose_file_is_missing_and_a_register_that_is_lost_are_seen_until_they_are_back() {
    let mirror = |first: &str| {
        let copy = |path: &str| {
            format!(
                "{{ file = {{ path = \"{path}\", size = \"17MiB\", cache = \"direct-sync\" }} }}"
            )
        };
        format!("mirror = {{ of = [{}, {}] }}", copy(first), copy("b"))
    };
    let host = Host::new(&mirror("a"));
    host.volume(&["create"]).success();
    let (server, health) = host.serve();
    health.is_ok();
    end(server, "TERM");
    let moves = |from: &str, to: &str| {
        let [from, to] = [from, to].map(|name| host.directory.join(name));
        std::fs::rename(from, to).expect("it is there");
    };
    moves("b", "away");
    let (server, health) = host.serve();
    let line = health.shows(1, ": not open");
    assert!(line.starts_with("degraded: db/mirror/1/file"), "{line}");
    health.shows(1, "mount its file system");
    // What was written since is on the first copy alone, which a dry run knows.
    let c = std::fs::File::create(host.directory.join("c"));
    c.and_then(|c| c.set_len(17 * MIB as u64)).expect("room");
    host.configure(&mirror("c"));
    for command in [&["apply", "--dry-run"][..], &["apply"]] {
        let file = host.directory.join("sanstone.toml");
        let file = file.to_str().expect("plain text");
        let ran = call(&[command, &["-c", file]].concat());
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains("the only copy in sync"), "{ran}");
    }
    host.configure(&mirror("a"));
    end(server, "TERM");
    moves("away", "b");
    let (_server, health) = host.serve();
    health.is_ok();
    let state = host.directory.join("sanstone.state");
    let registers = std::fs::read_dir(&state).expect("it has a state directory");
    let names = registers.map(|entry| entry.expect("a file").file_name());
    let mut names = names.filter_map(|name| name.into_string().ok());
    let register = names.find(|name| name.ends_with(".register"));
    let register = format!("sanstone.state/{}", register.expect("it has a register"));
    moves(&register, "register");
    let b = std::fs::File::options()
        .write(true)
        .open(host.directory.join("b"));
    b.and_then(|b| b.set_len(0)).expect("it is there");
    let mut session = host.login();
    let tasks = [0, 1].map(|mib| {
        let read = read_10(mib * (MIB / 512) as u32, 8);
        session
            .command(&read, Direction::Read, 4096, &[])
            .expect("a command")
    });
    let line = health.shows(2, "the mirror's register does not change, so a copy");
    assert!(line.contains("; bring the register back"), "{line}");
    moves("register", &register);
    health.ends("the mirror's register");
    let answers = session.responses_to(&tasks).expect("they end");
    assert!(
        answers.iter().all(|(status, _)| *status == GOOD),
        "{answers:?}"
    );
    health.shows(1, " is out: ");
}
