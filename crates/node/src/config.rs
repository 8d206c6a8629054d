//! The configuration file: settings of the daemon, volumes, targets. Every error in it is detected
//! here and reported with its file, line and a remedy.

mod access;
mod anew;
mod initiator;
mod limits;
mod luns;
mod machine;
mod names;
mod portals;
mod sections;
mod served;
mod settings;
mod slips;
mod syntax;
mod targets;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use engine::{Duration, Waiting, blocking, store};
use front::{Address, StartError};
use front_iscsi::{Chap, Limits};
use serde::Deserialize;
use toml::Spanned;
use volume::{
    config::{
        ChapAlgorithm, ChapSettings, ConfigError, Credentials, IscsiDefaults, Size, Time, Volumes,
    },
    graph::Graph,
};

pub(crate) use self::{luns::LunEntry, targets::TargetTable};
use self::{
    luns::Luns,
    names::{by_number, check_name, wrong_value},
};
use crate::{
    DaemonFailure, Level, Note, OpenRefusal, ServedSite, space,
    usable::{self, Used},
    written::Written,
};

/// The port that IANA assigned to iSCSI targets (RFC 7143 §13.8).
const PORT: u16 = 3260;
/// The longest iSCSI name, in bytes (RFC 7143 §4.2.7.1).
const NAME_BYTES_MAX: usize = 223;
const LUN_MAX: u32 = 16383;
/// The minimum that holds a few commands for each lane.
const MEMORY_MIN_BYTES: u64 = 32 << 20;

/// The longest configuration that a daemon applies, in bytes.
const BYTES_MAX: usize = 16 << 20;

/// How long a configuration that is served may take to be compared with its file.
const COMPARE_LIMIT: Duration = Duration::from_secs(10);

/// The most errors that are shown; the rest are only counted.
const ERRORS_MAX: usize = 300;

/// A validated configuration.
#[derive(Debug)]
pub struct Config {
    /// The file it was read from.
    path: PathBuf,
    text: String,
    /// Whether all of it could be parsed.
    is_whole: bool,
    /// Whether a portal may leave the choice of its port to the system.
    may_choose_ports: bool,
    /// It replaces the configuration of a daemon that is already running.
    is_successor: bool,
    file: ConfigFile,
    limits: Limits,
    unit_limits: unit::MemoryLimits,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    state: Option<Spanned<PathBuf>>,
    memory: Option<Spanned<Size>>,
    connections: Option<Spanned<i64>>,
    lanes: Option<Spanned<i64>>,
    #[serde(default)]
    wait: WaitSetting,
    ping_interval: Option<Spanned<Time>>,
    peer_timeout: Option<Spanned<Time>>,
    /// Whether to use CRC32C digests with initiators that prefer them to none.
    #[serde(default = "yes")]
    digests: bool,
    #[serde(default)]
    limits: limits::LimitsTable,
    #[serde(default)]
    discovery: access::Discovery,
    /// What `iscsi` volumes have in common. It is in their tables by the time these are read.
    #[serde(rename = "initiator")]
    _initiator: Option<IscsiDefaults>,
    #[serde(default)]
    volume: Volumes,
    #[serde(default)]
    target: BTreeMap<Spanned<String>, TargetSection>,
}

/// `wait = "balanced"`: how an idle lane waits.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WaitSetting {
    Latency,
    #[default]
    Balanced,
    Cpu,
}

fn yes() -> bool {
    true
}

/// A `[target."NAME"]` table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetSection {
    portals: Option<portals::Addresses>,
    portal_groups: Option<portals::Groups>,
    redirect: Option<Spanned<portals::RedirectTable>>,
    luns: Option<Spanned<Luns>>,
    allow: Spanned<Vec<Spanned<String>>>,
    allow_from: Option<Spanned<Vec<Spanned<String>>>>,
    /// Credentials with which initiators authenticate.
    chap: Option<Spanned<Credentials>>,
    /// Credentials that are accepted as well, until all initiators have changed to `chap`.
    old_chap: Option<Spanned<Credentials>>,
    /// Credentials with which the target authenticates to initiators that ask.
    mutual: Option<Spanned<Credentials>>,
    chap_algorithms: Option<Spanned<Vec<ChapAlgorithm>>>,
}

impl TargetSection {
    fn place(&self) -> portals::PlaceSettings<'_> {
        portals::PlaceSettings {
            portals: self.portals.as_ref(),
            portal_groups: self.portal_groups.as_ref(),
            redirect: self.redirect.as_ref(),
        }
    }

    fn chap_settings(&self) -> ChapSettings<'_> {
        ChapSettings {
            chap: self.chap.as_ref(),
            old: self.old_chap.as_ref(),
            mutual: self.mutual.as_ref(),
            algorithms: self.chap_algorithms.as_ref(),
        }
    }
}

impl Config {
    /// Reads and validates `path` without looking at the system.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(path: &Path) -> Result<Config, DaemonFailure> {
        let (config, errors) = Config::read(path)?;
        config.refuse(errors)?;
        Ok(config)
    }

    /// Rejects a configuration that serves nothing: an empty file was probably truncated while being saved.
    ///
    /// # Errors
    /// If there is no target.
    pub fn require_targets(&self) -> Result<(), DaemonFailure> {
        match self.has_targets() {
            true => Ok(()),
            false => Err(DaemonFailure::Wrong(format!(
                "{}: there is no target to serve; write a [target.\"iqn.…\"] table",
                self.path().display()
            ))),
        }
    }

    /// The state directory that `path` names, even if other settings are wrong.
    ///
    /// # Errors
    /// If the file cannot be read at all.
    pub fn state_directory_of(path: &Path) -> Result<PathBuf, DaemonFailure> {
        Ok(Config::read(path)?.0.state_directory())
    }

    /// As [`Config::state_directory_of`], of a configuration that a daemon is to apply, which only a file can be.
    ///
    /// # Errors
    /// If the file cannot be read at all, or is none.
    pub fn state_directory_to_apply(path: &Path) -> Result<PathBuf, DaemonFailure> {
        Ok(Config::read_file(path)?.0.state_directory())
    }

    /// Reads and validates `path`, and checks whether the volumes would open, without opening them.
    /// Unless `may_choose_ports`, each portal must name its port. `tell` is called with what is to be said about
    /// valid settings: warnings about what may not be what was meant, and advice. Returns the notes about the
    /// served disks.
    ///
    /// # Errors
    /// Everything that is wrong with it, or would keep its volumes from opening.
    pub fn load_to_serve(
        path: &Path,
        may_choose_ports: bool,
        tell: impl Fn(Level, &dyn Display),
    ) -> Result<(Config, Vec<Note>), DaemonFailure> {
        Config::look(Config::read(path)?, may_choose_ports, tell, |_, _| None)
    }

    /// As [`Config::load_to_serve`] of a configuration that is only checked: `try_portal`, which is told the state
    /// directory, says why no server could listen on an address, which is reported together with everything else.
    ///
    /// # Errors
    /// As [`Config::load_to_serve`].
    pub fn load_to_check(
        path: &Path,
        tell: impl Fn(Level, &dyn Display),
        try_portal: impl Fn(&Path, SocketAddr) -> Option<StartError>,
    ) -> Result<(Config, Vec<Note>), DaemonFailure> {
        Config::look(Config::read(path)?, false, tell, try_portal)
    }

    /// As [`Config::load_to_serve`], for the daemon that is currently serving from the state directory of
    /// `path`, whatever the name of its configuration.
    ///
    /// # Errors
    /// As [`Config::load_to_serve`].
    pub fn load_to_apply(
        path: &Path,
        tell: impl Fn(Level, &dyn Display),
    ) -> Result<(Config, Vec<Note>), DaemonFailure> {
        let (mut config, errors) = Config::read_file(path)?;
        config.is_successor = true;
        Config::look((config, errors), false, tell, |_, _| None)
    }

    /// Checks a configuration that was [read](Self::read), as [`Config::load_to_serve`] does.
    fn look(
        (mut config, mut errors): (Config, Vec<ConfigError>),
        may_choose_ports: bool,
        tell: impl Fn(Level, &dyn Display),
        try_portal: impl Fn(&Path, SocketAddr) -> Option<StartError>,
    ) -> Result<(Config, Vec<Note>), DaemonFailure> {
        config.may_choose_ports = may_choose_ports;
        if !may_choose_ports {
            errors.extend(portals::check_ports(config.places()));
        }
        errors.extend(machine::check(&config.file, &config.text));
        errors.extend(config.unit_limits().err());
        let state_directory = config.state_directory();
        let portals = portals::all(config.places()).into_iter();
        errors.extend(portals.filter_map(|(portal, span)| {
            let error = try_portal(&state_directory, portal)?;
            Some(ConfigError::new(span, error.to_string()))
        }));
        let (mut disks, mut state) = (Vec::new(), None);
        // If volumes could not be parsed, their files are unknown.
        if errors.is_empty() || config.file.volume.errors().is_empty() && config.is_whole {
            let (found, wrong) = config.look_at_disks();
            state = wrong;
            match found {
                Ok(notes) => disks = notes,
                Err(found) => errors.extend(found),
            }
            let graph = config.graph()?;
            let findings = match config.is_successor {
                true => graph.check_again(),
                false => graph.check(),
            };
            // What is recorded of a disk says more than what is found at its path.
            let is_said = |error: &ConfigError| {
                let mut said = errors.iter().filter_map(ConfigError::span);
                error
                    .span()
                    .is_some_and(|span| said.any(|other| other == span))
            };
            let found: Vec<_> = findings
                .errors
                .into_iter()
                .filter(|e| !is_said(e))
                .collect();
            errors.extend(found);
            let warnings = findings.warnings.iter().map(|it| (Level::Warn, it));
            let notes = findings.notes.iter().map(|it| (Level::Info, it));
            for (level, text) in warnings.chain(notes) {
                tell(level, &config.located(text));
            }
        }
        if let Some(state) = state {
            if errors.is_empty() {
                return Err(config.failed(&state));
            }
            errors.push(state);
        }
        config.refuse(errors)?;
        Ok((config, disks))
    }

    /// Whether the file has changed since it was read: `None` if not, else whether it is valid.
    ///
    /// # Errors
    /// If the file cannot be read any more, or what it names does not answer (`TimedOut`).
    pub async fn changed(&self) -> io::Result<Option<Result<(), DaemonFailure>>> {
        let (path, text) = (self.path.clone(), self.text.clone());
        let may_choose_ports = self.may_choose_ports;
        let look = move || {
            // A pipe or a terminal cannot be read again.
            if store::look(&path)?.kind != store::PathKind::File {
                return Ok(None);
            }
            let bytes = store::read_file(&path, BYTES_MAX)?;
            if bytes == text.as_bytes() {
                return Ok(None);
            }
            let looked = Config::parse(&path, bytes)
                .and_then(|read| Config::look(read, may_choose_ports, |_, _| {}, |_, _| None));
            Ok(Some(looked.map(drop)))
        };
        blocking::run_within(COMPARE_LIMIT, blocking::WorkKind::Files, look).await?
    }

    /// Determines which disks are served; returns the notes about them, or the errors, and what keeps the state directory
    /// from being used.
    fn look_at_disks(&self) -> (Result<Vec<Note>, Vec<ConfigError>>, Option<ConfigError>) {
        let directory = self.state_directory();
        // As far as that can be told: what is wrong with a LUN has been reported already.
        let luns = self.file.target.iter();
        let luns = luns.filter_map(|(name, target)| self.luns_of(name, target).ok());
        let served: BTreeSet<String> = luns
            .flat_map(BTreeMap::into_values)
            .map(|lun| lun.volume)
            .collect();
        let served: Vec<String> = served.into_iter().collect();
        let of_state = |error: &dyn Display| {
            let span = self.file.state.as_ref().map(Spanned::span);
            ConfigError::new(span, error.to_string())
        };
        let unusable = machine::check_state(&directory).map_err(|error| of_state(&error));
        match crate::look(&self.site(&directory, &served), self.is_successor) {
            Ok(notes) => (Ok(notes), unusable.err()),
            Err(OpenRefusal::Volumes(errors)) => (Err(errors), unusable.err()),
            Err(OpenRefusal::State(error)) => (Ok(Vec::new()), Some(of_state(&error))),
            Err(OpenRefusal::Opening(error)) => (Err(vec![error]), unusable.err()),
        }
    }

    /// Reads `path`: as much of the configuration as can be parsed, and its errors.
    fn read(path: &Path) -> Result<(Config, Vec<ConfigError>), DaemonFailure> {
        let bytes = store::read_input(path, BYTES_MAX);
        Config::parse(path, bytes.map_err(|error| unreadable(path, &error))?)
    }

    /// As [`read`](Self::read), of nothing but a file: the path is somebody else's, and a pipe would be waited for.
    fn read_file(path: &Path) -> Result<(Config, Vec<ConfigError>), DaemonFailure> {
        let bytes = store::read_file(path, BYTES_MAX);
        Config::parse(path, bytes.map_err(|error| unreadable(path, &error))?)
    }

    /// As [`read`](Self::read), from the content of `path`.
    fn parse(path: &Path, bytes: Vec<u8>) -> Result<(Config, Vec<ConfigError>), DaemonFailure> {
        let shown = path.display();
        let text = syntax::text(bytes)
            .map_err(|message| DaemonFailure::Wrong(format!("{shown}:{message}")))?;
        let sections::Sections { file, mut errors } = sections::read(&text)
            .map_err(|error| DaemonFailure::Wrong(error.located(path, &text).to_string()))?;
        let is_whole = errors.is_empty();
        let (limits, unit_limits, limit_errors) = limits::read(&file, &text);
        let config = Config {
            path: path.to_owned(),
            text,
            is_whole,
            may_choose_ports: true,
            is_successor: false,
            file,
            limits,
            unit_limits,
        };
        errors.extend(config.errors());
        errors.extend(limit_errors);
        Ok((config, errors))
    }

    /// Errors in settings that could be parsed.
    fn errors(&self) -> Vec<ConfigError> {
        let mut errors = self.file.volume.errors();
        errors.extend(settings::check(&self.file, &self.path, &self.text));
        for (name, target) in &self.file.target {
            errors.extend(self.target_errors(name, target));
        }
        errors.extend(served::check(&self.file).err());
        errors.extend(portals::check(self.places()));
        errors.extend(self.discovery().err());
        errors
    }

    fn places(&self) -> impl Iterator<Item = portals::PlaceSettings<'_>> {
        self.file.target.values().map(TargetSection::place)
    }

    /// Fails with all of these errors, if any, in the order of the text.
    fn refuse(&self, mut errors: Vec<ConfigError>) -> Result<(), DaemonFailure> {
        errors.sort_by_key(|error| error.span().map(|span| span.start));
        errors.dedup();
        if errors.is_empty() {
            return Ok(());
        }
        let mut lines: Vec<String> = errors
            .iter()
            .take(ERRORS_MAX)
            .map(|error| self.said(error))
            .collect();
        if let Some(more) = errors
            .len()
            .checked_sub(ERRORS_MAX)
            .filter(|more| *more > 0)
        {
            lines.push(format!("{}: {more} more errors", self.path.display()));
        }
        Err(DaemonFailure::Wrong(lines.join("\n")))
    }

    /// The file it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why the server did not start, with the location of the portal if that is the reason.
    pub fn not_started(&self, error: &StartError) -> DaemonFailure {
        let place = match error {
            StartError::Address {
                address: Address::Tcp(address),
                ..
            }
            | StartError::Ours { address, .. } => {
                let places = self.file.target.values().map(TargetSection::place);
                portals::find(places, *address)
            }
            _ => None,
        };
        self.failed(&ConfigError::new(place, error.to_string()))
    }

    /// The addresses that its targets listen on, without duplicates.
    ///
    /// # Errors
    /// Errors in targets, with their location.
    pub fn portals(&self) -> Result<BTreeSet<SocketAddr>, DaemonFailure> {
        let targets = self.targets().map_err(|error| self.wrong(&error))?;
        let groups = targets.into_iter().flat_map(|target| target.portal_groups);
        Ok(groups.flat_map(|group| group.portals).collect())
    }

    /// A one-line summary.
    pub fn summary(&self) -> String {
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let (volumes, targets) = (self.file.volume.0.len(), self.file.target.len());
        format!(
            "{} is valid: {}, {}",
            self.path.display(),
            count(volumes, "volume"),
            count(targets, "target")
        )
    }

    /// An error in this configuration, with its location.
    pub fn wrong(&self, error: &ConfigError) -> DaemonFailure {
        DaemonFailure::Wrong(error.located(&self.path, &self.text).to_string())
    }

    /// A failure of something that is configured correctly, with its location.
    pub fn failed(&self, error: &ConfigError) -> DaemonFailure {
        DaemonFailure::Failed(self.said(error))
    }

    /// The text of an error with its location. Fills in the file and the volume in the command that it suggests,
    /// because a stripe's child knows neither.
    fn said(&self, error: &ConfigError) -> String {
        let message = error.located(&self.path, &self.text).to_string();
        let call = format!("-c {} {}", self.path.display(), self.volume_of(error));
        message.replace("-c FILE NAME", &call)
    }

    /// The volume that an error is about: the last one that begins before its location.
    fn volume_of(&self, error: &ConfigError) -> &str {
        let Some(place) = error.span() else {
            return "NAME";
        };
        let volumes = self.file.volume.0.iter();
        let before = volumes.filter(|(_, node)| node.span.start <= place.start);
        let last = before.max_by_key(|(_, node)| node.span.start);
        last.map_or("NAME", |(name, _)| name)
    }

    /// Why the disks are not served, with the location of the cause.
    pub fn refused(&self, refusal: OpenRefusal) -> DaemonFailure {
        match refusal {
            OpenRefusal::State(error) => {
                let span = self.file.state.as_ref().map(Spanned::span);
                self.failed(&ConfigError::new(span, error.to_string()))
            }
            OpenRefusal::Volumes(errors) => match self.refuse(errors) {
                Err(failure) => failure,
                Ok(()) => DaemonFailure::Failed("the volumes are refused".to_owned()),
            },
            OpenRefusal::Opening(error) => self.failed(&error),
        }
    }

    /// `error` with its location.
    pub fn located<'a>(&'a self, error: &'a ConfigError) -> impl Display + 'a {
        error.located(&self.path, &self.text)
    }

    /// The volumes that targets serve, without duplicates.
    pub(crate) fn served(&self) -> Result<Vec<String>, DaemonFailure> {
        let tables = self.targets().map_err(|error| self.wrong(&error))?;
        let luns = tables.iter().flat_map(|table| table.luns.values());
        let served: BTreeSet<String> = luns.map(|lun| lun.volume.clone()).collect();
        Ok(served.into_iter().collect())
    }

    /// What is served, and where its files are.
    pub(crate) fn site<'a>(&'a self, state: &'a Path, served: &'a [String]) -> ServedSite<'a> {
        ServedSite {
            config: &self.path,
            state,
            volumes: &self.file.volume,
            served,
            is_successor: self.is_successor,
        }
    }

    /// All its volumes.
    pub(crate) fn volumes(&self) -> &Volumes {
        &self.file.volume
    }

    /// The names of its volumes.
    pub fn volume_names(&self) -> impl Iterator<Item = &String> {
        self.file.volume.0.keys()
    }

    /// The volumes as a graph, ready to be opened.
    ///
    /// # Errors
    /// As [`Graph::new`].
    pub fn graph(&self) -> Result<Graph, DaemonFailure> {
        Graph::new(self.file.volume.clone(), self.directory()).map_err(|error| self.wrong(&error))
    }

    /// Whether there is something to serve.
    pub fn has_targets(&self) -> bool {
        !self.file.target.is_empty()
    }

    /// The directory that relative paths start from.
    pub(crate) fn directory(&self) -> &Path {
        self.path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."))
    }

    /// The directory for persistent state: `state`, or next to the configuration.
    pub fn state_directory(&self) -> PathBuf {
        match &self.file.state {
            Some(state) => self.directory().join(state.get_ref()),
            None => self.path.with_extension("state"),
        }
    }

    /// Limits on what initiators can make the daemon do.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Memory limits for commands.
    ///
    /// # Errors
    /// If the memory does not suffice for the lanes.
    pub fn unit_limits(&self) -> Result<unit::MemoryLimits, ConfigError> {
        machine::check_lanes(&self.file, self.lanes(), &self.unit_limits)?;
        Ok(self.unit_limits)
    }

    /// Where its files may need more than their file systems have left: a line for each file system.
    pub fn scarce_space(&self) -> Vec<String> {
        space::scarce(self.volumes(), self.directory())
    }

    /// What the user with this number, who is to serve it, may not use: a line for each.
    pub fn barred_to(&self, uid: u32) -> Vec<String> {
        let used = Used {
            configuration: &self.path,
            text: &self.text,
            volumes: self.volumes(),
            base: self.directory(),
            state: &self.state_directory(),
        };
        usable::barred(uid, &used)
    }

    /// What it says, as it is written.
    pub(crate) fn written(&self) -> Written {
        Written::of(&self.text)
    }

    /// Whether digests are used with initiators that prefer them.
    pub(crate) fn digests(&self) -> bool {
        self.file.digests
    }

    /// Authentication for discovery sessions; reads the secrets.
    pub(crate) fn discovery(&self) -> Result<Option<Arc<Chap>>, ConfigError> {
        self.file.discovery.chap(self.directory())
    }

    /// The number of serving threads.
    pub fn lanes(&self) -> Option<usize> {
        self.file.lanes.as_ref().map(|n| *n.get_ref() as usize)
    }

    /// How idle lanes wait.
    pub fn waiting(&self) -> Waiting {
        match self.file.wait {
            WaitSetting::Latency => Waiting::Latency,
            WaitSetting::Balanced => Waiting::Balanced,
            WaitSetting::Cpu => Waiting::Cpu,
        }
    }
}

/// Why a configuration cannot be read.
fn unreadable(path: &Path, error: &io::Error) -> DaemonFailure {
    let mend = match error.kind() {
        ErrorKind::IsADirectory => "; name the configuration file in it",
        ErrorKind::NotFound => "; check the path given with -c",
        ErrorKind::InvalidInput => "; write the configuration to a file, and name that",
        _ => "",
    };
    DaemonFailure::Wrong(format!("{}: {error}{mend}", path.display()))
}
