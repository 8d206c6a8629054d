//! The configuration file: settings of the daemon, volumes, targets. Everything that can be wrong
//! with it is found here and told with file, line and what to write.

mod access;
mod limits;
mod machine;
mod portals;
mod served;
mod syntax;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::anyhow;
use serde::{Deserialize, Deserializer, de};
use target::{Chap, Limits, PortalGroup, Prefix, Redirect, folded_name};
use toml::Spanned;
use volume::{
    config::{
        ChapAlgorithm, ChapSettings, ConfigError, Credentials, Node, Size, Time, Volumes, What,
    },
    graph::Graph,
};

use crate::{failure::Failure, log, state};

/// The port that IANA gave to iSCSI targets (RFC 7143 §4.2.7.1).
const PORT: u16 = 3260;
/// The longest iSCSI name, in bytes (RFC 7143 §4.2.7.1).
const NAME_BYTES_MAX: usize = 223;
const LUN_MAX: u32 = 16383;
/// Less would not hold a few commands for each lane.
const MEMORY_MIN_BYTES: u64 = 32 << 20;

/// Bounds on how long a silent peer is borne.
const TIME_MIN: Duration = Duration::from_secs(1);
const TIME_MAX: Duration = Duration::from_secs(3600);

/// A configuration that has been checked.
#[derive(Debug)]
pub(crate) struct Config {
    /// Where it was read from.
    pub(crate) path: PathBuf,
    text: String,
    file: File,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    state: Option<Spanned<PathBuf>>,
    memory: Option<Spanned<Size>>,
    connections: Option<Spanned<i64>>,
    lanes: Option<Spanned<i64>>,
    ping_interval: Option<Spanned<Time>>,
    peer_timeout: Option<Spanned<Time>>,
    /// CRC32C with initiators that prefer it to nothing.
    #[serde(default = "yes")]
    digests: bool,
    #[serde(default)]
    limits: limits::LimitsTable,
    #[serde(default)]
    discovery: access::Discovery,
    #[serde(default)]
    volume: Volumes,
    #[serde(default)]
    target: BTreeMap<Spanned<String>, Target>,
}

fn yes() -> bool {
    true
}

/// A `[target."NAME"]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    portals: Option<portals::Addresses>,
    portal_groups: Option<portals::Groups>,
    redirect: Option<Spanned<portals::RedirectTable>>,
    luns: Option<Spanned<Luns>>,
    allow: Spanned<Vec<Spanned<String>>>,
    allow_from: Option<Spanned<Vec<Spanned<String>>>>,
    /// With what initiators prove themselves.
    chap: Option<Spanned<Credentials>>,
    /// With what the target does, to those that ask.
    mutual: Option<Spanned<Credentials>>,
    chap_algorithms: Option<Spanned<Vec<ChapAlgorithm>>>,
}

impl Target {
    fn place(&self) -> portals::Place<'_> {
        portals::Place {
            portals: self.portals.as_ref(),
            portal_groups: self.portal_groups.as_ref(),
            redirect: self.redirect.as_ref(),
        }
    }
}

/// `luns = ["log", "scratch"]`, or `{ 0 = "log", 7 = "scratch" }`.
#[derive(Debug)]
enum Luns {
    List(Vec<Spanned<Lun>>),
    Table(BTreeMap<Spanned<String>, Spanned<Lun>>),
}

impl Luns {
    /// All of them, without their numbers.
    fn all(&self) -> Vec<&Spanned<Lun>> {
        match self {
            Luns::List(list) => list.iter().collect(),
            Luns::Table(table) => table.values().collect(),
        }
    }
}

/// `"log"`, or `{ volume = "log", read_only = true }`: a volume, and how it is shown here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lun {
    pub(crate) volume: String,
    pub(crate) removable: bool,
    pub(crate) read_only: bool,
}

impl<'de> Deserialize<'de> for Lun {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            volume: String,
            #[serde(default)]
            removable: bool,
            #[serde(default)]
            read_only: bool,
        }

        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Lun;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a volume's name as \"log\", or { volume = \"log\", read_only = true }")
            }

            fn visit_str<E: de::Error>(self, volume: &str) -> Result<Lun, E> {
                Ok(Lun {
                    volume: volume.to_owned(),
                    removable: false,
                    read_only: false,
                })
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Lun, A::Error> {
                let table: Table =
                    Deserialize::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(Lun {
                    volume: table.volume,
                    removable: table.removable,
                    read_only: table.read_only,
                })
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Luns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Luns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("volumes by number as { 0 = \"log\" }, or a list of them as [\"log\"]")
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, seq: A) -> Result<Luns, A::Error> {
                Deserialize::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(Luns::List)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Luns, A::Error> {
                Deserialize::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(Luns::Table)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// A target as the daemon serves it.
#[derive(Debug)]
pub(crate) struct TargetTable {
    pub(crate) name: String,
    pub(crate) portal_groups: Vec<PortalGroup>,
    pub(crate) luns: BTreeMap<u32, Lun>,
    /// `None`: everyone.
    pub(crate) allow: Option<Vec<String>>,
    /// Empty: from anywhere.
    pub(crate) allow_from: Vec<Prefix>,
    pub(crate) chap: Option<Arc<Chap>>,
    pub(crate) redirect: Option<Redirect>,
}

impl Config {
    /// Reads and checks `path`.
    pub(crate) fn load(path: &Path) -> Result<Config, Failure> {
        let shown = path.display();
        let bytes =
            std::fs::read(path).map_err(|error| Failure::Wrong(format!("{shown}: {error}")))?;
        let text =
            syntax::text(bytes).map_err(|message| Failure::Wrong(format!("{shown}:{message}")))?;
        let wrong = |error: ConfigError| Failure::Wrong(error.located(path, &text).to_string());
        let file: File = toml::from_str(&text).map_err(|error| wrong(syntax::explain(&error)))?;
        let config = Config {
            path: path.to_owned(),
            text: String::new(),
            file,
        };
        config.file.volume.check().map_err(wrong)?;
        config.check_settings().map_err(wrong)?;
        config.targets().map_err(wrong)?;
        served::check(&config.file).map_err(wrong)?;
        let places = config.file.target.values().map(Target::place);
        portals::check(places).map_err(wrong)?;
        config.discovery().map_err(wrong)?;
        config.limits().map_err(wrong)?;
        Ok(Config { text, ..config })
    }

    /// Refuses portals whose ports nobody would know.
    pub(crate) fn check_ports(&self) -> Result<(), Failure> {
        let places = self.file.target.values().map(Target::place);
        portals::check_ports(places).map_err(|error| self.wrong(&error))
    }

    /// What is configured, in a line.
    pub(crate) fn summary(&self) -> String {
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let (volumes, targets) = (self.file.volume.0.len(), self.file.target.len());
        format!(
            "{}, {}: right",
            count(volumes, "volume"),
            count(targets, "target")
        )
    }

    /// An error of this configuration, with its place.
    pub(crate) fn wrong(&self, error: &ConfigError) -> Failure {
        Failure::Wrong(error.located(&self.path, &self.text).to_string())
    }

    /// What is right and did not work, with its place.
    pub(crate) fn failed(&self, error: &ConfigError) -> Failure {
        Failure::Failed(anyhow!("{}", error.located(&self.path, &self.text)))
    }

    /// What is wrong with the state directory, with the place of `state` if it is there.
    pub(crate) fn state_failed(&self, error: &anyhow::Error) -> Failure {
        let span = self.file.state.as_ref().map(Spanned::span);
        self.failed(&ConfigError::new(span, format!("{error:#}")))
    }

    /// The volumes, ready to be opened.
    pub(crate) fn graph(&self) -> Result<Graph, Failure> {
        Graph::new(self.file.volume.clone(), self.directory()).map_err(|error| self.wrong(&error))
    }

    /// Looks whether the volumes would open, without touching them.
    pub(crate) fn check_system(&self) -> Result<(), Failure> {
        machine::check(&self.file).map_err(|error| self.wrong(&error))?;
        let served = state::served(&self.state_directory());
        let served = served.map_err(|error| self.state_failed(&error))?;
        let findings = self.graph()?.check(&served);
        for note in &findings.notes {
            let note = note.located(&self.path, &self.text);
            log::say(format_args!("note: {note}"));
        }
        match findings.errors.first() {
            Some(error) => Err(self.wrong(error)),
            None => Ok(()),
        }
    }

    /// The directory that relative paths start from.
    pub(crate) fn directory(&self) -> &Path {
        self.path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."))
    }

    /// Where what outlives a restart is kept: `state`, or beside the configuration.
    pub(crate) fn state_directory(&self) -> PathBuf {
        match &self.file.state {
            Some(state) => self.directory().join(state.get_ref()),
            None => self.path.with_extension("state"),
        }
    }

    /// What initiators can make the daemon do.
    pub(crate) fn limits(&self) -> Result<Limits, ConfigError> {
        let mut limits = Limits::default();
        if let Some(memory) = &self.file.memory {
            limits.memory_bytes = memory.get_ref().bytes() as usize;
        }
        if let Some(connections) = &self.file.connections {
            limits.connections_max = *connections.get_ref() as usize;
        }
        if let Some(time) = &self.file.ping_interval {
            limits.ping_interval = time.get_ref().duration();
        }
        if let Some(time) = &self.file.peer_timeout {
            limits.peer_timeout = time.get_ref().duration();
        }
        self.file.limits.apply(&mut limits)?;
        Ok(limits)
    }

    /// Whether digests are used with initiators that prefer them.
    pub(crate) fn digests(&self) -> bool {
        self.file.digests
    }

    /// What a discovery session has to prove; reads the secrets.
    pub(crate) fn discovery(&self) -> Result<Option<Arc<Chap>>, ConfigError> {
        self.file.discovery.chap(self.directory())
    }

    /// Threads that serve.
    pub(crate) fn lanes(&self) -> Option<usize> {
        self.file.lanes.as_ref().map(|n| *n.get_ref() as usize)
    }

    fn check_settings(&self) -> Result<(), ConfigError> {
        if let Some(memory) = &self.file.memory {
            if memory.get_ref().bytes() < MEMORY_MIN_BYTES {
                let size = memory.get_ref();
                let message = format!(
                    "memory = \"{size}\" is too little to serve with; write \"32MiB\" or more"
                );
                return Err(ConfigError::new(memory.span(), message));
            }
        }
        for (name, value) in [
            ("ping_interval", &self.file.ping_interval),
            ("peer_timeout", &self.file.peer_timeout),
        ] {
            let Some(value) = value else { continue };
            if !(TIME_MIN..=TIME_MAX).contains(&value.get_ref().duration()) {
                let given = value.get_ref();
                let message =
                    format!("{name} = \"{given}\" is not possible; write \"1s\" to \"60min\"");
                return Err(ConfigError::new(value.span(), message));
            }
        }
        for (name, value, most) in [
            ("connections", &self.file.connections, 65_536),
            ("lanes", &self.file.lanes, 1024),
        ] {
            if let Some(value) = value {
                if !(1..=most).contains(value.get_ref()) {
                    let given = value.get_ref();
                    let message = format!("{name} = {given} is not possible; write 1 to {most}");
                    return Err(ConfigError::new(value.span(), message));
                }
            }
        }
        Ok(())
    }

    /// The targets, checked, with their secrets.
    pub(crate) fn targets(&self) -> Result<Vec<TargetTable>, ConfigError> {
        self.file
            .target
            .iter()
            .map(|(name, target)| self.target(name, target))
            .collect()
    }

    fn target(&self, name: &Spanned<String>, target: &Target) -> Result<TargetTable, ConfigError> {
        let may_hold = |c: char| c.is_alphanumeric() && !c.is_uppercase() || "-.:".contains(c);
        let write = "an iSCSI name in lower case, as \"iqn.2026-11.io.sanstone:t0\"";
        check_name(name, "a target", may_hold, write)?;
        let chap = ChapSettings {
            chap: target.chap.as_ref(),
            mutual: target.mutual.as_ref(),
            algorithms: target.chap_algorithms.as_ref(),
        };
        Ok(TargetTable {
            name: name.get_ref().clone(),
            portal_groups: target.place().groups()?,
            luns: self.luns_of(name, target)?,
            allow: access::allow(&target.allow)?,
            allow_from: access::allow_from(target.allow_from.as_ref())?,
            chap: chap.read(self.directory())?,
            redirect: target.place().redirect()?,
        })
    }

    /// The LUNs: none where initiators are sent elsewhere, which asks them for no secret either.
    fn luns_of(
        &self,
        name: &Spanned<String>,
        target: &Target,
    ) -> Result<BTreeMap<u32, Lun>, ConfigError> {
        let shown = name.get_ref();
        let Some(redirect) = &target.redirect else {
            let Some(luns) = &target.luns else {
                let message = format!("target \"{shown}\" has no LUN; write luns = [\"NAME\"]");
                return Err(ConfigError::new(name.span(), message));
            };
            return self.luns(shown, luns);
        };
        let chap = target.chap.as_ref().map(|_| "chap");
        let others = chap.or(target.mutual.as_ref().map(|_| "mutual"));
        match others.or(target.luns.as_ref().map(|_| "luns")) {
            None => Ok(BTreeMap::new()),
            Some(other) => {
                let message = format!(
                    "target \"{shown}\" sends initiators elsewhere and serves nothing itself; write \
                     redirect without {other}"
                );
                Err(ConfigError::new(redirect.span(), message))
            }
        }
    }

    fn luns(&self, target: &str, luns: &Spanned<Luns>) -> Result<BTreeMap<u32, Lun>, ConfigError> {
        let numbered: Vec<(u32, &Spanned<Lun>)> = match luns.get_ref() {
            Luns::List(names) => (0..).zip(names).collect(),
            Luns::Table(table) => by_number(table, "LUN", lun_number)?,
        };
        if numbered.is_empty() {
            let message = format!("target \"{target}\" has no LUN; write luns = [\"NAME\"]");
            return Err(ConfigError::new(luns.span(), message));
        }
        let mut served = BTreeSet::new();
        for (number, lun) in &numbered {
            let name = &lun.get_ref().volume;
            let node = Node {
                span: lun.span(),
                what: What::Named(name.clone()),
            };
            self.file.volume.find(name, &node).map_err(|error| {
                let message = format!("LUN {number} of \"{target}\": {}", error.message());
                ConfigError::new(lun.span(), message)
            })?;
            if !served.insert(name) {
                let message = format!("target \"{target}\" serves \"{name}\" twice; name it once");
                return Err(ConfigError::new(lun.span(), message));
            }
        }
        Ok(numbered
            .into_iter()
            .map(|(n, lun)| (n, lun.get_ref().clone()))
            .collect())
    }
}

fn lun_number(text: &Spanned<String>) -> Result<u32, ConfigError> {
    text.get_ref()
        .parse()
        .ok()
        .filter(|n| *n <= LUN_MAX)
        .ok_or_else(|| {
            let message = format!(
                "\"{}\" is no LUN; write a number from 0 to {LUN_MAX}",
                text.get_ref()
            );
            ConfigError::new(text.span(), message)
        })
}

/// The entries of a table by their numbers, in the table's order. `1` and `01` are two keys for TOML
/// and one number for us.
fn by_number<'a, N: Copy + Display + Ord, V>(
    table: &'a BTreeMap<Spanned<String>, V>,
    what: &str,
    number: impl Fn(&Spanned<String>) -> Result<N, ConfigError>,
) -> Result<Vec<(N, &'a V)>, ConfigError> {
    let mut seen = BTreeMap::new();
    let mut numbered = Vec::new();
    for (key, value) in table {
        let number = number(key)?;
        if let Some(other) = seen.insert(number, key.get_ref()) {
            let message = format!(
                "{what} {number} is there twice, as \"{other}\" and as \"{}\"; write it once",
                key.get_ref()
            );
            return Err(ConfigError::new(key.span(), message));
        }
        numbered.push((number, value));
    }
    Ok(numbered)
}

/// An iSCSI name in one of the three formats (RFC 7143 §4.2.7), of characters that it may hold.
fn check_name(
    name: &Spanned<String>,
    whose: &str,
    may_hold: impl Fn(char) -> bool,
    write: &str,
) -> Result<(), ConfigError> {
    let text = name.get_ref();
    let folded = folded_name(text);
    let why = if let Some(wrong) = text.chars().find(|c| !may_hold(*c)) {
        format!("{wrong:?} cannot be in it")
    } else if !["iqn.", "eui.", "naa."]
        .iter()
        .any(|p| folded.starts_with(p))
    {
        "it begins with none of iqn. eui. naa.".to_owned()
    } else if text.len() > NAME_BYTES_MAX {
        format!("it is longer than {NAME_BYTES_MAX} bytes")
    } else {
        return Ok(());
    };
    let what = format_args!("\"{text}\" cannot name {whose}: {why}");
    Err(wrong_value(name.span(), what, write))
}

fn wrong_value(span: Range<usize>, what: impl Display, write: &str) -> ConfigError {
    ConfigError::new(span, format!("{what}; write {write}"))
}
