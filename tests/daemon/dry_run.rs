//! What the dry run of an `apply` says: what was, what is, and whom it cuts.

use harness::{
    directory::Directory,
    sanstone::{IQN, call},
};
use serde_json::Value;

use crate::apply::{
    ALL, TEST_UNIT_READY, VOLUMES, apply_with, configuration, login, send, serve, target,
};

#[test]
fn a_dry_run_shows_what_was_and_is_and_whom_it_cuts() {
    let directory = Directory::new();
    let at = directory.path();
    let server = serve(at);
    let port = server.port();
    let mut session = login(port, IQN, 0, 1);
    const RESERVE_6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
    assert_eq!(send(&mut session, &RESERVE_6, &[]), (0, [0; 3]));
    let wrong = target(
        IQN,
        port,
        "[\"a\"]",
        "allow = [\"iqn.2026-11.io.sanstone:dbhots\"]",
    );
    let removed = target(IQN, port, "[\"b\"]", ALL);
    for (text, lines) in [
        (
            wrong,
            &[
                "~ target IQN: allow [\"*\"] → [\"iqn.2026-11.io.sanstone:dbhots\"]\n",
                "! target IQN: 1 session of INITIATOR ends: it is no longer allowed to use its target\n",
                "! volume a: its reservation (RESERVE 6) by INITIATOR,i,0x",
            ][..],
        ),
        (
            removed,
            &[
                "~ target IQN: LUN 0, b: a → b\n",
                "! target IQN: 1 session of INITIATOR ends: one of its LUNs is another disk now\n",
                "! volume a: its reservation (RESERVE 6) by INITIATOR,i,0x",
            ],
        ),
    ] {
        let ran = apply_with(at, &format!("{VOLUMES}{text}"), &["--dry-run"]).success();
        let sessions = call(&["show", "-c", &configuration(at), "--json", "-"]).success();
        let shown: Value = serde_json::from_str(&sessions.stdout).expect("it is JSON");
        let initiator = shown["sessions"][0]["initiator"].as_str().expect("a name");
        for line in lines {
            let line = line.replace("IQN", IQN).replace("INITIATOR", initiator);
            assert!(ran.stdout.contains(&line), "no {line:?} in {ran}");
        }
    }
    // None of it was done.
    assert_eq!(send(&mut session, &TEST_UNIT_READY, &[]), (0, [0; 3]));
}
