//! Access control: CHAP with every algorithm of open-iscsi, one-way and mutual, and refused logins.

use crate::{Check, QUIET, host::Host};

const USER: (&str, &str) = ("dbhost", "a-secret-of-22-letters");
const TARGET: (&str, &str) = ("t0", "the-other-one-of-24-let.");

/// A target that demands CHAP with these algorithms, and can authenticate itself.
fn host(name: &str, algorithms: &str) -> Host {
    let target = format!(
        "chap = {{ user = \"{}\", secret_file = \"in\" }}\n\
         mutual = {{ user = \"{}\", secret_file = \"out\" }}\n\
         chap_algorithms = [{algorithms}]\n",
        USER.0, TARGET.0
    );
    let secrets = [("in", USER.1), ("out", TARGET.1)];
    Host::serve_with(name, &Host::file(16), &target, &secrets)
}

/// The settings of a node record for these secrets, with `target` for both directions.
fn settings(algorithms: &str, secret: &str, target: Option<&str>) -> String {
    let auth = "node.session.auth";
    let mut text = format!(
        "{auth}.authmethod=CHAP {auth}.chap_algs={algorithms} {auth}.username={} \
         {auth}.password={secret}",
        USER.0
    );
    if let Some(secret) = target {
        text += &format!(
            " {auth}.username_in={} {auth}.password_in={secret}",
            TARGET.0
        );
    }
    text
}

/// Logs in with one-way and with mutual CHAP, using the single allowed algorithm.
fn both_ways_with(ours: &str, theirs: &str) {
    let host = host(&format!("chap-{ours}"), &format!("\"{ours}\""));
    let Some(check) = Check::begin(&QUIET, &[]) else {
        return;
    };
    for target in [None, Some(TARGET.1)] {
        let settings = settings(theirs, USER.1, target);
        check
            .run(&format!("login {} {settings}", host.node()))
            .success();
        check
            .run(&format!(
                "dd if=$(disk {0}) of=/dev/null bs=4k count=1; logout {0}",
                host.node()
            ))
            .success();
        check
            .run(&format!("iscsiadm -m node -o delete -T {}", host.iqn))
            .success();
    }
    check.end();
}

#[test]
fn chap_with_md5_one_way_and_mutual() {
    both_ways_with("md5", "MD5");
}

#[test]
fn chap_with_sha1_one_way_and_mutual() {
    both_ways_with("sha1", "SHA1");
}

#[test]
fn chap_with_sha256_one_way_and_mutual() {
    both_ways_with("sha256", "SHA256");
}

#[test]
fn chap_with_sha3_256_one_way_and_mutual() {
    both_ways_with("sha3-256", "SHA3-256");
}

#[test]
fn chap_refuses_a_wrong_secret_and_says_so_on_both_sides() {
    let all = "\"sha3-256\", \"sha256\", \"sha1\", \"md5\"";
    let host = host("chap-wrong", all);
    let Some(check) = Check::begin(&QUIET, &[]) else {
        return;
    };
    let wrong = settings("SHA256", "not-the-secret-at-all", None);
    let said = check
        .run(&format!("login {} {wrong}", host.node()))
        .failure();
    assert!(
        said.contains("login failed due to authorization failure"),
        "{said}"
    );
    let log = host.log_with("authentication failed");
    println!("{log}");
    let refused = log
        .lines()
        .find(|line| line.contains("authentication failed"));
    let refused = refused.expect("it is there");
    assert!(
        refused.contains("sanstone:guest") && refused.contains("secret"),
        "{refused}"
    );
    assert!(
        !log.contains(USER.1) && !log.contains("not-the-secret"),
        "{log}"
    );
    check
        .run(&format!("iscsiadm -m node -o delete -T {}", host.iqn))
        .success();

    // No CHAP at all is refused the same way.
    check.run(&format!("login {}", host.node())).failure();
    check
        .run(&format!("iscsiadm -m node -o delete -T {}", host.iqn))
        .success();

    // A target that cannot prove itself is refused by the initiator.
    let wrong = settings("SHA256", USER.1, Some("not-the-targets-secret"));
    let said = check
        .run(&format!("login {} {wrong}", host.node()))
        .failure();
    println!("{said}");
    check
        .run(&format!("iscsiadm -m node -o delete -T {}", host.iqn))
        .success();

    // None of this has locked anybody out.
    let right = settings("SHA256", USER.1, Some(TARGET.1));
    check
        .run(&format!("login {} {right}", host.node()))
        .success();
    check.end();
}
