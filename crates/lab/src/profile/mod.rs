//! Profiles define what `sanstone lab run` does, as TOML that users copy and change. A profile's kind is
//! code: how it measures and what it concludes. Everything else is in the file. Its table `quick` overrides
//! keys for `--quick`, which ends within a minute.

mod block;
mod commit;
mod effectiveness;
mod iozone;
mod journal;
mod layers;
mod medium;
mod oltp;
mod queue;
mod runner;
mod seen;
mod share;
mod split;
mod sql_scan;
#[cfg(test)]
mod tests;

use std::{fmt::Display, ops::RangeInclusive, path::Path};

use serde::de::DeserializeOwned;
use volume::config::{Size, Time};

use block::Block;
pub(crate) use journal::Journal;
pub(crate) use runner::Runner;

use crate::{
    LabError, LabResult,
    drive_stats::RowSource,
    load::{Spacing, Stop, Workload},
    progress::ProgressOutput,
    report::Findings,
    statistics::SAMPLES_MIN,
    target::{MeasuredDisk, Needs},
};

/// The built-in profiles: names and texts.
pub const BUILT_IN: [(&str, &str); 8] = [
    ("queue", include_str!("queue.toml")),
    ("iozone", include_str!("iozone.toml")),
    ("effectiveness", include_str!("effectiveness.toml")),
    ("commit", include_str!("commit.toml")),
    ("sql-scan", include_str!("sql-scan.toml")),
    ("sql-mariadb", include_str!("sql-mariadb.toml")),
    ("sql-postgresql", include_str!("sql-postgresql.toml")),
    ("oltp", include_str!("oltp.toml")),
];

/// The kinds of profiles.
const KINDS: [&str; 6] = [
    "queue",
    "iozone",
    "effectiveness",
    "commit",
    "sql-scan",
    "oltp",
];

/// A profile, ready to run.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its built-in name, or that of its file.
    pub name: String,
    /// Its full settings, to check whether two runs are of the same profile.
    pub(crate) text: serde_json::Value,
    settings: ProfileSettings,
}

#[derive(Clone, Debug)]
enum ProfileSettings {
    Queue(queue::QueueSettings),
    Iozone(iozone::Iozone),
    Effectiveness(effectiveness::Effectiveness),
    Commit(commit::Commit),
    SqlScan(sql_scan::SqlScan),
    Oltp(oltp::Oltp),
}

/// Something to compare; a single number says how fast it went.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) work: CaseWork,
    /// Its maximum duration.
    pub(crate) time: Time,
}

/// The work of a case.
#[derive(Clone, Debug)]
pub(crate) enum CaseWork {
    Load(Workload),
    Commits(commit::Inserts),
    Statements(sql_scan::Sweep),
}

/// The behaviour of a profile's kind.
pub(crate) trait Experiment {
    /// What it measures, in one sentence.
    fn about(&self) -> &str;

    /// Examines the data it will use, before anything is opened.
    fn survey(&self, _stop: &Stop, _progress: ProgressOutput) -> LabResult<()> {
        Ok(())
    }

    /// Whether its disks are opened as volumes. If not, it gets [`Runner::beds`].
    fn opens_volumes(&self) -> bool {
        true
    }

    /// Its requirements.
    fn needs(&self) -> Needs;

    /// Refuses disks on which it cannot run, before anything is written to any of them.
    fn check_disks(&self, _targets: &[MeasuredDisk]) -> LabResult<()> {
        Ok(())
    }

    /// Approximate number of loads it runs.
    fn steps(&self) -> usize;

    /// Runs everything and returns the findings.
    fn run(&self, runner: &mut Runner<'_>) -> LabResult<Findings>;

    /// The cases that `lab compare` repeats.
    fn cases(&self) -> Vec<Case>;

    /// Whether its reads are verified against what it wrote.
    fn verifies(&self) -> bool;

    /// Rejects invalid numbers; the message says what to write instead.
    fn check(&self) -> std::result::Result<(), String>;
}

impl Profile {
    /// Loads the built-in profile of this name, or the one in this file.
    ///
    /// # Errors
    /// There is none, or it is invalid; the message says what to write instead.
    pub fn load(name: &str, quick: bool) -> LabResult<Profile> {
        let built_in = BUILT_IN.iter().find(|(built_in, _)| *built_in == name);
        if let Some((_, text)) = built_in {
            return Profile::parse(name, text, quick);
        }
        let path = Path::new(name);
        if !name.ends_with(".toml") {
            let names = BUILT_IN.map(|(name, _)| name).join(", ");
            return Err(LabError::Call(format!(
                "there is no profile \"{name}\": write one of {names}, or the path of a .toml file"
            )));
        }
        let text = crate::input::read(path).map_err(|source| LabError::File {
            path: path.to_owned(),
            source,
        })?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        Profile::parse(&stem, &text, quick)
    }

    /// Parses the profile in `text`.
    fn parse(name: &str, text: &str, quick: bool) -> LabResult<Profile> {
        let wrong = |error: toml::de::Error| {
            LabError::Call(format!("profile {name}: {}", error.to_string().trim_end()))
        };
        let mut table: toml::Table = toml::from_str(text).map_err(wrong)?;
        if let Some(toml::Value::Table(replaced)) = table.remove("quick") {
            if quick {
                table.extend(replaced);
            }
        }
        let text = serde_json::to_value(&table).unwrap_or_default();
        let settings = ProfileSettings::parse(table)
            .map_err(|message| LabError::Call(format!("profile {name}: {message}")))?;
        let profile = Profile {
            name: name.to_owned(),
            text,
            settings,
        };
        let needs = profile.experiment().needs();
        if needs.size_bytes % 4096 != 0 || needs.size_bytes == 0 {
            return Err(LabError::Call(format!(
                "profile {name}: {} bytes are not whole blocks of 4 KiB; write size = \"1GiB\"",
                needs.size_bytes
            )));
        }
        let check = profile.experiment().check();
        check.map_err(|message| LabError::Call(format!("profile {name}: {message}")))?;
        Ok(profile)
    }

    /// Uses the data of `source` instead of generated data.
    ///
    /// # Errors
    /// The profile uses no data; that is found out before there is a source. Or there is none.
    pub fn set_data(&mut self, source: impl FnOnce() -> LabResult<RowSource>) -> LabResult<()> {
        let ProfileSettings::SqlScan(sql_scan) = &mut self.settings else {
            return Err(LabError::Call(format!(
                "--data: the profile {} loads no rows; use sql-scan",
                self.name
            )));
        };
        let source = source()?;
        self.text["data"] = format!("{source:?}").into();
        sql_scan.set_data(source);
        Ok(())
    }

    /// What it measures, in one sentence.
    pub fn about(&self) -> &str {
        self.experiment().about()
    }

    pub(crate) fn experiment(&self) -> &dyn Experiment {
        match &self.settings {
            ProfileSettings::Queue(queue) => queue,
            ProfileSettings::Iozone(iozone) => iozone,
            ProfileSettings::Effectiveness(effectiveness) => effectiveness,
            ProfileSettings::Commit(commit) => commit,
            ProfileSettings::SqlScan(sql_scan) => sql_scan,
            ProfileSettings::Oltp(oltp) => oltp,
        }
    }
}

impl ProfileSettings {
    fn parse(mut table: toml::Table) -> std::result::Result<ProfileSettings, String> {
        let kinds = KINDS.map(|kind| format!("\"{kind}\"")).join(", ");
        let kind = match table.remove("kind") {
            Some(toml::Value::String(kind)) => kind,
            Some(other) => return Err(format!("kind = {other}: write one of {kinds}")),
            None => return Err(format!("kind is missing: write kind = with one of {kinds}")),
        };
        match kind.as_str() {
            "queue" => settings(&table).map(ProfileSettings::Queue),
            "iozone" => settings(&table).map(ProfileSettings::Iozone),
            "effectiveness" => settings(&table).map(ProfileSettings::Effectiveness),
            "commit" => settings(&table).map(ProfileSettings::Commit),
            "sql-scan" => settings(&table).map(ProfileSettings::SqlScan),
            "oltp" => settings(&table).map(ProfileSettings::Oltp),
            other => Err(format!("kind = \"{other}\": write one of {kinds}")),
        }
    }
}

/// Deserializes the settings in `table`; an error message starts with the key it is about.
fn settings<T: DeserializeOwned>(table: &toml::Table) -> std::result::Result<T, String> {
    // Only errors from text have positions, which lead to the key.
    let text = toml::to_string(table).map_err(|error| error.to_string())?;
    toml::from_str(&text).map_err(|error| {
        let place = error.span().filter(|span| *span != (0..text.len()));
        match place.and_then(|span| key_at(&text, span.start)) {
            Some(key) => format!("{key}: {}", error.message()),
            None => error.message().to_owned(),
        }
    })
}

/// The key at this byte of a text that we generated: every key is on its own line, and those of a table
/// follow its header.
fn key_at(text: &str, at: usize) -> Option<String> {
    let line_end = text[at..].find('\n').map_or(text.len(), |end| at + end);
    let mut lines = text[..line_end].lines().rev();
    let is_head = |line: &&str| line.starts_with('[');
    let head = |line: &str| line.trim_matches(['[', ']']).to_owned();
    let line = lines.next()?;
    if is_head(&line) {
        return Some(head(line));
    }
    let (key, _) = line.split_once('=')?;
    let table = lines.find(is_head).map(|line| head(line) + ".");
    Some(table.unwrap_or_default() + key.trim())
}

/// More outstanding I/Os must be a typing error.
const OUTSTANDING_MAX: usize = 65_536;
/// Targets do not accept more sessions than this.
const SESSIONS_MAX: usize = 1024;

fn within<T: PartialOrd + Display>(
    what: &str,
    value: T,
    range: RangeInclusive<T>,
) -> std::result::Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(format!(
        "{what}: {value} is out of range; write {least} to {most}"
    ))
}

fn check_time(time: Time) -> std::result::Result<(), String> {
    within(
        "time, in milliseconds",
        time.duration().as_millis(),
        1..=86_400_000,
    )
}

/// What to know before acting on figures of so few rounds that they have no interval: to be put after them.
fn too_few(rounds: usize) -> String {
    match rounds {
        1 => " (one round: run it without --quick before you act on it)".into(),
        rounds => {
            format!(" ({rounds} rounds: {SAMPLES_MIN} or more give an interval; raise `rounds`)")
        }
    }
}

/// The I/O settings that most profiles share.
fn workload(block: &Block, read_percent: u64, span: Size) -> Workload {
    Workload {
        read_percent,
        span_bytes: Some(span.bytes()),
        sizes: block.sizes(),
        ..Workload::closed(crate::load::Operation::Read, 0, 1)
    }
}

fn poisson() -> Spacing {
    Spacing::Poisson
}
