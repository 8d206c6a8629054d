//! Where a secret may be, and where it must not: in a file that others can read, or in a log.

use harness::directory::Directory;
use harness::process::{Daemon, program};
use harness::run::{Ran, run};
use harness::sanstone::{IQN, binary, target_table};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

const RAM: &str = "[volume.disk]\nram = { size = \"16MiB\" }\n";
const SECRET: &str = "correct-horse-battery";

fn write(directory: &Directory, name: &str, contents: &str, mode: u32) {
    let path = directory.write(name, contents);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
}

/// Calls `sanstone VERB` with a target that has this setting.
fn call(verb: &str, directory: &Directory, setting: &str, credentials: Option<&Directory>) -> Ran {
    let table = target_table(harness::free_port(), &["disk"]);
    let file = directory.write("chap.toml", format!("{RAM}{table}{setting}\n"));
    let mut command = Command::new(binary());
    command
        .args([verb, "-c"])
        .arg(file)
        .env_remove("CREDENTIALS_DIRECTORY");
    if let Some(credentials) = credentials {
        command.env("CREDENTIALS_DIRECTORY", credentials.path());
    }
    run(&mut command, Duration::from_secs(120))
}

#[test]
fn a_secret_that_others_can_read_is_refused_with_the_mend() {
    let directory = Directory::new();
    write(&directory, "s", SECRET, 0o644);
    let setting = "chap = { user = \"host\", secret_file = \"s\" }";
    for verb in ["check", "serve"] {
        let ran = call(verb, &directory, setting, None);
        assert_eq!(ran.code(), Some(2), "{ran}");
        let mend = format!("chmod 600 {}", directory.join("s").display());
        for part in [&*mend, "0644", "chap.toml:8"] {
            assert!(ran.stderr.contains(part), "no {part:?} in\n{ran}");
        }
        assert!(!ran.text().contains(SECRET), "{ran}");
    }
    write(&directory, "s", SECRET, 0o600);
    call("check", &directory, setting, None).success();
    write(&directory, "s", "too-short", 0o600);
    let ran = call("check", &directory, setting, None);
    assert!(
        ran.code() == Some(2) && ran.stderr.contains("has 9 bytes"),
        "{ran}"
    );
    assert!(!ran.text().contains("too-short"), "{ran}");
}

#[test]
fn a_secret_in_the_configuration_itself_is_no_setting() {
    let directory = Directory::new();
    let ran = call(
        "check",
        &directory,
        &format!("chap = {{ user = \"host\", secret = \"{SECRET}\" }}"),
        None,
    );
    assert!(
        ran.code() == Some(2) && ran.stderr.contains("unknown key `secret`"),
        "{ran}"
    );
}

#[test]
fn a_secret_in_a_url_is_refused_and_not_repeated() {
    for rest in ["127.0.0.1/iqn.2026-11.io.sanstone:a/0", "127.0.0.1"] {
        let directory = Directory::new();
        let leaf = format!("[volume.disk]\niscsi = {{ url = \"iscsi://host%{SECRET}@{rest}\" }}\n");
        let table = target_table(harness::free_port(), &["disk"]);
        let file = directory.write("url.toml", format!("{leaf}{table}"));
        let mut command = Command::new(binary());
        let ran = run(
            command.args(["check", "-c"]).arg(file),
            Duration::from_secs(120),
        );
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains("secret_file"), "{ran}");
        assert!(!ran.stderr.contains(SECRET), "{ran}");
    }
}

#[test]
fn a_credential_comes_from_systemd() {
    let (directory, credentials) = (Directory::new(), Directory::new());
    write(&credentials, "db", SECRET, 0o400);
    let setting = "chap = { user = \"host\", credential = \"db\" }";
    call("check", &directory, setting, Some(&credentials)).success();
    // Who checks by hand has none.
    let ran = call("check", &directory, setting, None).success();
    let note = "note: credential \"db\" was not looked at";
    assert!(ran.stderr.contains(note), "{ran}");
    let ran = call("serve", &directory, setting, None);
    assert!(
        ran.code() == Some(2) && ran.stderr.contains("add LoadCredential=db:"),
        "{ran}"
    );
    // A unit gets them when it starts.
    let new = "chap = { user = \"host\", credential = \"new\" }";
    for verb in ["check", "serve"] {
        let ran = call(verb, &directory, new, Some(&credentials));
        let mend = "LoadCredential=new:/path/to/secret to the unit and restart it";
        assert!(ran.code() == Some(2) && ran.stderr.contains(mend), "{ran}");
    }
}

#[test]
fn no_log_holds_a_secret_and_a_failed_login_names_its_peer() {
    let directory = Directory::new();
    write(&directory, "s", SECRET, 0o600);
    let port = harness::free_port();
    let chap = "chap = { user = \"host\", secret_file = \"s\" }\n";
    let configuration = format!("{RAM}{}{chap}", target_table(port, &["disk"]));
    let file = directory.write("chap.toml", configuration);
    let mut command = Command::new(binary());
    command.args(["--log", "trace", "serve", "-c"]).arg(file);
    let mut daemon = Daemon::start(&command, directory.join("sanstone.log"));
    daemon.wait_for_port(port);
    let inquiry = |secret: &str| {
        let url = format!("iscsi://host%{secret}@127.0.0.1:{port}/{IQN}/0");
        let mut command = Command::new(program("iscsi-inq", "libiscsi-bin"));
        run(command.arg(url), Duration::from_secs(120))
    };
    inquiry(SECRET).success();
    assert_ne!(inquiry("mistyped-horse-battery").code(), Some(0));
    let log = daemon.log_with("authentication failed");
    assert!(!log.contains(SECRET) && !log.contains("mistyped"), "{log}");
    let bytes = format!("{:?}", SECRET.as_bytes());
    assert!(!log.contains(bytes.trim_matches(['[', ']'])), "{log}");
    let line = log
        .lines()
        .find(|line| line.contains("authentication failed"));
    let line = line.expect("the failed login is logged");
    for part in ["peer=127.0.0.1:", "user=\"host\"", IQN, "count=1"] {
        assert!(line.contains(part), "no {part} in {line}");
    }
}

#[test]
fn a_secret_in_a_call_that_is_not_understood_is_not_repeated() {
    let url = format!("iscsi://host%{SECRET}@127.0.0.1/{IQN}/0");
    for words in [vec!["discover", &url], vec!["show", &url], vec![&url]] {
        let mut command = Command::new(binary());
        let ran = run(command.args(words), Duration::from_secs(120));
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains("(hidden)@127.0.0.1"), "{ran}");
        assert!(!ran.text().contains(SECRET), "{ran}");
    }
}

/// A secret may be in an argument: what was meant to be a URL is not repeated, however it is misspelt.
#[test]
fn a_secret_in_an_argument_is_not_repeated() {
    let directory = Directory::new();
    let queue = directory.write(
        "queue.toml",
        "kind = \"queue\"\nabout = \"x\"\nsize = \"4MiB\"\nblock = \"4KiB\"\nluns = 1\noutstanding = [1]\ntime = \"1s\"\n",
    );
    let queue = queue.display().to_string();
    let file = directory.write("ram.toml", RAM);
    let file = file.display().to_string();
    let rest = format!("@127.0.0.1:9/{IQN}/0");
    for account in [
        format!("host%{SECRET}"),
        format!("iscsi:/host%{SECRET}"),
        format!("iscsi:///host%{SECRET}"),
        format!("ISCSI://host%{SECRET}"),
        format!("iscsi://host:{SECRET}"),
        format!("http://host:{SECRET}"),
    ] {
        let url = format!("{account}{rest}");
        for arguments in [
            &["lab", "run", &*queue, "--on", &*url][..],
            &["lab", "run", &queue, &*format!("--on={url}")],
            &["lab", "run", &url],
            &["lab", "compare", &url, &url, "--profile", &queue],
            &["lab", "history", &url],
            &["discover", &url],
            &["attach", "-c", &file, &url, "--nbd", "127.0.0.1:0"],
            &["attach", "-c", &file, "disk", "--nbd", &url],
            &["volume", "create", "-c", &file, &url],
            &["volume", "take-over", "-c", &file, &url],
            &["check", "-c", &url],
            &["show", &url],
            &[&url],
        ] {
            let mut command = Command::new(binary());
            let ran = run(command.args(arguments), Duration::from_secs(120));
            assert_ne!(ran.code(), Some(0), "{ran}");
            assert!(!ran.text().contains(SECRET), "{arguments:?}\n{ran}");
        }
    }
}

/// As root; others own what they make.
#[test]
fn a_secret_or_a_key_of_another_user_is_refused() {
    let directory = Directory::new();
    write(&directory, "s", SECRET, 0o600);
    let of_nobody =
        |name: &str| std::os::unix::fs::chown(directory.join(name), Some(65534), None).is_ok();
    if !of_nobody("s") {
        return harness::skip("only root can give a file away");
    }
    let setting = "chap = { user = \"host\", secret_file = \"s\" }";
    for verb in ["check", "serve"] {
        let ran = call(verb, &directory, setting, None);
        assert_eq!(ran.code(), Some(2), "{ran}");
        assert!(ran.stderr.contains("belongs to user 65534"), "{ran}");
    }
    let mut openssl = Command::new(program("openssl", "openssl"));
    openssl.args([
        "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec", "-subj", "/CN=s",
    ]);
    openssl.args(["-pkeyopt", "ec_paramgen_curve:P-256", "-keyout"]);
    openssl
        .arg(directory.join("key.pem"))
        .arg("-out")
        .arg(directory.join("cert.pem"));
    run(&mut openssl, Duration::from_secs(120)).success();
    assert!(of_nobody("key.pem"));
    let file = directory.write("ram.toml", RAM);
    let mut command = Command::new(binary());
    command
        .args(["attach", "disk", "--nbd", "127.0.0.1:0", "-c"])
        .arg(file);
    command
        .arg("--tls-certificate")
        .arg(directory.join("cert.pem"));
    command.arg("--tls-key").arg(directory.join("key.pem"));
    let ran = run(&mut command, Duration::from_secs(120));
    assert_ne!(ran.code(), Some(0), "{ran}");
    assert!(ran.stderr.contains("belongs to user 65534"), "{ran}");
}
