//! One word on what is served, and the reasons: what is broken, what limps, and what to do about each. It is worked out from a
//! [`Description`] alone, so everybody who has one comes to the same verdict.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
};

use serde::{Deserialize, Serialize};
use volume::SHOWN_WITHIN;

use crate::description::{Attached, Description, Failure, MirrorCopy, Node, NodeSession, Volume};

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
    /// Requests that fail.
    Failure,
    /// The attachment to this machine.
    Attachment,
    /// The path of a file.
    Place,
    /// What a file system has left.
    Space,
    /// The state directory.
    State,
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
                judge(&volume.tree, false, &mut reasons);
            }
        }
        if let Some(error) = &description.state_error {
            reasons.push(Reason {
                health: Health::Degraded,
                about: About::State,
                of: format!("the state directory {}", description.state),
                what: format!(
                    "reservations, owners and lengths that change cannot be kept: {error}"
                ),
                mend: "make room there, or have it written to again".to_owned(),
            });
        }
        judge_secrets(description, &mut reasons);
        if let Some(attached) = &description.attached {
            judge_attachment(attached, &mut reasons);
        }
        Verdict::for_reasons(reasons)
    }

    /// Of one volume, whoever can reach it.
    pub fn of_volume(name: &str, volume: &Volume) -> Verdict {
        let mut reasons = Vec::new();
        judge_unit(name, volume, &mut reasons);
        judge(&volume.tree, false, &mut reasons);
        Verdict::for_reasons(reasons)
    }

    /// For these reasons.
    pub fn for_reasons(mut reasons: Vec<Reason>) -> Verdict {
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

fn judge_attachment(attached: &Attached, reasons: &mut Vec<Reason>) {
    let mut add = |health, what: String, mend: &str| {
        reasons.push(Reason {
            health,
            about: About::Attachment,
            of: attached.volume.clone(),
            what,
            mend: mend.to_owned(),
        });
    };
    if let Some(directory) = &attached.broken_mount {
        let what = format!(
            "the file system at {directory} takes no writes any more (read-only, or shut down)"
        );
        let mend = "`dmesg` says why; stop what uses it, and attach the volume anew (`systemctl restart`), which mounts it again";
        add(Health::Down, what, mend);
    }
    if attached.is_stopping {
        let what = "it is to end, and waits until nobody uses it".to_owned();
        let mend = "the log says who does; a second SIGTERM ends it at once";
        add(Health::Degraded, what, mend);
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
    if let Some(error) = &unit.error {
        let what = format!("every request fails, as its end cannot be read: {error}");
        let mend = "look at the disk or the target below; somebody else may have reserved it";
        add(Health::Down, &what, mend);
    }
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

/// A node, and everything below it. A mirror goes on without what `is_copy`; whether it does is its own matter.
fn judge(node: &Node, is_copy: bool, reasons: &mut Vec<Reason>) {
    let mut add = |about, health, what: String, mend: &str| {
        let place = node.place.as_ref().map(|place| format!(" ({place})"));
        reasons.push(Reason {
            health: match is_copy {
                true => Health::Degraded.min(health),
                false => health,
            },
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
    judge_sessions(node, is_copy, &mut add);
    judge_requests(node, &mut add);
    judge_failure(node, &mut add);
    judge_place(node, &mut add);
    judge_space(node, &mut add);
    for child in &node.children {
        judge(child, is_copy || node.mirror.is_some(), reasons);
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
    } else if is_away(node) {
        // They count as in sync until `copy_timeout` is over.
        let what = "none of its copies can be reached: requests wait for one";
        let mend = "look at the targets and the network; it goes on by itself";
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
        let mend = "bring the register back (a state directory needs room on its file system); if it is lost for good, stop this, name a new one and run `sanstone volume take-over`";
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
    let counts = |copy: &&MirrorCopy| matches!(&*copy.state, "in sync" | "in trouble");
    let is_last = mirror.copies.iter().filter(counts).count() == 1;
    for copy in missing {
        let why = copy.error.as_ref().map(|error| format!(": {error}"));
        let what = format!("{} is {}{}", copy.name, copy.state, why.unwrap_or_default());
        let mend = match &*copy.state {
            "being filled" | "being fenced" if copy.error.is_none() => "it ends by itself",
            // It answers: what it lacks was written before this began.
            "out" if copy.error.is_none() => "it is taken back and filled by itself",
            "in trouble" if is_last => {
                "look at that copy and its network: it alone has everything, and nothing takes its place"
            }
            _ => {
                "look at that copy and its network; once that is mended it is filled by itself, and if it is lost, `sanstone \
                 apply` or `volume replace` gives its place to a blank disk"
            }
        };
        add(About::Mirror, Health::Degraded, what, mend);
    }
}

/// Whether nothing below it can be reached.
fn is_away(node: &Node) -> bool {
    let has_session = |session: &NodeSession| session.state == "logged in";
    let is_shut = !node.open || !node.session.as_ref().is_none_or(has_session);
    is_shut || !node.children.is_empty() && node.children.iter().all(is_away)
}

fn judge_sessions(node: &Node, is_copy: bool, add: &mut impl FnMut(About, Health, String, &str)) {
    let Some(session) = &node.session else { return };
    if node.open && session.state != "logged in" {
        let why = session.error.as_deref().unwrap_or("no reason is known");
        let waits = if is_copy {
            ""
        } else {
            "requests wait for it, and "
        };
        let mend = format!("look at the target and the network; {waits}it logs in by itself");
        add(
            About::Path,
            Health::Down,
            format!("no session: {why}"),
            &mend,
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
        let several = match (requests.pending, &kind[..]) {
            (1, _) => "",
            (_, "flush") => "es",
            _ => "s",
        };
        let what = format!(
            "{} {kind}{several} in progress, the oldest for {oldest_s:.0} s",
            requests.pending
        );
        let mend = "look at the disk or the target below: it has not answered";
        add(About::Request, Health::Degraded, what, mend);
    }
}

/// Where requests fail, at the lowest node that says so: those above it have failed for the same.
fn judge_failure(node: &Node, add: &mut impl FnMut(About, Health, String, &str)) {
    let Some(failure) = &node.failure else { return };
    // A node may refuse writes because of another failure below it.
    let is_told_below = |below: &Failure| below.may_have_lost || !failure.may_have_lost;
    if node
        .children
        .iter()
        .any(|child| fails(child, &is_told_below))
    {
        return;
    }
    let Failure { kind, error, .. } = failure;
    let (what, mend) = match failure.may_have_lost {
        true => (
            format!("writes that were acknowledged may be lost, and it takes no others: {error}"),
            "mend what is below it, check the data, and start this again, which opens it anew",
        ),
        false => (
            format!("its last {kind} has failed: {error}"),
            "look at the disk or the target below; it is over when such a request succeeds",
        ),
    };
    let health = match failure.is_gone {
        true => Health::Down,
        false => Health::Degraded,
    };
    add(About::Failure, health, what, mend);
}

/// Whether requests fail so at the node or below it.
fn fails(node: &Node, so: &impl Fn(&Failure) -> bool) -> bool {
    node.failure.as_ref().is_some_and(so) || node.children.iter().any(|child| fails(child, so))
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

fn judge_place(node: &Node, add: &mut impl FnMut(About, Health, String, &str)) {
    if node.lost_path {
        let what = "its file was removed, renamed or replaced: what is served is lost when this stops, unless the file has \
                    another name";
        let mend = "move it back; or copy the volume, through an initiator or from /proc/PID/fd, before anything stops it";
        add(About::Place, Health::Degraded, what.to_owned(), mend);
    }
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
