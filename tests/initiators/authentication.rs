//! CHAP, access lists and digests with third-party programs: libiscsi's tools and QEMU log in to Sanstone, and
//! Sanstone's own initiator logs in to tgt.

use harness::directory::Directory;
use harness::process::{Daemon, program};
use harness::run::{Ran, run};
use harness::sanstone::{IQN, Sanstone, binary, target_table};
use harness::tgt::Tgt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(crate) const SECRET: &str = "initiator-secret";
const TARGET_SECRET: &str = "target's-own-secret";
const RAM: &str = "[volume.disk]\nram = { size = \"16MiB\" }\n";

fn secret_file(directory: &Directory, name: &str, secret: &str) {
    let path = directory.write(name, format!("{secret}\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
}

/// Serves a RAM disk with these settings in front of its tables, and these in the target's.
pub(crate) fn serve(top: &str, of_target: &str) -> Sanstone {
    let directory = Directory::new();
    secret_file(&directory, "initiator.secret", SECRET);
    secret_file(&directory, "target.secret", TARGET_SECRET);
    let port = harness::free_port();
    let configuration = format!("{top}{RAM}{}{of_target}\n", target_table(port, &["disk"]));
    Sanstone::serve_configuration(directory.path(), &configuration, port).owning(directory)
}

pub(crate) const CHAP: &str = "chap = { user = \"host\", secret_file = \"initiator.secret\" }\n";
const MUTUAL: &str = "mutual = { user = \"disk\", secret_file = \"target.secret\" }\n";

/// Calls a tool of libiscsi with these variables of its environment.
#[track_caller]
fn tool(name: &str, variables: &[(&str, &str)], arguments: &[&str]) -> Ran {
    let mut command = Command::new(program(name, "libiscsi-bin"));
    command.args(arguments).envs(variables.iter().copied());
    run(&mut command, Duration::from_secs(120))
}

#[track_caller]
pub(crate) fn inquiry(variables: &[(&str, &str)], url: &str) -> Ran {
    tool("iscsi-inq", variables, &[url])
}

#[track_caller]
pub(crate) fn let_in(ran: &Ran) {
    let seen = ran.stdout.contains("Peripheral Device Type:DIRECT_ACCESS");
    assert!(ran.code() == Some(0) && seen, "{ran}");
}

#[track_caller]
fn refused(ran: &Ran) {
    let said = ran.text();
    assert_ne!(ran.code(), Some(0), "{ran}");
    assert!(
        !said.contains("DIRECT_ACCESS") && said.to_lowercase().contains("login"),
        "{ran}"
    );
}

pub(crate) fn url(server: &Sanstone, user: &str, secret: &str) -> String {
    let rest = format!("127.0.0.1:{}/{IQN}/0", server.port());
    match user {
        "" => format!("iscsi://{rest}"),
        _ => format!("iscsi://{user}%{secret}@{rest}"),
    }
}

#[test]
fn libiscsi_logs_in_with_the_right_name_and_secret_only() {
    let server = serve("", CHAP);
    let_in(&inquiry(&[], &url(&server, "host", SECRET)));
    for (user, secret) in [("", ""), ("host", "initiator-secreT"), ("hosts", SECRET)] {
        refused(&inquiry(&[], &url(&server, user, secret)));
    }
    let_in(&inquiry(&[], &url(&server, "host", SECRET)));
}

#[test]
fn libiscsi_and_sanstone_prove_themselves_to_each_other() {
    let server = serve("", &format!("{CHAP}{MUTUAL}"));
    let url = url(&server, "host", SECRET);
    let target = |secret| {
        [
            ("LIBISCSI_CHAP_TARGET_USERNAME", "disk"),
            ("LIBISCSI_CHAP_TARGET_PASSWORD", secret),
        ]
    };
    let_in(&inquiry(&target(TARGET_SECRET), &url));
    refused(&inquiry(&target("another target's"), &url));
    let_in(&inquiry(&[], &url));
    // A target without mutual CHAP cannot authenticate itself.
    let plain = serve("", CHAP);
    refused(&inquiry(
        &target(TARGET_SECRET),
        &self::url(&plain, "host", SECRET),
    ));
}

#[test]
fn a_list_of_algorithms_without_md5_shuts_libiscsi_out() {
    let server = serve(
        "",
        &format!("{CHAP}chap_algorithms = [\"sha256\", \"sha3-256\"]\n"),
    );
    refused(&inquiry(&[], &url(&server, "host", SECRET)));
}

#[test]
fn discovery_asks_for_a_secret_where_it_is_configured_to() {
    let server = serve(&format!("[discovery]\n{CHAP}"), "");
    let portal = |login: &str| format!("iscsi://{login}127.0.0.1:{}", server.port());
    let ran = tool("iscsi-ls", &[], &[&portal(&format!("host%{SECRET}@"))]);
    assert!(ran.code() == Some(0) && ran.stdout.contains(IQN), "{ran}");
    let ran = tool("iscsi-ls", &[], &[&portal("")]);
    assert!(ran.code() != Some(0) && !ran.stdout.contains(IQN), "{ran}");
    // The target requires no CHAP, but admits an initiator that offers it, as libiscsi then does.
    let_in(&inquiry(&[], &url(&server, "", "")));
    let_in(&inquiry(&[], &url(&server, "host", SECRET)));
    let listed = [&portal(&format!("host%{SECRET}@"))[..]];
    let ran = tool("iscsi-ls", &[], &[&["-s"], &listed[..]].concat());
    assert!(
        ran.code() == Some(0) && ran.stdout.contains("Lun:0"),
        "{ran}"
    );
}

#[test]
fn a_target_shows_itself_to_those_who_may_use_it() {
    let server = serve("", "allow_from = [\"192.0.2.0/24\", \"::1\"]\n");
    let ran = tool("iscsi-ls", &[], &[&server.portal()]).success();
    assert!(!ran.stdout.contains(IQN), "{ran}");
    refused(&inquiry(&[], &url(&server, "", "")));
    let server = serve("", "allow_from = [\"192.0.2.0/24\", \"127.0.0.0/8\"]\n");
    let ran = tool("iscsi-ls", &[], &[&server.portal()]).success();
    assert!(ran.stdout.contains(IQN), "{ran}");
    let_in(&inquiry(&[], &url(&server, "", "")));
}

/// Has qemu-io log in as `host` with the secret in the file `secret`, and execute these commands.
#[track_caller]
fn qemu_io(port: u16, secret: &Path, options: &str, commands: &[&str]) {
    let object = format!("secret,id=s0,file={}", secret.display());
    let disk = format!(
        "driver=iscsi,transport=tcp,portal=127.0.0.1:{port},target={IQN},lun=0,user=host,\
         password-secret=s0{options}"
    );
    let mut qemu = Command::new(program("qemu-io", "qemu-utils"));
    qemu.args(["--object", &object, "--image-opts", &disk]);
    qemu.args(commands.iter().flat_map(|command| ["-c", command]));
    run(&mut qemu, Duration::from_secs(120)).success();
}

#[test]
fn qemu_gets_the_header_digest_that_it_prefers_behind_a_secret() {
    for (settings, wish, header) in [
        ("", "crc32c", true),
        ("", "crc32c-none", true),
        ("", "none-crc32c", false),
        ("digests = false\n", "crc32c-none", false),
    ] {
        let directory = Directory::new();
        secret_file(&directory, "initiator.secret", SECRET);
        let secret = directory.write("qemu.secret", SECRET);
        let port = harness::free_port();
        let table = target_table(port, &["disk"]);
        let file = directory.write("sanstone.toml", format!("{settings}{RAM}{table}{CHAP}"));
        let log = directory.join("sanstone.log");
        let mut command = Command::new(binary());
        command.args(["--log", "debug", "serve", "-c"]).arg(file);
        let mut daemon = Daemon::start(&command, log);
        daemon.wait_for_port(port);
        let options = format!(",header-digest={wish}");
        qemu_io(
            port,
            &secret,
            &options,
            &["write -P 7 0 1M", "read -P 7 0 1M"],
        );
        println!("{wish:?}");
        daemon.log_with(&format!(
            "digests: Digests {{ header: {header}, data: false }}"
        ));
    }
}

#[test]
fn our_initiator_proves_itself_to_tgt_and_the_other_way_round() {
    let backing = Directory::new();
    let mut tgt = Tgt::start();
    let disk = tgt.add_disk(&backing.sparse("disk.img", 16 << 20));
    tgt.require_chap("host", SECRET, false);
    tgt.require_chap("disk", TARGET_SECRET, true);
    let leaf = |of_leaf: &str| format!("[volume.disk]\niscsi = {{ url = \"{disk}\"{of_leaf} }}\n");
    let (chap, mutual) = (CHAP.trim(), MUTUAL.trim());
    for of_leaf in [
        format!(", {chap}"),
        format!(", {chap}, {mutual}"),
        format!(
            ", {chap}, {mutual}, chap_algorithms = [\"md5\"], header_digest = true, data_digest = true"
        ),
    ] {
        let directory = Directory::new();
        secret_file(&directory, "initiator.secret", SECRET);
        secret_file(&directory, "target.secret", TARGET_SECRET);
        let server =
            Sanstone::serve(directory.path(), &leaf(&of_leaf), &["disk"]).owning(directory);
        let_in(&inquiry(&[], &server.url(0)));
        let ran = tool("iscsi-perf", &[], &["-t", "1", "-x", "0", &server.url(0)]).success();
        assert!(ran.stdout.contains("finished."), "{ran}");
    }
    for (of_leaf, initiator, target, part) in [
        (String::new(), SECRET, TARGET_SECRET, "0x0201"),
        (
            format!(", {chap}"),
            "another secret",
            TARGET_SECRET,
            "0x0201",
        ),
        (
            format!(", {chap}, {mutual}"),
            SECRET,
            "another secret",
            "not that of `mutual`",
        ),
    ] {
        let directory = Directory::new();
        secret_file(&directory, "initiator.secret", initiator);
        secret_file(&directory, "target.secret", target);
        let table = target_table(harness::free_port(), &["disk"]);
        let file = directory.write("sanstone.toml", format!("{}{table}", leaf(&of_leaf)));
        let mut serve = Command::new(binary());
        let ran = run(
            serve.args(["serve", "-c"]).arg(file),
            Duration::from_secs(120),
        );
        assert_eq!(ran.code(), Some(1), "{ran}");
        assert!(ran.stderr.contains(part), "no {part:?} in\n{ran}");
    }
}

#[test]
fn one_secret_file_made_as_the_guide_says_serves_both_ends() {
    let guide = include_str!("../../docs/guide/authentication.md");
    let line = guide.lines().find(|line| line.contains("openssl rand"));
    let line = line.expect("the guide makes a secret");
    let directory = Directory::new();
    let mut make = Command::new("sh");
    let _ = program("openssl", "openssl");
    make.args(["-c", line]).current_dir(directory.path());
    run(&mut make, Duration::from_secs(120)).success();
    let chap = "chap = { user = \"host\", secret_file = \"dbhost.secret\" }\n";
    let port = harness::free_port();
    let configuration = format!("{RAM}{}{chap}", target_table(port, &["disk"]));
    let _server = Sanstone::serve_configuration(directory.path(), &configuration, port);
    let secret = directory.join("dbhost.secret");
    qemu_io(port, &secret, "", &["read 0 1M"]);
}
