//! A secret is changed while a client has the disk: the target takes both, says who still uses the old one, and nobody has to be
//! stopped.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use harness::{
    directory::Directory,
    health::Health,
    run::Ran,
    sanstone::{IQN, Sanstone, call, target_table},
};

const OLD: &str = "the secret of last year";
const NEW: &str = "the secret of this year";

fn secret(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    fs::write(&path, text).expect("room");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
}

fn target(port: u16, chap: &str) -> String {
    let volumes = "[volume.disk]\nfile = { path = \"disk.img\", size = \"16MiB\" }\n";
    format!("{volumes}{}{chap}\n", target_table(port, &["disk"]))
}

fn apply(directory: &Path, text: &str) -> Ran {
    let path = directory.join("sanstone.toml");
    fs::write(&path, text).expect("room");
    call(&["apply", "-c", path.to_str().expect("plain text")]).success()
}

fn health(directory: &Directory) -> Health {
    Health::of(&directory.join("sanstone.state"))
}

#[test]
fn a_secret_is_changed_while_the_disk_is_used() {
    let (below, above) = (Directory::new(), Directory::new());
    let ports = [harness::free_port(), harness::free_port()];
    secret(below.path(), "old", OLD);
    secret(below.path(), "new", NEW);
    secret(above.path(), "secret", OLD);
    let account = |key: &str, file: &str| {
        format!("{key} = {{ user = \"host\", secret_file = \"{file}\" }}\n")
    };
    let serve = |text: &str| {
        let server = Sanstone::serve_configuration(below.path(), text, ports[0]);
        server.answering(&below.join("sanstone.state"))
    };
    let (before, after) = (
        target(ports[0], &account("chap", "old")),
        target(ports[0], &account("chap", "new")),
    );
    let both = format!("{after}{}", account("old_chap", "old"));
    let server = serve(&before);
    let client = format!(
        "[volume.db.iscsi]\nurl = \"{}\"\nsessions = 2\ninitiator = \"iqn.2026-11.io.sanstone:client\"\n{}{}",
        server.url(0),
        account("chap", "secret"),
        target_table(ports[1], &["db"])
    );
    let client = Sanstone::serve_configuration(above.path(), &client, ports[1]);
    let _client = client.answering(&above.join("sanstone.state"));
    let (below_is, above_is) = (health(&below), health(&above));
    below_is.is_ok();
    // Without the old one the client would be lost at its next login.
    let ran = apply(below.path(), &after);
    let of = format!("target {IQN}: 2 sessions of iqn.2026-11.io.sanstone:client");
    let lost = format!(
        "! {of} with a secret that is not accepted any more: their next login fails, unless"
    );
    assert!(ran.stdout.contains(&lost), "{ran}");
    below_is.shows(
        1,
        "2 sessions of iqn.2026-11.io.sanstone:client with a secret that is not accepted any more",
    );
    let ran = apply(below.path(), &both);
    assert!(
        ran.stdout
            .contains(&format!("! {of} still with the old secret: ")),
        "{ran}"
    );
    assert!(ran.stdout.ends_with("\napplied\n"), "{ran}");
    // A warning alone changes nothing.
    let ran = apply(below.path(), &both);
    assert!(ran.stdout.starts_with("! "), "{ran}");
    assert!(ran.stdout.ends_with("\nnothing changes\n"), "{ran}");
    below_is.shows(
        1,
        "2 sessions of iqn.2026-11.io.sanstone:client still with the old secret; ",
    );
    // It logs in with the old one after a restart of its target, and then with what its file says by then.
    drop(server);
    let server = serve(&both);
    above_is.is_ok();
    below_is.shows(1, "still with the old secret; ");
    secret(above.path(), "secret", NEW);
    drop(server);
    let _server = serve(&both);
    above_is.is_ok();
    below_is.is_ok();
    let ran = apply(below.path(), &after);
    assert!(!ran.stdout.contains('!'), "{ran}");
    below_is.is_ok();
}
