//! What is ok, degraded and down, and what says so.

use super::*;
use crate::description::{
    ClaimDescription, Failure, MirrorCopy, MirrorDescription, NodeSession, PathSession,
    ReportedSession, Requests, Space, UnitDescription, VERSION,
};

fn node(path: &str) -> Node {
    Node {
        path: path.to_owned(),
        name: None,
        kind: path.rsplit('/').next().unwrap_or_default().to_owned(),
        place: None,
        open: true,
        size_bytes: Some(1 << 30),
        block_size_bytes: Some(512),
        memory_bytes: None,
        space: None,
        lost_path: false,
        read_only: false,
        claim: None,
        session: None,
        sessions: Vec::new(),
        cache: None,
        mirror: None,
        requests: BTreeMap::new(),
        failure: None,
        children: Vec::new(),
    }
}

fn described(tree: Node, unit: Option<UnitDescription>) -> Description {
    let volume = Volume {
        uuid: Some("8c1d0e2e-6f0a-4c53-9a44-0d4a3c1f8f5e".to_owned()),
        naa: None,
        serial: None,
        tree,
        unit,
        commands: BTreeMap::new(),
    };
    Description {
        version: VERSION,
        configuration: String::new(),
        state: String::new(),
        state_error: None,
        lanes: 1,
        volumes: BTreeMap::from([("db".to_owned(), volume)]),
        product_version: String::new(),
        pid: 0,
        started_unix_s: 0,
        targets: BTreeMap::new(),
        attached: None,
        sessions: Vec::new(),
    }
}

/// The verdict about one node, in lines.
fn verdict(tree: Node) -> (Health, Vec<String>) {
    let verdict = Verdict::of(&described(tree, None));
    let lines = verdict.reasons.iter().map(ToString::to_string).collect();
    (verdict.health, lines)
}

fn session(state: &str) -> NodeSession {
    NodeSession {
        state: state.to_owned(),
        address: None,
        relogins: 0,
        lacks_fence: false,
        error: (state != "logged in").then(|| "no answer within 5s".to_owned()),
    }
}

fn mirror(state: &str, error: Option<&str>) -> MirrorDescription {
    let copy = |name: &str, state: &str, error: Option<&str>| MirrorCopy {
        name: name.to_owned(),
        state: state.to_owned(),
        error: error.map(str::to_owned),
    };
    MirrorDescription {
        in_sync: false,
        epoch: 1,
        copies: vec![
            copy("copy 0", "in sync", None),
            copy("copy 1", state, Some("no answer")),
        ],
        marked_bytes: 0,
        in_doubt_bytes: 0,
        left_to_fill_bytes: 0,
        register_error: None,
        error: error.map(str::to_owned),
    }
}

fn hanging(oldest_s: f64) -> BTreeMap<String, Requests> {
    let requests = Requests {
        requests: 0,
        errors: 0,
        unanswered: 0,
        pending: 32,
        oldest_s: Some(oldest_s),
        bytes: 0,
        median_us: 0.0,
        p99_us: 0.0,
        max_us: 0.0,
        sum_us: 0.0,
    };
    BTreeMap::from([("write".to_owned(), requests)])
}

#[test]
fn what_is_as_configured_is_ok() {
    let mut tree = node("db/iscsi");
    tree.session = Some(session("logged in"));
    tree.requests = hanging(1.9);
    assert_eq!(verdict(tree), (Health::Ok, Vec::new()));
}

#[test]
fn each_trouble_has_its_line_and_its_mend() {
    let mut closed = node("db/file");
    closed.open = false;
    let mut lost = node("db/stripe");
    lost.claim = Some(ClaimDescription {
        held: false,
        error: Some("another daemon has it".to_owned()),
    });
    let mut silent = node("db/iscsi");
    silent.session = Some(session("lost"));
    let mut limping = node("db/iscsi");
    limping.session = Some(session("logged in"));
    let path = |state: &str, lane| PathSession {
        state: state.to_owned(),
        portal: "10.0.2.2:3260".to_owned(),
        local: None,
        lane,
        error: (state == "none").then(|| "no answer within 5s".to_owned()),
    };
    // One for each lane, all of them the same way.
    limping.sessions = vec![path("none", 0), path("none", 1), path("logged in", 2)];
    let mut mute = node("db/iscsi");
    mute.session = Some(session("logged in"));
    mute.sessions = vec![path("silent", 0), path("silent", 1)];
    let mut open = node("db/stripe/0/iscsi");
    open.session = Some(NodeSession {
        lacks_fence: true,
        ..session("logged in")
    });
    let mut stuck = node("db/stripe");
    stuck.requests = hanging(45.0);
    let mut child = node("db/stripe/0/file");
    child.requests = hanging(45.0);
    stuck.children.push(child);
    let failing = |kind: &str, may_have_lost, is_gone| {
        Some(Failure {
            kind: kind.to_owned(),
            error: "the target has no LUN 0".to_owned(),
            may_have_lost,
            is_gone,
        })
    };
    let mut failed = node("db/stripe");
    failed.failure = failing("read", false, true);
    let mut below = node("db/stripe/0/iscsi");
    below.failure = failing("read", false, true);
    failed.children.push(below.clone());
    let (found, lines) = verdict(failed);
    assert_eq!((found, lines.len()), (Health::Down, 1), "{lines:?}");
    assert!(
        lines[0].starts_with(
            "down: db/stripe/0/iscsi: its last read has failed: the target has no LUN 0; look at"
        ),
        "{lines:?}"
    );
    let mut lossy = node("db/cache");
    lossy.failure = failing("flush", true, true);
    let mut stripe = node("db/cache/stripe");
    stripe.failure = failing("flush", true, true);
    below.failure = failing("flush", false, false);
    stripe.children.push(below);
    lossy.children.push(stripe);
    let (found, lines) = verdict(lossy);
    assert_eq!((found, lines.len()), (Health::Down, 2), "{lines:?}");
    let said = "down: db/cache/stripe: writes that were acknowledged may be lost, and it takes no others: ";
    assert!(lines[0].starts_with(said), "{lines:?}");
    let mut full = node("db/file");
    full.space = Some(Space {
        allocated_bytes: 1 << 20,
        free_bytes: 1 << 20,
    });
    let mut filling = node("db/file");
    filling.space = Some(Space {
        allocated_bytes: 1 << 20,
        free_bytes: 40 << 20,
    });
    let mut lame = node("db/mirror");
    lame.mirror = Some(mirror("out", None));
    let mut sole = mirror("out", None);
    sole.copies[0] = MirrorCopy {
        name: "copy 0".to_owned(),
        state: "in trouble".to_owned(),
        error: Some("no answer".to_owned()),
    };
    let mut alone = node("db/mirror");
    alone.mirror = Some(sole);
    let (found, lines) = verdict(alone);
    assert_eq!((found, lines.len()), (Health::Down, 3), "{lines:?}");
    let register = |state: &str| {
        let mut mirror = mirror(state, None);
        mirror.register_error = Some("no answer".to_owned());
        let mut above = node("db/mirror");
        above.mirror = Some(mirror);
        verdict(above).0
    };
    assert_eq!(register("in trouble"), Health::Down);
    assert_eq!(register("out"), Health::Degraded);
    let mut above = node("db/mirror");
    above.mirror = Some(mirror("out", None));
    let copy = |place: usize, state: &str| Node {
        session: Some(session(state)),
        ..node(&format!("db/mirror/{place}/iscsi"))
    };
    above.children = vec![copy(0, "logged in"), copy(1, "lost")];
    let (found, lines) = verdict(above.clone());
    assert_eq!((found, lines.len()), (Health::Degraded, 2), "{lines:?}");
    above.children[0] = copy(0, "lost");
    let (found, lines) = verdict(above);
    assert_eq!(found, Health::Down, "{lines:?}");
    assert!(lines[0].contains("none of its copies can be"), "{lines:?}");
    let mut fenced = node("db/mirror");
    fenced.mirror = Some(mirror("out", Some("another owner has claimed it")));
    for (tree, health, part) in [
        (lame, Health::Degraded, "copy 1 is out: no answer"),
        (
            fenced,
            Health::Down,
            "the mirror serves nothing: another owner has",
        ),
        (closed, Health::Down, "db/file: not open; the log says why"),
        (
            lost,
            Health::Down,
            "its claim is lost: another daemon has it",
        ),
        (silent, Health::Down, "no session: no answer within 5s"),
        (
            limping,
            Health::Degraded,
            "the path to 10.0.2.2:3260 is lost: no answer",
        ),
        (
            mute,
            Health::Degraded,
            "10.0.2.2:3260 is silent: it does not answer a ping; look at that portal",
        ),
        (
            open,
            Health::Degraded,
            "db/stripe/0/iscsi: its target has no persistent reservations, so nothing keeps",
        ),
        (
            stuck,
            Health::Degraded,
            "db/stripe/0/file: 32 writes in progress, the oldest for 45 s",
        ),
        (
            full,
            Health::Down,
            "may still grow by 1023 MiB, and its file system has 1 MiB left",
        ),
        (filling, Health::Degraded, "its file system has 40 MiB left"),
    ] {
        let (found, lines) = verdict(tree);
        assert_eq!(found, health, "{lines:?}");
        assert!(lines.len() == 1 && lines[0].contains(part), "{lines:?}");
    }
}

#[test]
fn who_has_not_changed_to_the_new_secret_is_named() {
    let session = |secret: Option<&str>| ReportedSession {
        initiator: "iqn.1993-08.org.debian:01:dbhost".to_owned(),
        peer: "10.0.1.7:40210".to_owned(),
        portal: "10.0.1.2:3260".to_owned(),
        target: Some("iqn.2026-11.io.sanstone:t0".to_owned()),
        portal_group_tag: 1,
        lane: 0,
        header_digest: false,
        data_digest: false,
        age_s: 1.0,
        outstanding: 0,
        secret: secret.map(str::to_owned),
    };
    let mut described = described(node("db/file"), None);
    described.sessions = vec![session(None)];
    assert_eq!(Verdict::of(&described).health, Health::Ok);
    described.sessions.extend([
        session(Some("old")),
        session(Some("old")),
        session(Some("gone")),
    ]);
    let verdict = Verdict::of(&described);
    assert_eq!(verdict.health, Health::Degraded);
    let lines: Vec<String> = verdict.reasons.iter().map(ToString::to_string).collect();
    let of = "degraded: iqn.2026-11.io.sanstone:t0: ";
    for (number, part) in [
        (
            0,
            "1 session of iqn.1993-08.org.debian:01:dbhost with a secret that is not accepted any more; its next",
        ),
        (
            1,
            "2 sessions of iqn.1993-08.org.debian:01:dbhost still with the old secret; give it the new one",
        ),
    ] {
        assert!(
            lines[number].starts_with(&format!("{of}{part}")),
            "{lines:?}"
        );
    }
    assert_eq!(lines.len(), 2);
}

#[test]
fn an_attachment_that_ends_or_has_lost_its_file_system_is_not_ok() {
    let mut description = described(node("db/file"), None);
    let attached = Attached {
        volume: "db".to_owned(),
        front: "fuse".to_owned(),
        place: "/run/db.disk".to_owned(),
        read_only: false,
        broken_mount: None,
        is_stopping: true,
    };
    description.attached = Some(attached.clone());
    let verdict = Verdict::of(&description);
    assert_eq!(verdict.health, Health::Degraded);
    assert!(
        verdict.reasons[0]
            .what
            .contains("waits until nobody uses it")
    );
    description.attached = Some(Attached {
        broken_mount: Some("/srv/db".to_owned()),
        ..attached
    });
    let verdict = Verdict::of(&description);
    assert_eq!((verdict.health, verdict.reasons.len()), (Health::Down, 2));
    assert!(verdict.reasons[0].what.contains("/srv/db takes no writes"));
}

#[test]
fn a_volume_that_nobody_can_reach_is_not_judged_and_the_worst_comes_first() {
    let mut limping = node("db/iscsi");
    limping.requests = hanging(45.0);
    let ejected = UnitDescription {
        ejected: true,
        write_protected: true,
        ..UnitDescription::default()
    };
    let mut described = described(limping, Some(ejected));
    let found = Verdict::of(&described);
    let order: Vec<Health> = found.reasons.iter().map(|reason| reason.health).collect();
    assert_eq!(order, [Health::Down, Health::Degraded, Health::Degraded]);
    assert_eq!(found.health, Health::Down);
    described
        .volumes
        .values_mut()
        .for_each(|volume| volume.uuid = None);
    assert_eq!(Verdict::of(&described), Verdict::default());
}
