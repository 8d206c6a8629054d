//! `sanstone discover` at every target: what it finds, that its output is a working configuration, and its message when
//! it is refused.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use harness::directory::Directory;
use harness::disk::{Disk, Target};
use harness::forwarder::Forwarder;
use harness::links::Links;
use harness::lio::{Backing, Lio, PORTALS_INSIDE};
use harness::run::{Ran, run};
use harness::sanstone::{IQN, Sanstone, binary, call, target_table};
use harness::tgt::{self, Tgt};
use serde_json::Value;

const SIZE_BYTES: u64 = 16 << 20;
const SECRET: &str = "initiator-secret";
const AS_JSON: [&str; 3] = ["--luns", "--json", "-"];
const RAM: &str = "[volume.disk]\nram = { size = \"16MiB\" }\n";

fn discover(portal: &str, arguments: &[&str]) -> Ran {
    call(&[&["discover", portal], arguments].concat())
}

#[track_caller]
fn refused(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.code(), Some(code), "{ran}");
    for word in words {
        assert!(ran.stderr.contains(word), "no {word:?}\n{ran}");
    }
}

/// The JSON of `discover --json -` for the target with this name.
#[track_caller]
fn as_json(ran: Ran, name: &str) -> Value {
    let ran = ran.success();
    let found: Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
    let targets = found["targets"].as_array().expect("a list");
    let target = targets.iter().find(|target| target["name"] == name);
    target.unwrap_or_else(|| panic!("no {name}: {ran}")).clone()
}

/// Serves the volume in `printed`, followed by a target table.
fn serve_what_was_printed(printed: &str) -> Sanstone {
    let head = printed
        .lines()
        .find_map(|line| line.strip_prefix("[volume."));
    let name = head.and_then(|head| head.strip_suffix(']'));
    let name = name.unwrap_or_else(|| panic!("no volume: {printed}"));
    let (directory, port) = (Directory::new(), harness::free_port());
    let configuration = format!("{printed}{}", target_table(port, &[name]));
    Sanstone::serve_configuration(directory.path(), &configuration, port).owning(directory)
}

fn secret_file(directory: &Directory, name: &str, secret: &str) -> String {
    let path = directory.write(name, format!("{secret}\n"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
    text(&path).to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("our paths are plain text")
}

#[test]
fn it_finds_the_disk_of_every_target_and_what_it_prints_can_be_served() {
    for target in [Target::Sanstone, Target::Tgt, Target::Istgt] {
        let Some(disk) = Disk::on(target, SIZE_BYTES) else {
            continue;
        };
        let (name, lun) = disk.target_and_lun();
        let found = as_json(discover(disk.address(), &AS_JSON), name);
        assert_eq!(found["portals"][0]["portal"], disk.address(), "{found}");
        assert_eq!(found["portals"][0]["group"], 1, "{found}");
        let luns = found["luns"].as_array().expect("it was asked");
        let disks = luns.iter().filter(|lun| lun["device_type"] == 0);
        let [only] = disks.collect::<Vec<_>>()[..] else {
            panic!("one disk: {found}");
        };
        assert_eq!(only["lun"], lun, "{found}");
        assert_eq!(only["size_bytes"], SIZE_BYTES, "{found}");
        assert_eq!(only["block_size_bytes"], 512, "{found}");
        assert!(only["name"].is_string(), "{found}");
        let printed = discover(disk.address(), &["--luns"]).success().stdout;
        assert!(printed.contains("16 MiB (16777216 bytes)"), "{printed}");
        assert_eq!(
            Some(&found["configuration"]),
            serde_json::to_value(volumes_of(&printed)).ok().as_ref()
        );
        drop(serve_what_was_printed(&printed));
    }
}

/// All but the comments.
fn volumes_of(printed: &str) -> String {
    let lines = printed.lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn several_portals_are_the_paths_of_one_volume() {
    let (directory, port) = (Directory::new(), harness::free_port());
    let table = target_table(port, &["disk"]);
    let two = format!("portals = [\"127.0.0.1:{port}\", \"127.0.0.2:{port}\"]");
    let table = table.replace(&format!("portals = [\"127.0.0.1:{port}\"]"), &two);
    let server = Sanstone::serve_configuration(directory.path(), &format!("{RAM}{table}"), port);
    let portal = format!("127.0.0.1:{}", server.port());
    let printed = discover(&portal, &[]).success().stdout;
    assert!(
        printed.contains("--luns asks for the actual LUNs"),
        "{printed}"
    );
    for number in [1, 2] {
        let path = format!("{{ portal = \"127.0.0.{number}:{port}\" }}");
        assert!(printed.contains(&path), "no {path}: {printed}");
    }
    drop(serve_what_was_printed(&printed));
}

/// LIO reports portals of the guest's own network, so the disk is queried at the portal that listed it.
/// It asks from a namespace of its own: what answers at the guest's addresses elsewhere is nothing of ours.
#[test]
fn it_finds_lio_at_both_of_its_portal_groups_and_its_disk_at_the_one_that_can_be_reached() {
    let Some(lio) = Lio::serve(Backing::Ram, 1 << 20, 512) else {
        return;
    };
    let Some(link) = Links::new(1) else {
        return harness::skip("a network namespace needs root and iproute2");
    };
    let way = Forwarder::new(&link.near_address(0), lio.portals()[0]);
    let portal = way.address().to_string();
    let mut asked = link.command();
    asked.arg(binary());
    asked.args(["discover", &portal]).args(AS_JSON);
    let found = as_json(run(&mut asked, Duration::from_secs(60)), &lio.iqn);
    let portals = found["portals"].as_array().expect("a list");
    let pairs = portals
        .iter()
        .map(|it| (it["portal"].clone(), it["group"].clone()));
    let expected = PORTALS_INSIDE
        .iter()
        .zip(1..)
        .map(|(portal, group)| ((*portal).into(), group.into()));
    assert!(pairs.eq(expected), "{found}");
    assert_eq!(found["luns"][0]["size_bytes"], 1 << 20, "{found}");
}

#[test]
fn chap_is_proved_to_the_discovery_and_to_the_target() {
    let (directory, port) = (Directory::new(), harness::free_port());
    let file = secret_file(&directory, "initiator.secret", SECRET);
    let other = secret_file(&directory, "other.secret", "not-the-secret-at-all");
    let chap = "chap = { user = \"host\", secret_file = \"initiator.secret\" }\n";
    let table = target_table(port, &["disk"]);
    let configuration = format!("{RAM}{table}{chap}[discovery]\n{chap}");
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let portal = format!("127.0.0.1:{}", server.port());
    let account = ["--chap-user", "host", "--chap-secret-file"];
    let right = [&account[..], &[&file, "--luns"]].concat();
    let printed = discover(&portal, &right).success().stdout;
    let login = format!("chap = {{ user = \"host\", secret_file = \"{file}\" }}");
    assert!(printed.contains(&login), "{printed}");
    drop(serve_what_was_printed(&printed));

    let wrong = discover(&portal, &[&account[..], &[&other]].concat());
    refused(
        &wrong,
        1,
        &[
            &portal,
            "check --chap-user \"host\" and the secret",
            "with --chap-user \"host\"",
            "--discovery-without-chap, the discovery is refused as well",
        ],
    );
    refused(
        &discover(&portal, &[]),
        1,
        &[&portal, "without --chap-user"],
    );
    let missing = discover(&portal, &[&account[..], &["/no/such/file"]].concat());
    refused(&missing, 2, &["/no/such/file cannot be read"]);
}

#[test]
fn a_target_that_refuses_us_says_so_beside_its_name() {
    let directory = Directory::new();
    let mut server = Tgt::start();
    server.add_disk(&directory.sparse("disk.img", SIZE_BYTES));
    server.require_chap("host", SECRET, false);
    let portal = server.portal();
    let portal = portal.trim_start_matches("iscsi://");
    let found = as_json(discover(portal, &AS_JSON), tgt::IQN);
    let error = found["error"].as_str().expect("it is refused");
    assert!(error.contains("authentication"), "{error}");
    let file = secret_file(&directory, "initiator.secret", SECRET);
    let account = ["--chap-user", "host", "--chap-secret-file", &file, "--luns"];
    // tgt does not support CHAP in discovery sessions.
    let printed = discover(portal, &account).success().stdout;
    assert!(printed.contains("listed without CHAP"), "{printed}");
    let told = discover(
        portal,
        &[&account[..], &["--discovery-without-chap"]].concat(),
    )
    .success();
    assert_eq!(told.stdout, printed.replace(
        "# (listed without CHAP; CHAP is for the targets alone: this portal has none for discoveries)\n",
        "",
    ));
    drop(serve_what_was_printed(&printed));
}

#[test]
fn chap_of_a_target_alone_is_no_hindrance_to_its_discovery() {
    let (directory, port) = (Directory::new(), harness::free_port());
    let file = secret_file(&directory, "initiator.secret", SECRET);
    let other = secret_file(&directory, "other.secret", "the-secret-of-the-target");
    let chap = "chap = { user = \"host\", secret_file = \"initiator.secret\" }\n";
    let mutual = "mutual = { user = \"disk\", secret_file = \"other.secret\" }\n";
    let table = target_table(port, &["disk"]);
    let configuration = format!("{RAM}{table}{chap}{mutual}");
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let portal = format!("127.0.0.1:{}", server.port());
    let account = ["--chap-user", "host", "--chap-secret-file", &file];
    discover(&portal, &account).success();
    // Whoever answers has to prove who it is, unless the user says that it need not.
    let mutual = [
        &account[..],
        &["--mutual-user", "disk", "--mutual-secret-file", &other],
    ]
    .concat();
    let mend = "--discovery-without-chap";
    refused(
        &discover(&portal, &mutual),
        1,
        &[&portal, "add --discovery-without-chap"],
    );
    let printed = discover(&portal, &[&mutual[..], &[mend, "--luns"]].concat()).success();
    drop(serve_what_was_printed(&printed.stdout));
}

#[test]
fn a_list_of_more_targets_than_a_pdu_of_text_usually_has_is_printed_whole() {
    let (directory, port) = (Directory::new(), harness::free_port());
    let count = 130;
    let table = |number: usize| {
        format!(
            "[target.\"iqn.2026-11.io.sanstone:pvc-{number:0180}\"]\nportals = [\"127.0.0.1:{port}\"]\n\
             luns = [\"disk\"]\nallow = [\"*\"]\n"
        )
    };
    let configuration = RAM.to_owned() + &(0..count).map(table).collect::<String>();
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let printed = discover(&format!("127.0.0.1:{}", server.port()), &[])
        .success()
        .stdout;
    assert_eq!(printed.matches("# target ").count(), count);
}

#[test]
fn what_cannot_be_discovered_says_why_and_what_to_do() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = listener.local_addr().expect("bound").to_string();
    let ran = discover(&silent, &["--timeout", "200ms"]);
    refused(&ran, 1, &[&silent, "did not complete within 200ms"]);
    drop(listener);
    refused(
        &discover(&silent, &[]),
        1,
        &[&silent, "is the target running, and listening there?"],
    );
    refused(
        &discover("[fe80::2]:4000", &[]),
        2,
        &["link-local", "such as [fe80::2%eth0]:4000"],
    );
    refused(
        &discover("10.0.1.2:x", &[]),
        2,
        &["10.0.1.2:x", "write HOST or HOST:PORT"],
    );
    refused(
        &discover(&silent, &["--initiator", "me"]),
        2,
        &["\"me\" is not an iSCSI name"],
    );
    refused(
        &discover(&silent, &["--timeout", "0s"]),
        2,
        &["such as --timeout 5s"],
    );

    let (directory, port) = (Directory::new(), harness::free_port());
    let table = target_table(port, &["disk"]);
    let only = table.replace("allow = [\"*\"]", "allow = [\"iqn.2026-11.example:other\"]");
    let configuration = format!("{RAM}{only}");
    let server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let portal = format!("127.0.0.1:{}", server.port());
    let me = "iqn.2026-11.example:me";
    let ran = discover(&portal, &["--initiator", me]);
    refused(&ran, 1, &[&portal, me, "allow that name there"]);
    let ran = discover(&portal, &["--initiator", "iqn.2026-11.example:other"]).success();
    assert!(ran.stdout.contains(IQN), "{ran}");
}
