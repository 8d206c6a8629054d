//! `sanstone show`: what a running `serve` or `attach` serves, to whom, and its statistics.

use std::{
    fmt::{self, Display},
    path::PathBuf,
};

use ::lab::report::grouped;
use clap::Args;
use node::{
    description::{
        Attached, CacheDescription, Commands, Description, MirrorDescription, Node, PathSession,
        ReportedSession, ReportedTarget, UnitDescription, Volume,
    },
    health::Verdict,
};

use crate::{
    admin::{self, AdminCall, DaemonAddress},
    failure::VerbFailure,
    output::{self, OutputFile},
    quantity::{bytes, seconds},
    status,
};

#[derive(Args)]
pub(crate) struct ShowCall {
    #[command(flatten)]
    place: DaemonAddress,
    /// Write JSON to FILE instead; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Shows the daemon selected by `call`.
pub(crate) fn run(call: &ShowCall) -> Result<(), VerbFailure> {
    let state = call.place.state()?;
    let Some(json) = &call.json else {
        let description: Description = admin::ask(&state, AdminCall::Show)?;
        return Ok(output::print(Shown(&description))?);
    };
    let mut file = OutputFile::open_or_standard(json)?;
    let description: Description = admin::ask(&state, AdminCall::Show)?;
    let text = serde_json::to_string_pretty(&description)?;
    Ok(file.append(&format!("{text}\n"))?)
}

/// Formats a description for people.
struct Shown<'a>(&'a Description);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Description {
            configuration,
            state,
            lanes,
            volumes,
            targets,
            attached,
            sessions,
            ..
        } = self.0;
        let Description {
            product_version,
            pid,
            ..
        } = self.0;
        writeln!(f, "process       {pid}, Sanstone {product_version}")?;
        writeln!(f, "configuration {configuration}")?;
        writeln!(f, "state         {state}")?;
        writeln!(f, "lanes         {lanes}")?;
        let verdict = Verdict::of(self.0);
        write!(f, "health        {}", status::lines(&verdict))?;
        for (name, volume) in volumes {
            writeln!(f)?;
            show_volume(f, name, volume)?;
        }
        for (name, target) in targets {
            writeln!(f)?;
            show_target(f, name, target)?;
        }
        writeln!(f)?;
        match (attached, &**sessions) {
            (Some(attached), _) => show_attached(f, attached),
            (None, []) => writeln!(f, "no sessions"),
            (None, sessions) => sessions.iter().try_for_each(|it| show_session(f, it)),
        }
    }
}

fn show_volume(f: &mut fmt::Formatter<'_>, name: &str, volume: &Volume) -> fmt::Result {
    match &volume.uuid {
        Some(uuid) => {
            writeln!(f, "volume {name}  {uuid}")?;
            if let (Some(naa), Some(serial)) = (&volume.naa, &volume.serial) {
                writeln!(f, "  /dev/disk/by-id/wwn-0x{naa}, serial number {serial}")?;
            }
        }
        None => writeln!(f, "volume {name}  not served")?,
    }
    show_node(f, &volume.tree, 1)?;
    for (kind, commands) in &volume.commands {
        write!(f, "  {}", CommandTimes(kind, commands))?;
    }
    let Some(unit) = &volume.unit else {
        return Ok(());
    };
    show_unit(f, unit)
}

/// A line about the commands of a kind: how long one of them took here, and in which stages. An initiator adds the
/// network and its own part.
struct CommandTimes<'a>(&'a str, &'a Commands);

impl Display for CommandTimes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// In the order of a command's life; the sums are by name.
        const STAGES: [&str; 4] = ["transfer", "queue", "volume", "reply"];
        let CommandTimes(kind, commands) = self;
        let name = match *kind {
            "other" => "flush or discard",
            kind => kind,
        };
        let mean = |stage: &str| {
            let sum_us = commands.sum_us.get(stage).copied().unwrap_or_default();
            seconds(sum_us / 1e6 / commands.commands.max(1) as f64)
        };
        write!(f, "a {name} takes {} here:", mean("total"))?;
        // Only a write has data to wait for.
        let stages = STAGES
            .iter()
            .filter(|stage| **stage != "transfer" || *kind == "write");
        for (index, stage) in stages.enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma} {stage} {}", mean(stage))?;
        }
        writeln!(f, " (mean of {})", grouped(commands.commands))
    }
}

fn show_node(f: &mut fmt::Formatter<'_>, node: &Node, depth: usize) -> fmt::Result {
    let indent = "  ".repeat(depth);
    write!(f, "{indent}{}", node.kind)?;
    // The heading already has the volume's own name.
    if let (Some(name), true) = (&node.name, depth > 1) {
        write!(f, " (volume {name})")?;
    }
    if let Some(memory) = node.memory_bytes {
        write!(f, " of {}", bytes(memory))?;
    }
    if let Some(place) = &node.place {
        write!(f, " {place}")?;
    }
    match node.size_bytes {
        Some(size) => write!(f, ", {}", bytes(size))?,
        None => write!(f, ", not open")?,
    }
    if let Some(space) = &node.space {
        write!(f, ", {} allocated", bytes(space.allocated_bytes))?;
    }
    if node.read_only {
        write!(f, ", read-only")?;
    }
    if let Some(claim) = &node.claim {
        match &claim.error {
            None => write!(f, ", claimed")?,
            Some(error) => write!(f, ", claim lost: {error}")?,
        }
    }
    if let Some(session) = &node.session {
        write!(f, ", {}", session.state)?;
        if let Some(address) = &session.address {
            write!(f, " at {address}")?;
        }
        if session.relogins > 0 {
            write!(f, " for the {} time", ordinal(session.relogins + 1))?;
        }
        if let Some(error) = &session.error {
            write!(f, ": {error}")?;
        }
    }
    writeln!(f)?;
    for session in &node.sessions {
        show_path(f, &indent, session)?;
    }
    for (kind, requests) in &node.requests {
        write!(
            f,
            "{indent}    {kind:<8} {:>12}  {:>10}  median {} p99 {} longest {}",
            grouped(requests.requests),
            bytes(requests.bytes),
            seconds(requests.median_us / 1e6),
            seconds(requests.p99_us / 1e6),
            seconds(requests.max_us / 1e6),
        )?;
        if requests.errors > 0 {
            write!(f, "  {} failed", grouped(requests.errors))?;
        }
        if requests.unanswered > 0 {
            write!(f, "  {} unanswered", grouped(requests.unanswered))?;
        }
        if requests.pending > 0 {
            let oldest = seconds(requests.oldest_s.unwrap_or_default());
            write!(
                f,
                "  {} in progress for up to {oldest}",
                grouped(requests.pending)
            )?;
        }
        writeln!(f)?;
    }
    if let Some(cache) = &node.cache {
        show_cache(f, &indent, cache)?;
    }
    if let Some(mirror) = &node.mirror {
        show_mirror(f, &indent, mirror)?;
    }
    let mut children = node.children.iter();
    children.try_for_each(|child| show_node(f, child, depth + 1))
}

fn show_path(f: &mut fmt::Formatter<'_>, indent: &str, session: &PathSession) -> fmt::Result {
    write!(f, "{indent}    session ")?;
    if let Some(local) = &session.local {
        write!(f, "from {local} ")?;
    }
    write!(f, "at {}, on lane {}, ", session.portal, session.lane)?;
    match &session.error {
        None => writeln!(f, "{}", session.state),
        Some(error) => writeln!(f, "{}: {error}", session.state),
    }
}

fn show_cache(f: &mut fmt::Formatter<'_>, indent: &str, cache: &CacheDescription) -> fmt::Result {
    let reads = cache.hits + cache.late_hits + cache.misses;
    write!(f, "{indent}    hits     {:>12}", grouped(cache.hits))?;
    if reads > 0 {
        let percent = cache.hits as f64 * 100.0 / reads as f64;
        write!(f, "  {percent:>8.1} %")?;
    }
    writeln!(
        f,
        "  late {} misses {} holding {}",
        grouped(cache.late_hits),
        grouped(cache.misses),
        bytes(cache.held_bytes),
    )?;
    match cache.read_ahead_bytes {
        0 => Ok(()),
        ahead => writeln!(
            f,
            "{indent}    ahead    {:>12}  used {} wasted {}",
            bytes(ahead),
            bytes(cache.read_ahead_used_bytes),
            bytes(cache.read_ahead_wasted_bytes),
        ),
    }
}

fn show_mirror(
    f: &mut fmt::Formatter<'_>,
    indent: &str,
    mirror: &MirrorDescription,
) -> fmt::Result {
    let state = match (&mirror.error, mirror.in_sync) {
        (Some(error), _) => error,
        (None, true) => "in sync",
        (None, false) => "DEGRADED: a copy is not in sync",
    };
    writeln!(f, "{indent}    {state}, epoch {}", mirror.epoch)?;
    for copy in &mirror.copies {
        write!(f, "{indent}    {}: {}", copy.name, copy.state)?;
        match &copy.error {
            None => writeln!(f)?,
            Some(error) => writeln!(f, ": {error}")?,
        }
    }
    if let Some(error) = &mirror.register_error {
        writeln!(f, "{indent}    the register does not change: {error}")?;
    }
    writeln!(
        f,
        "{indent}    marked {}  in doubt {}  left to fill {}",
        bytes(mirror.marked_bytes),
        bytes(mirror.in_doubt_bytes),
        bytes(mirror.left_to_fill_bytes),
    )
}

fn show_unit(f: &mut fmt::Formatter<'_>, unit: &UnitDescription) -> fmt::Result {
    if let Some(reservation) = &unit.reservation {
        let holder = reservation.holder.as_deref().unwrap_or("all registrants");
        writeln!(f, "  reserved: {}, by {holder}", reservation.r#type)?;
    }
    if let Some(port) = &unit.reserved_by {
        writeln!(f, "  reserved: RESERVE (6), by {port}")?;
    }
    for registration in &unit.registrations {
        let port = &registration.initiator_port;
        let target_port = registration.target_port;
        let key = &registration.key;
        writeln!(f, "  registered: {key} {port} at target port {target_port}")?;
    }
    if unit.write_protected {
        writeln!(f, "  write-protected by an initiator (SWP)")?;
    }
    if unit.ejected {
        writeln!(f, "  ejected")?;
    }
    if let Some(sanitize) = &unit.sanitize {
        writeln!(f, "  sanitize: {sanitize}")?;
    }
    Ok(())
}

fn show_target(f: &mut fmt::Formatter<'_>, name: &str, target: &ReportedTarget) -> fmt::Result {
    writeln!(f, "target {name}")?;
    for group in &target.portal_groups {
        writeln!(
            f,
            "  portals {} (group {})",
            group.portals.join(", "),
            group.tag
        )?;
    }
    if let Some(to) = &target.redirect {
        writeln!(f, "  initiators are redirected to {to}")?;
    }
    for (number, lun) in &target.luns {
        write!(f, "  LUN {number}  {}", lun.volume)?;
        if lun.read_only {
            write!(f, ", read-only")?;
        }
        if lun.removable {
            write!(f, ", removable")?;
        }
        writeln!(f)?;
    }
    let allowed = match &target.allow {
        None => "everybody".to_owned(),
        Some(names) => names.join(", "),
    };
    write!(f, "  allowed {allowed}")?;
    if !target.allow_from.is_empty() {
        write!(f, " from {}", target.allow_from.join(", "))?;
    }
    writeln!(f, "{}", if target.chap { ", with CHAP" } else { "" })
}

fn show_attached(f: &mut fmt::Formatter<'_>, attached: &Attached) -> fmt::Result {
    let Attached {
        volume,
        front,
        place,
        read_only,
        ..
    } = attached;
    let how = match &**front {
        "fuse" => "as the file",
        _ => "to NBD clients at",
    };
    write!(f, "attached {volume} {how} {place}")?;
    writeln!(f, "{}", if *read_only { ", read-only" } else { "" })
}

fn show_session(f: &mut fmt::Formatter<'_>, session: &ReportedSession) -> fmt::Result {
    writeln!(f, "session {}", session.initiator)?;
    let target = session.target.as_deref().unwrap_or("(discovery)");
    writeln!(
        f,
        "  {target} (group {}) from {} at {}",
        session.portal_group_tag, session.peer, session.portal
    )?;
    let digests = match (session.header_digest, session.data_digest) {
        (false, false) => "no digests",
        (true, false) => "header digests",
        (false, true) => "data digests",
        (true, true) => "header and data digests",
    };
    writeln!(
        f,
        "  for {}, on lane {}, {digests}, {} outstanding{}",
        seconds(session.age_s),
        session.lane,
        session.outstanding,
        match session.secret.as_deref() {
            None => "",
            Some("old") => ", with the old secret",
            Some(_) => ", with a secret that is not accepted any more",
        }
    )
}

fn ordinal(number: u64) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_end_as_they_are_spoken() {
        let spoken = [1, 2, 3, 4, 11, 12, 13, 21, 112].map(ordinal);
        let expected = [
            "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th",
        ];
        assert_eq!(spoken, expected);
    }

    #[test]
    fn the_stages_of_a_command_are_means_in_their_order() {
        let sums = [
            ("reply", 24.0),
            ("volume", 900.0),
            ("queue", 6.0),
            ("transfer", 3000.0),
            ("total", 3930.0),
        ];
        let commands = Commands {
            commands: 3,
            bytes: 3 << 12,
            sum_us: sums.map(|(stage, us)| (stage.to_owned(), us)).into(),
        };
        let line = |kind| CommandTimes(kind, &commands).to_string();
        assert_eq!(
            line("write"),
            "a write takes 1.3 ms here: transfer 1.0 ms, queue 2.0 µs, volume 300 µs, reply 8.0 µs (mean of 3)\n"
        );
        assert!(line("read").contains(" here: queue 2.0 µs, volume"));
        assert!(line("other").starts_with("a flush or discard takes "));
    }
}
