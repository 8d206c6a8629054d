//! Observing a daemon or an attached volume. Lanes are asked only for what they alone know. The resulting [`View`]
//! is then described off the lanes, where nobody is kept waiting.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{self, Path, PathBuf},
    sync::{Arc, Weak},
};

use engine::{Instant, task, time};
use front::{Reporter, report::FrontReport};
use hdrhistogram::Histogram;
use unit::{SanitizeReport, Stage, StageTable, UnitReport, Units};
use uuid::Uuid;
use volume::{
    MirrorHandle, MirrorStatus, RequestFailure, SetClaim,
    cache::{CacheHandle, CacheStats},
    graph::NodeView,
    kinds::file::OpenFile,
    kinds::iscsi::{PathState, PathStatus, SessionState, SessionStatus},
    stats::{RequestKind, Snapshot},
};

use crate::description::{
    Attached, CacheDescription, ClaimDescription, Commands, CounterSnapshot, Description, Failure,
    InProgress, MirrorCopy, MirrorDescription, Node, NodeSession, PathSession,
    RegistrationDescription, RequestCounts, Requests, ReservationDescription, UnitDescription,
    VERSION, Volume,
};
use crate::{process, space};

/// What can be seen without asking a lane. Counters are read when it is described.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) configuration: PathBuf,
    pub(crate) state: PathBuf,
    /// The number of serving threads. The units of an attached volume may be on one of them.
    pub(crate) lanes: usize,
    pub(crate) trees: BTreeMap<String, NodeView>,
    /// The identities of the served volumes.
    pub(crate) disks: BTreeMap<String, Uuid>,
    pub(crate) attached: Option<Attached>,
    pub(crate) units: Units,
}

/// A handle for observing a daemon as it is served now, even while another configuration is being applied.
pub struct Onlooker {
    pub(crate) seen: Seen,
    pub(crate) fronts: Vec<Box<dyn Reporter>>,
}

impl Onlooker {
    /// Takes a snapshot.
    pub async fn view(&self) -> View {
        let mut reports = Vec::new();
        for front in &self.fronts {
            reports.push(front.report().await);
        }
        let mut files = Vec::new();
        for tree in self.seen.trees.values() {
            collect_files(tree, &mut files);
        }
        let looks = files
            .into_iter()
            .map(|(path, file)| Box::pin(async move { file.is_lost().await.then_some(path) }));
        let lost = task::join_all(looks).await.into_vec();
        View {
            seen: self.seen.clone(),
            reports,
            lost: lost.into_iter().flatten().collect(),
            at: time::now(),
        }
    }
}

/// The open files of a tree, each with the path of its node.
fn collect_files(view: &NodeView, files: &mut Vec<(String, Arc<OpenFile>)>) {
    let file = view.facts.get().and_then(Weak::<OpenFile>::upgrade);
    files.extend(file.map(|file| (view.path.clone(), file)));
    view.children
        .iter()
        .for_each(|child| collect_files(child, files));
}

/// A snapshot of a daemon or of an attached volume. Its counters are read when it is described.
pub struct View {
    pub(crate) seen: Seen,
    pub(crate) reports: Vec<FrontReport>,
    /// The nodes whose files are not where they were.
    pub(crate) lost: BTreeSet<String>,
    /// When it was taken, by the clock of the lanes.
    pub(crate) at: Instant,
}

impl View {
    /// Everything there is to see.
    pub fn describe(&self) -> Description {
        let seen = &self.seen;
        let (reports, refusals) = (seen.units.reports(), seen.units.refusals());
        let stages = seen.units.stage_times().volumes;
        let configuration = absolute(&seen.configuration);
        let base = Path::new(&configuration).parent().unwrap_or(Path::new("/"));
        let volumes = seen.trees.iter().map(|(name, tree)| {
            let uuid = seen.disks.get(name);
            let identity = uuid.map(|uuid| unit::names(*uuid.as_bytes()));
            let (naa, serial) = identity.unzip();
            let volume = Volume {
                uuid: uuid.map(Uuid::to_string),
                naa,
                serial,
                tree: node(tree, self.at, base, &self.lost),
                unit: reports.get(name).map(|report| UnitDescription {
                    error: refusals.get(name).cloned(),
                    ..unit(report)
                }),
                commands: stages.get(name).map(commands).unwrap_or_default(),
            };
            (name.clone(), volume)
        });
        Description {
            version: VERSION,
            product_version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_unix_s: process::started_unix_s(),
            volumes: volumes.collect(),
            configuration,
            state: absolute(&seen.state),
            state_error: space::trouble(&seen.state),
            lanes: seen.lanes,
            targets: self
                .reports
                .iter()
                .flat_map(|report| report.targets.clone())
                .collect(),
            attached: seen.attached.clone(),
            sessions: self
                .reports
                .iter()
                .flat_map(|report| report.sessions.clone())
                .collect(),
        }
    }

    /// The open mirror at this [path](Node::path) of a tree.
    pub fn mirror(&self, path: &str) -> Option<MirrorHandle> {
        fn find(view: &NodeView, path: &str) -> Option<MirrorHandle> {
            let is_it = view.path == path && view.shape.is_some();
            let own = is_it.then(|| view.facts.get().cloned()).flatten();
            own.or_else(|| view.children.iter().find_map(|child| find(child, path)))
        }
        self.seen.trees.values().find_map(|tree| find(tree, path))
    }

    fn in_progress(&self, (pending, oldest): (u64, Option<Instant>)) -> InProgress {
        InProgress {
            pending,
            oldest_s: age_s(oldest, self.at),
        }
    }

    /// Counters since the start.
    pub fn counters(&self) -> CounterSnapshot {
        let stages = self.seen.units.stage_times();
        let by_kind = |tables: &BTreeMap<String, StageTable>| {
            let tables = tables.iter();
            tables
                .map(|(name, table)| (name.clone(), counted(table)))
                .collect()
        };
        let mut counters = CounterSnapshot {
            volumes: by_kind(&stages.volumes),
            initiators: by_kind(&stages.initiators),
            ..CounterSnapshot::default()
        };
        for (initiator, in_progress) in &stages.in_progress {
            let in_progress = self.in_progress(*in_progress);
            counters
                .initiators_in_progress
                .insert(initiator.clone(), in_progress);
        }
        for (name, tree) in &self.seen.trees {
            count(tree, self.at, &mut counters);
            // What is in a volume that nobody reaches comes from one that it is part of.
            if self.seen.disks.contains_key(name) || self.seen.attached.is_some() {
                let all = tree.counters.snapshot().in_progress();
                let in_progress = self.in_progress(all);
                counters
                    .volumes_in_progress
                    .insert(name.clone(), in_progress);
            }
        }
        counters
    }
}

/// The absolute path, valid whatever the reader's working directory.
fn absolute(path: &Path) -> String {
    let absolute = path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.display().to_string()
}

/// What is seen of a node at that time; the paths of its files begin in the directory `base`. `lost`: the nodes whose files are
/// not where they were.
fn node(view: &NodeView, at: Instant, base: &Path, lost: &BTreeSet<String>) -> Node {
    let shape = view.shape.as_ref();
    let status: Option<&SessionStatus> = view.facts.get();
    let sessions = status.map(SessionStatus::all);
    Node {
        path: view.path.clone(),
        name: view.name.clone(),
        kind: view.kind.to_owned(),
        place: view.place.clone(),
        open: shape.is_some(),
        size_bytes: shape.map(|shape| shape.len_bytes()),
        block_size_bytes: shape.map(|shape| shape.block_size_bytes),
        memory_bytes: view.memory_bytes,
        space: view
            .file
            .as_ref()
            .and_then(|file| space::of(&base.join(file))),
        lost_path: lost.contains(&view.path),
        read_only: shape.is_some_and(|shape| shape.read_only.is_on()),
        claim: view.facts.get().map(|claim: &SetClaim| {
            let lost = claim.check().err();
            ClaimDescription {
                held: lost.is_none(),
                error: lost.map(|error| error.to_string()),
            }
        }),
        session: sessions.as_ref().map(|(state, paths)| NodeSession {
            lacks_fence: status.is_some_and(SessionStatus::lacks_fence),
            ..session_of(state, paths)
        }),
        sessions: sessions
            .iter()
            .flat_map(|(_, paths)| paths.iter().map(path_session))
            .collect(),
        cache: view
            .facts
            .get()
            .map(|handle: &CacheHandle| cache(handle.stats())),
        mirror: shape
            .and_then(|_| view.facts.get())
            .map(|handle: &MirrorHandle| mirror(handle.status())),
        requests: requests(&view.counters.snapshot(), at),
        failure: shape.and_then(|_| view.counters.failure()).map(failure),
        children: view
            .children
            .iter()
            .map(|child| node(child, at, base, lost))
            .collect(),
    }
}

/// The sessions taken together. What is recorded of the whole disk changes when a request finds out, so the sessions
/// themselves, which are shown below, know better whether there is one.
fn session_of(state: &SessionState, paths: &[PathStatus]) -> NodeSession {
    let (address, relogins, why) = match state {
        SessionState::None => (None, 0, None),
        SessionState::LoggedIn { address, relogins } => (Some(*address), *relogins, None),
        SessionState::Lost {
            address,
            relogins,
            why,
        } => (*address, *relogins, Some(why.clone())),
    };
    let of_path = |path: &PathStatus| match &path.state {
        PathState::None(error) => Err(error.clone()),
        PathState::LoggedIn | PathState::Standby | PathState::Silent => Ok(path.portal),
    };
    let live: Vec<SocketAddr> = paths.iter().filter_map(|path| of_path(path).ok()).collect();
    let is_logged_in = match paths.is_empty() {
        true => matches!(state, SessionState::LoggedIn { .. }),
        false => !live.is_empty(),
    };
    let (word, address, error) = match (is_logged_in, state) {
        (true, _) => {
            let stays = address.filter(|address| paths.is_empty() || live.contains(address));
            ("logged in", stays.or(live.first().copied()), None)
        }
        (false, SessionState::None) => ("none", address, why),
        (false, _) => {
            let first = || paths.iter().find_map(|path| of_path(path).err()?);
            // Why the next login fails is news; why the last session ended is not.
            ("lost", address, first().or(why))
        }
    };
    NodeSession {
        state: word.to_owned(),
        address: address.map(|address| address.to_string()),
        relogins,
        lacks_fence: false,
        error,
    }
}

fn path_session(path: &PathStatus) -> PathSession {
    let (state, error) = match &path.state {
        PathState::LoggedIn => ("logged in", None),
        PathState::Standby => ("standby", None),
        PathState::Silent => ("silent", None),
        PathState::None(error) => ("none", error.clone()),
    };
    PathSession {
        state: state.to_owned(),
        portal: path.portal.to_string(),
        local: path.local.map(|local| local.to_string()),
        lane: path.lane,
        error,
    }
}

fn mirror(status: MirrorStatus) -> MirrorDescription {
    let copies = status.copies.iter().map(|copy| MirrorCopy {
        name: copy.name.clone(),
        state: copy.state().to_owned(),
        error: copy.trouble.clone(),
    });
    MirrorDescription {
        in_sync: status.is_in_sync(),
        epoch: status.epoch,
        copies: copies.collect(),
        marked_bytes: status.marked_bytes,
        in_doubt_bytes: status.in_doubt_bytes,
        left_to_fill_bytes: status.left_to_fill_bytes,
        register_error: status.register_trouble,
        error: status.stopped,
    }
}

fn cache(stats: CacheStats) -> CacheDescription {
    CacheDescription {
        hits: stats.hits,
        late_hits: stats.late_hits,
        misses: stats.misses,
        read_ahead_bytes: stats.read_ahead_bytes,
        read_ahead_used_bytes: stats.read_ahead_used_bytes,
        read_ahead_wasted_bytes: stats.read_ahead_wasted_bytes,
        held_bytes: stats.held_bytes,
    }
}

fn failure(failure: RequestFailure) -> Failure {
    Failure {
        kind: failure.kind.to_owned(),
        error: failure.error,
        may_have_lost: failure.may_have_lost,
        is_gone: failure.is_gone,
    }
}

fn name_of(kind: impl std::fmt::Debug) -> String {
    format!("{kind:?}").to_lowercase()
}

fn requests(snapshot: &Snapshot, at: Instant) -> BTreeMap<String, Requests> {
    let us = |ns: u64| ns as f64 / 1000.0;
    let kinds = RequestKind::ALL.map(|kind| (kind, snapshot.of(kind)));
    let kinds = kinds.into_iter();
    kinds
        .filter(|(_, counts)| counts.requests + counts.unanswered + counts.pending > 0)
        .map(|(kind, counts)| {
            let times = &counts.latency_ns;
            let requests = Requests {
                requests: counts.requests,
                errors: counts.errors,
                unanswered: counts.unanswered,
                pending: counts.pending,
                oldest_s: age_s(counts.oldest, at),
                bytes: counts.bytes,
                median_us: us(times.value_at_quantile(0.5)),
                p99_us: us(times.value_at_quantile(0.99)),
                max_us: us(times.max()),
                sum_us: us(counts.sum_ns),
            };
            (name_of(kind), requests)
        })
        .collect()
}

/// How long ago that was.
fn age_s(then: Option<Instant>, now: Instant) -> Option<f64> {
    then.map(|then| now.since(then).as_secs_f64())
}

fn unit(report: &UnitReport) -> UnitDescription {
    let registrations = report.registrations.iter();
    let registrations = registrations.map(|registration| RegistrationDescription {
        initiator_port: registration.initiator_port.clone(),
        target_port: registration.target_port,
        key: format!("{:#018x}", registration.key),
    });
    UnitDescription {
        registrations: registrations.collect(),
        reservation: report
            .reservation
            .as_ref()
            .map(|held| ReservationDescription {
                r#type: held.kind.to_owned(),
                holder: held.holder.clone(),
            }),
        reserved_by: report.reserved_by.clone(),
        write_protected: report.is_write_protected,
        ejected: report.is_ejected,
        error: None,
        sanitize: report.sanitize.map(|sanitize| match sanitize {
            SanitizeReport::Running { percent } => format!("running {percent} %"),
            SanitizeReport::Failed => "failed".to_owned(),
        }),
    }
}

/// Collects the counters of a node and of everything below it.
fn count(view: &NodeView, at: Instant, counters: &mut CounterSnapshot) {
    let snapshot = view.counters.snapshot();
    let kinds = RequestKind::ALL.map(|kind| (kind, snapshot.of(kind)));
    let kinds = kinds.into_iter();
    let counted = kinds
        .filter(|(_, counts)| counts.requests + counts.pending > 0)
        .map(|(kind, counts)| {
            let counted = RequestCounts {
                errors: counts.errors,
                pending: counts.pending,
                oldest_s: age_s(counts.oldest, at),
                bytes: counts.bytes,
                times_ns: times(&counts.latency_ns),
                busy_ns: counts.sum_ns,
            };
            (name_of(kind), counted)
        });
    counters.nodes.insert(view.path.clone(), counted.collect());
    if let Some(handle) = view.facts.get::<CacheHandle>() {
        let cache = cache(handle.stats());
        counters.caches.insert(view.path.clone(), cache);
    }
    for child in &view.children {
        count(child, at, counters);
    }
}

/// The kinds of commands that there were.
fn kinds(table: &StageTable) -> impl Iterator<Item = unit::CommandKind> + '_ {
    let kinds = unit::CommandKind::ALL.into_iter();
    kinds.filter(|kind| !table.of(*kind, Stage::Total).is_empty())
}

fn commands(table: &StageTable) -> BTreeMap<String, Commands> {
    let of_kind = |kind| Commands {
        commands: table.of(kind, Stage::Total).len(),
        bytes: table.bytes(kind),
        sum_us: Stage::ALL
            .map(|stage| (name_of(stage), table.sum_ns(kind, stage) as f64 / 1000.0))
            .into(),
    };
    kinds(table)
        .map(|kind| (name_of(kind), of_kind(kind)))
        .collect()
}

fn counted(table: &StageTable) -> BTreeMap<String, RequestCounts> {
    kinds(table)
        .map(|kind| {
            let ours = [Stage::Queue, Stage::Volume];
            let counted = RequestCounts {
                errors: 0,
                pending: 0,
                oldest_s: None,
                bytes: table.bytes(kind),
                times_ns: times(table.of(kind, Stage::Total)),
                busy_ns: ours.map(|stage| table.sum_ns(kind, stage)).iter().sum(),
            };
            (name_of(kind), counted)
        })
        .collect()
}

fn times(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    let recorded = histogram.iter_recorded();
    recorded
        .map(|step| (step.value_iterated_to(), step.count_at_value()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(portal: &str, state: PathState) -> PathStatus {
        PathStatus {
            portal: portal.parse().expect("an address"),
            local: None,
            lane: 0,
            state,
        }
    }

    #[test]
    fn the_sessions_taken_together_are_what_each_of_them_is() {
        let (one, other) = ("10.0.1.2:3260", "10.0.2.2:3260");
        let logged_in = SessionState::LoggedIn {
            address: one.parse().expect("an address"),
            relogins: 2,
        };
        let lost = SessionState::Lost {
            address: one.parse().ok(),
            relogins: 2,
            why: "silent".to_owned(),
        };
        let none = || PathState::None(Some("refused".to_owned()));
        let both = |first, second| vec![path(one, first), path(other, second)];
        for (state, paths, expected, at, error) in [
            (
                &logged_in,
                both(PathState::LoggedIn, none()),
                "logged in",
                one,
                None,
            ),
            (
                &logged_in,
                both(none(), PathState::LoggedIn),
                "logged in",
                other,
                None,
            ),
            (
                &logged_in,
                both(none(), none()),
                "lost",
                one,
                Some("refused"),
            ),
            (&logged_in, Vec::new(), "logged in", one, None),
            (&lost, both(none(), none()), "lost", one, Some("refused")),
            (
                &lost,
                both(none(), PathState::Standby),
                "logged in",
                other,
                None,
            ),
            (&lost, Vec::new(), "lost", one, Some("silent")),
        ] {
            let shown = session_of(state, &paths);
            assert_eq!(shown.state, expected, "{state:?} {paths:?}");
            assert_eq!(shown.address.as_deref(), Some(at));
            assert_eq!((shown.relogins, shown.error.as_deref()), (2, error));
        }
        let shown = session_of(&SessionState::None, &both(none(), none()));
        assert_eq!(shown.state, "none");
    }
}
