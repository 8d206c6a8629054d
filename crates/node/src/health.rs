//! One word on what is served, and the reasons: what is broken, what limps, and what to do about each. It is worked out from a
//! [`Description`] alone, so everybody who has one comes to the same verdict.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
};

use serde::{Deserialize, Serialize};
use volume::SHOWN_WITHIN;

use crate::description::{Description, Node, Volume};

/// A request that has been in progress for so long hangs.
const HANGS_S: u64 = 3;
/// At what resolution its age is known.
const AGE_S: u64 = 1;
const _: () = assert!(HANGS_S + AGE_S < SHOWN_WITHIN.as_secs());
/// Less free space than this part of a file's length, for a file that may still need it, is worth a warning.
const SCARCE_PART: u64 = 20;
/// With less than this no further request is sure to find space.
const FULL_BYTES: u64 = 16 << 20;

/// How well everything works; the worst that there is counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// As configured.
    #[default]
    Ok,
    /// Everything is served, but something is slow, is missing a spare, or soon ends.
    Degraded,
    /// Something is not served.
    Down,
}

impl Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Health::Ok => "ok",
            Health::Degraded => "degraded",
            Health::Down => "down",
        })
    }
}

/// What a [`Reason`] is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// Something that this release has no word for.
    #[default]
    Other,
    /// A node that is not open.
    Open,
    /// What initiators have set for all.
    Unit,
    /// A claim on disks.
    Claim,
    /// A mirror's copies.
    Mirror,
    /// The sessions and paths of a remote disk.
    Path,
    /// What keeps other owners from a disk that is claimed.
    Fence,
    /// Requests that hang.
    Request,
    /// What a file system has left.
    Space,
    /// Secrets with which initiators have logged in.
    Secret,
}

/// Why it is not [`Health::Ok`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// What it makes of the whole.
    pub health: Health,
    /// What it is about.
    #[serde(default)]
    pub about: About,
    /// Where: a volume, the path of a node of its tree, or a target.
    pub of: String,
    /// What is the case.
    pub what: String,
    /// What to do.
    pub mend: String,
}

impl Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reason {
            health,
            of,
            what,
            mend,
            ..
        } = self;
        write!(f, "{health}: {of}: {what}; {mend}")
    }
}

/// The health of everything, with the reasons, worst first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// That of the worst reason.
    pub health: Health,
    /// None if it is [`Health::Ok`].
    pub reasons: Vec<Reason>,
}

impl Verdict {
    /// Of everything that is served or attached. A volume that nobody can reach is not judged.
    pub fn of(description: &Description) -> Verdict {
        let mut reasons = Vec::new();
        for (name, volume) in &description.volumes {
            if volume.uuid.is_some() || description.attached.is_some() {
                judge_unit(name, volume, &mut reasons);
                judge(&volume.tree, &mut reasons);
            }
        }
        judge_secrets(description, &mut reasons);
        Verdict::for_reasons(reasons)
    }

    /// Of one volume, whoever can reach it.
    pub fn of_volume(name: &str, volume: &Volume) -> Verdict {
        let mut reasons = Vec::new();
        judge_unit(name, volume, &mut reasons);
        judge(&volume.tree, &mut reasons);
        Verdict::for_reasons(reasons)
    }

    fn for_reasons(mut reasons: Vec<Reason>) -> Verdict {
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.health));
        Verdict {
            health: reasons
                .iter()
                .map(|reason| reason.health)
                .max()
                .unwrap_or_default(),
            reasons,
        }
    }
}

/// Who has not changed to a new secret yet.
fn judge_secrets(description: &Description, reasons: &mut Vec<Reason>) {
    let mut counts: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    for session in &description.sessions {
        if let Some(secret) = &session.secret {
            let target = session.target.as_deref().unwrap_or("discovery");
            *counts
                .entry((target, &session.initiator, secret))
                .or_default() += 1;
        }
    }
    for ((target, initiator, secret), sessions) in counts {
        let plural = if sessions == 1 { "" } else { "s" };
        let (what, mend) = match secret {
            "old" => (
                "still with the old secret",
                "give it the new one and have it log in again; then remove `old_chap`",
            ),
            _ => (
                "with a secret that is not accepted any more",
                "its next login fails unless it knows the new one: write the old one as `old_chap`, or change it there",
            ),
        };
        reasons.push(Reason {
            health: Health::Degraded,
            about: About::Secret,
            of: target.to_owned(),
            what: format!("{sessions} session{plural} of {initiator} {what}"),
            mend: mend.to_owned(),
        });
    }
}

/// What initiators have set for all.
fn judge_unit(name: &str, volume: &Volume, reasons: &mut Vec<Reason>) {
    let Some(unit) = &volume.unit else { return };
    let mut add = |health, what: &str, mend: &str| {
        reasons.push(Reason {
            health,
            about: About::Unit,
            of: name.to_owned(),
            what: what.to_owned(),
            mend: mend.to_owned(),
        });
    };
    if unit.write_protected {
        let mend =
            "an initiator that may write takes it back: `sdparm --clear SWP --save /dev/sdX`";
        add(
            Health::Degraded,
            "write-protected by an initiator (SWP)",
            mend,
        );
    }
    if unit.ejected {
        let mend = "an initiator loads it again: `sg_start --load /dev/sdX`";
        add(Health::Down, "an initiator has ejected it", mend);
    }
    match unit.sanitize.as_deref() {
        Some("failed") => {
            let mend = "sanitize it again, or leave the failure mode: `sg_sanitize`";
            add(Health::Down, "a sanitize has failed", mend);
        }
        Some(running) => {
            let what = format!("a sanitize is {running}");
            add(Health::Down, &what, "it ends by itself");
        }
        None => {}
    }
}

/// A node, and everything below it.
fn judge(node: &Node, reasons: &mut Vec<Reason>) {
    let mut add = |about, health, what: String, mend: &str| {
        let place = node.place.as_ref().map(|place| format!(" ({place})"));
        reasons.push(Reason {
            health,
            about,
            of: format!("{}{}", node.path, place.unwrap_or_default()),
            what,
            mend: mend.to_owned(),
        });
    };
    if !node.open {
        let mend = "the log says why; `sanstone check` looks at the configuration";
        add(About::Open, Health::Down, "not open".to_owned(), mend);
    }
    if let Some(error) = node.claim.as_ref().and_then(|claim| claim.error.as_ref()) {
        let mend = "one daemon owns a stripe or concat: stop the other owner, then start this one again; if that one is gone, \
                    `sanstone volume take-over` comes first";
        add(
            About::Claim,
            Health::Down,
            format!("its claim is lost: {error}"),
            mend,
        );
    }
    judge_mirror(node, &mut add);
    judge_sessions(node, &mut add);
    judge_requests(node, &mut add);
    judge_space(node, &mut add);
    for child in &node.children {
        let before = reasons.len();
        judge(child, reasons);
        // The mirror above goes on without a copy. Whether it does is its own matter.
        for reason in reasons
            .iter_mut()
            .skip(before)
            .filter(|_| node.mirror.is_some())
        {
            reason.health = reason.health.min(Health::Degraded);
        }
    }
}

fn judge_mirror(node: &Node, add: &mut impl FnMut(About, Health, String, &str)) {
    let Some(mirror) = &node.mirror else { return };
    if let Some(error) = &mirror.error {
        let mend = "`sanstone volume status` has more; another owner keeps it until it ends";
        add(
            About::Mirror,
            Health::Down,
            format!("the mirror serves nothing: {error}"),
            mend,
        );
        return;
    }
    if !mirror.copies.iter().any(|copy| copy.state == "in sync") {
        let what = "no copy that is in sync answers: requests wait for it";
        let mend = "bring that copy back; what the others hold is older";
        add(About::Mirror, Health::Down, what.to_owned(), mend);
    }
    if let Some(error) = &mirror.register_error {
        let (health, what) = match mirror.copies.iter().any(|copy| copy.state == "in trouble") {
            true => (
                Health::Down,
                "a copy that has failed cannot leave, and requests wait",
            ),
            false => (Health::Degraded, "a copy cannot leave or return"),
        };
        let what = format!("the mirror's register does not change, so {what}: {error}");
        let mend = "bring the register back; if it is lost for good, stop this, name a new one and run `sanstone volume take-over`";
        add(About::Mirror, health, what, mend);
    }
    if mirror.in_doubt_bytes > 0 {
        let what = format!(
            "{} KiB may differ between the copies, and are being made equal",
            mirror.in_doubt_bytes.div_ceil(1024)
        );
        let mend = "it ends by itself; requests for them wait";
        add(About::Mirror, Health::Degraded, what, mend);
    }
    let missing = mirror.copies.iter().filter(|copy| copy.state != "in sync");
    for copy in missing {
        let why = copy.error.as_ref().map(|error| format!(": {error}"));
        let what = format!("{} is {}{}", copy.name, copy.state, why.unwrap_or_default());
        let mend = "look at that copy and its network; it is filled by itself when it is back, and if it is lost, `sanstone apply` or \
                    `volume replace` gives its place to a blank disk";
        add(About::Mirror, Health::Degraded, what, mend);
    }
}

fn judge_sessions(node: &Node, add: &mut impl FnMut(About, Health, String, &str)) {
    let Some(session) = &node.session else { return };
    if node.open && session.state != "logged in" {
        let why = session.error.as_deref().unwrap_or("no reason is known");
        let mend =
            "look at the target and the network; requests wait for it, and it logs in by itself";
        add(
            About::Path,
            Health::Down,
            format!("no session: {why}"),
            mend,
        );
        return;
    }
    if session.lacks_fence {
        let what = "its target has no persistent reservations, so nothing keeps another owner from writing to it";
        let mend = "serve it from a target that has them; until then, be sure that an old server is off before you take over";
        add(About::Fence, Health::Degraded, what.to_owned(), mend);
    }
    // Several sessions may go the same way.
    let mut told = BTreeSet::new();
    for path in &node.sessions {
        let (what, mend) = match &*path.state {
            "none" => {
                let why = path.error.as_deref().unwrap_or("no reason is known");
                let what = format!("the path to {} is lost: {why}", path.portal);
                let mend = "look at that portal and its network; it logs in by itself";
                (what, mend)
            }
            "silent" => {
                let what = format!("{} is silent: it does not answer a ping", path.portal);
                let mend =
                    "look at that portal and its network; it counts as lost after `ping_timeout`";
                (what, mend)
            }
            _ => continue,
        };
        if told.insert(what.clone()) {
            add(About::Path, Health::Degraded, what, mend);
        }
    }
}

/// Where requests hang, at the lowest node that has them: what is above it waits for the same.
fn judge_requests(node: &Node, add: &mut impl FnMut(About, Health, String, &str)) {
    if node.children.iter().any(hangs) {
        return;
    }
    for (kind, requests) in &node.requests {
        let Some(oldest_s) = requests.oldest_s.filter(|age_s| hangs_at(*age_s)) else {
            continue;
        };
        let what = format!(
            "{} {kind} in progress, the oldest for {oldest_s:.0} s",
            requests.pending
        );
        let mend = "look at the disk or the target below: it has not answered";
        add(About::Request, Health::Degraded, what, mend);
    }
}

/// Whether a request hangs at the node or below it.
fn hangs(node: &Node) -> bool {
    let ages_s = node
        .requests
        .values()
        .filter_map(|requests| requests.oldest_s);
    ages_s.into_iter().any(hangs_at) || node.children.iter().any(hangs)
}

fn hangs_at(age_s: f64) -> bool {
    age_s >= HANGS_S as f64
}

fn judge_space(node: &Node, add: &mut impl FnMut(About, Health, String, &str)) {
    let (Some(size), Some(space)) = (node.size_bytes, &node.space) else {
        return;
    };
    let needed = size.saturating_sub(space.allocated_bytes);
    if needed <= space.free_bytes {
        return;
    }
    let mib = |bytes: u64| bytes >> 20;
    let what = format!(
        "its file may still grow by {} MiB, and its file system has {} MiB left",
        mib(needed),
        mib(space.free_bytes)
    );
    let mend = "free space there, or move the file: without space, writes fail";
    if space.free_bytes < FULL_BYTES {
        add(About::Space, Health::Down, what, mend);
    } else if space.free_bytes < size / SCARCE_PART {
        add(About::Space, Health::Degraded, what, mend);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::{
        ClaimDescription, MirrorCopy, MirrorDescription, NodeSession, PathSession, ReportedSession,
        Requests, Space, UnitDescription, VERSION,
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
            read_only: false,
            claim: None,
            session: None,
            sessions: Vec::new(),
            cache: None,
            mirror: None,
            requests: BTreeMap::new(),
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
        let mut away = node("db/mirror/1/iscsi");
        away.session = Some(session("lost"));
        above.children.push(away);
        let (found, lines) = verdict(above);
        assert_eq!((found, lines.len()), (Health::Degraded, 2), "{lines:?}");
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
                "db/stripe/0/file: 32 write in progress, the oldest for 45 s",
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
}
