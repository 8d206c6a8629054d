//! A daemon refuses secrets that others can read or change, and disks that are no files, when it starts and when it is
//! given another configuration.

use engine::{
    sim::{Host, World, seeds},
    store::PathKind,
};
use node::DaemonFailure;
use sim::daemon_machine::DaemonMachine;

const SECRET: &str = "/srv/secret";
const DISK: &str = "/srv/db.img";

fn text(file: &str) -> String {
    format!(
        "lanes = 1\n[volume.db]\nfile = {{ path = \"db.img\", {file} }}\n\
         [target.\"iqn.2026-11.io.sanstone:t\"]\nluns = [\"db\"]\nallow = [\"*\"]\n\
         chap = {{ user = \"db\", secret_file = \"secret\" }}\n"
    )
}

/// A machine with a secret that is private and a disk of 64 KiB, on which a daemon with these settings of its file is
/// started once after `change`.
fn start(seed: u64, file: &str, change: impl FnOnce(&Host)) -> Result<(), String> {
    let world = World::new(seed);
    let server = DaemonMachine::new(world.host("server"), &text(file));
    server.host().put_file(SECRET, b"sixteen bytes ok\n");
    server.host().put_file(DISK, &[1; 64 << 10]);
    change(server.host());
    let client = world.host("client");
    let tried = world.block_on(&client, server.try_once());
    tried.map_err(|failure| match failure {
        DaemonFailure::Wrong(message) => message,
        failure => panic!("it is not refused but fails: {failure}"),
    })
}

#[test]
fn a_daemon_starts_only_with_private_secrets_and_files_that_it_may_use() {
    let size = "size = \"64KiB\"";
    seeds(5, |seed| {
        start(seed, size, |_| ()).expect("all is right");
        start(seed, size, |host| host.set_mode(SECRET, 0o640)).expect("a group may read it");
        let read_only = "read_only = true";
        start(seed, read_only, |host| host.set_mode(DISK, 0o400)).expect("it is only read");
        type Change = fn(&Host);
        let cases: [(Change, &str); 8] = [
            (|host| host.set_mode(SECRET, 0o644), "chmod 600 /srv/secret"),
            (|host| host.set_mode(SECRET, 0o660), "chmod g-w /srv/secret"),
            (|host| host.set_mode(SECRET, 0o000), "cannot be read"),
            (
                |host| host.set_kind(SECRET, PathKind::Pipe),
                "/srv/secret is not a file",
            ),
            (|host| assert!(host.remove_file(SECRET)), "cannot be read"),
            (|host| host.set_mode(DISK, 0o400), "or set read_only = true"),
            (
                |host| host.set_kind(DISK, PathKind::Pipe),
                "/srv/db.img is a pipe",
            ),
            (
                |host| host.set_kind(DISK, PathKind::Socket),
                "/srv/db.img is a socket",
            ),
        ];
        for (change, part) in cases {
            let refused = start(seed, size, change).expect_err(part);
            assert!(refused.contains(part), "{refused}");
            assert!(
                !refused.contains("sixteen"),
                "it tells the secret: {refused}"
            );
        }
    });
}

#[test]
fn a_secret_that_was_made_public_is_not_applied() {
    seeds(5, |seed| {
        let world = World::new(seed);
        let server = DaemonMachine::new(world.host("server"), &text("size = \"64KiB\""));
        server.host().put_file(SECRET, b"sixteen bytes ok\n");
        let client = world.host("client");
        world.block_on(&client, async {
            server.start();
            server.ready().await;
            let longer = text("size = \"128KiB\"");
            server.host().set_mode(SECRET, 0o644);
            let refused = server
                .apply(&longer)
                .await
                .expect_err("everybody can read it");
            assert!(refused.to_string().contains("chmod 600"), "{refused}");
            let len = server.host().read_file(DISK).map(|bytes| bytes.len());
            assert_eq!(len, Some(64 << 10), "nothing has changed");
            server.host().set_mode(SECRET, 0o600);
            let changes = server.apply(&longer).await.expect("it is private again");
            assert_eq!(changes, ["~ volume db grows from 64 KiB to 128 KiB"]);
        });
    });
}
