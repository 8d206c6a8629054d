//! A whole daemon, from its configuration to its end: the disks are opened, the targets served, and at
//! the end what was accepted is finished, flushed, and given up. It knows its lanes and the engine's file
//! system, and no process: signals, descriptors and the terminal are for whoever starts it.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{LaneFuture, LaneHandle, blocking, store};
use front_iscsi::{Allow, LunSpec, Server, ServerConfig, TargetSpec};
use unit::{DiskSpec, FlushError, Keep, OpenVolume, SanitizeReport, Units, UnitsConfig};
use uuid::Uuid;
use volume::{
    claim::{boot_id, name_of},
    config::{ConfigError, Volumes},
    graph::{Graph, Tree},
};

use crate::{
    Failure,
    config::Config,
    difference::{Difference, Served},
    open::{self, Disk},
    record::Records,
    state::State,
    view::{Onlooker, View},
};

/// The process that a daemon is, as others learn of it who want a stripe that it has claimed.
#[derive(Clone, Debug)]
pub struct Process {
    /// This boot of the machine; nil where that is not known. Who claimed since the boot and holds no
    /// lock any more is dead.
    pub boot: Uuid,
    /// For people: what it does, and where.
    pub name: String,
}

impl Process {
    /// The process that runs this, as the system describes it, serving the configuration at `path`.
    pub fn this(path: &Path) -> Process {
        Process {
            boot: boot_id(),
            name: name_of(format_args!("sanstone serve -c {}", path.display())),
        }
    }
}

/// A daemon that serves, until [`Daemon::stop`]; what it has put on its lanes ends with them.
pub struct Daemon {
    served: Served,
    lanes: Vec<LaneHandle>,
    graph: Graph,
    disks: Vec<Disk>,
    units: Units,
    server: Server,
    /// Locked until all is given up.
    state: Arc<Mutex<State>>,
}

impl Daemon {
    /// Opens what `config` serves, on `lanes` of which one is the current one, and begins to serve it.
    /// What leads to the state directory is made too `with_parents`.
    ///
    /// # Errors
    /// What keeps it from serving; nothing stays claimed then.
    pub async fn start(
        config: Config,
        process: &Process,
        lanes: &[LaneHandle],
        with_parents: bool,
    ) -> Result<Daemon, Failure> {
        let served = Served::new(config)?;
        let mut graph = served.config.graph()?;
        let mut disks = Vec::new();
        match serve(
            &served,
            process,
            &mut graph,
            &mut disks,
            lanes,
            with_parents,
        )
        .await
        {
            Ok(Serving {
                units,
                server,
                state,
            }) => Ok(Daemon {
                served,
                lanes: lanes.to_vec(),
                graph,
                disks,
                units,
                server,
                state,
            }),
            Err(failure) => {
                // Before its disks are let go, as at the end.
                close(&mut graph).await;
                drop(disks);
                Err(failure)
            }
        }
    }

    /// The addresses that it listens on, with the ports that the system chose.
    pub fn portals(&self) -> &[SocketAddr] {
        self.server.portals()
    }

    /// Where it keeps what outlives a restart; nobody else does there.
    pub fn state_directory(&self) -> PathBuf {
        self.config().state_directory()
    }

    fn config(&self) -> &Config {
        &self.served.config
    }

    /// The disks that it serves.
    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// Where the time of commands has gone since the start, in tables for people.
    pub fn report(&self) -> String {
        format!("{}{}", self.units.stage_times(), self.graph.report())
    }

    /// What there is to see of it now.
    pub async fn view(&self) -> View {
        self.onlooker().view().await
    }

    /// Looks at it as it is served now, also while it is given another configuration.
    pub fn onlooker(&self) -> Onlooker {
        let names = self.config().volume_names();
        let trees = names.filter_map(|name| Some((name.clone(), self.graph.view(name)?)));
        let disks = self.disks.iter();
        let disks = disks.map(|disk| (disk.tree.name().to_owned(), disk.uuid));
        Onlooker {
            configuration: self.config().path().to_owned(),
            state: self.state_directory(),
            trees: trees.collect(),
            disks: disks.collect(),
            targets: self.server.targets().to_vec(),
            reporter: self.server.reporter(),
            units: self.units.clone(),
        }
    }

    /// Looks again at what may have changed outside: the configuration, which it says, the lengths of
    /// files, which its disks follow, and their paths. Whether a file has another length.
    pub async fn look_again(&self) -> bool {
        self.tell_changed_configuration().await;
        let has_grown = self.follow_lengths();
        self.tell_lost_paths();
        self.units.tell_lengths();
        has_grown
    }

    /// Serves `config` from now on, which was [loaded to be served](Config::load_to_serve), and gives
    /// what that changes, a line each. Sessions that it does not concern see nothing of it. Returns when what
    /// is served no more has ended, been flushed and been given up. A dry run changes nothing.
    ///
    /// # Errors
    /// What cannot be changed while it is served, or did not work; all is as before then.
    pub async fn apply(
        &mut self,
        config: Config,
        is_dry_run: bool,
    ) -> Result<Vec<String>, Failure> {
        let next = Served::new(config)?;
        let Difference { lines, mut refused } = Difference::between(&self.served, &next);
        refused.extend(self.sanitized_and_gone(&next));
        if !refused.is_empty() {
            let path = next.config.path().display();
            let refused = refused.iter().map(|refused| format!("{path}: {refused}"));
            return Err(Failure::Wrong(refused.collect::<Vec<_>>().join("\n")));
        }
        if is_dry_run {
            let portals = next.config.portals()?;
            let tried = self.server.try_portals(portals).await;
            tried.map_err(|error| next.config.not_started(&error))?;
            return Ok(lines);
        }
        let before = self.graph.replace_volumes(next.config.volumes().clone());
        let before = before.map_err(|error| next.config.wrong(&error))?;
        let records = lock(&self.state).records.clone();
        self.graph.begin_trial();
        let known = match self.change_to(&next).await {
            Ok(disks) => std::mem::replace(&mut self.disks, disks),
            Err(failure) => {
                self.go_back(before, records).await;
                return Err(failure);
            }
        };
        self.graph.keep_made();
        let disks = self.disks.iter();
        let served: BTreeMap<_, _> = disks
            .map(|disk| (disk.tree.name().to_owned(), disk.uuid))
            .collect();
        let gone: Vec<String> = known
            .iter()
            .map(|disk| disk.tree.name().to_owned())
            .filter(|name| !served.contains_key(name))
            .collect();
        self.units.remove(&gone).await;
        for failed in self.graph.close_all_but(&next.open()).await {
            tracing::warn!("{failed}");
        }
        // What nobody has any more would not have been closed.
        drop(known);
        lock(&self.state).served = served;
        self.served = next;
        Ok(lines)
    }

    /// Opens what is new in `next` and serves all of it. What is served no more is still open.
    async fn change_to(&mut self, next: &Served) -> Result<Vec<Disk>, Failure> {
        let config = &next.config;
        let served: Vec<String> = next.volumes().into_iter().collect();
        let directory = config.state_directory();
        let site = config.site(&directory, &served);
        let refused = |refusal| config.refused(refusal);
        let records = lock(&self.state).records.clone();
        let opened = open::open_all(&site, &records, &mut self.graph, &self.lanes).await;
        let opened = opened.map_err(refused)?;
        let known = lock(&self.state).served.clone();
        for disk in &opened.disks {
            let name = disk.tree.name();
            if known.get(name).is_some_and(|uuid| *uuid != disk.uuid) {
                let message =
                    format!("volume \"{name}\" would be another disk: restart to apply it");
                return Err(Failure::Failed(message));
            }
        }
        let is_new = |disk: &&Disk| !known.contains_key(disk.tree.name());
        let mut specs = Vec::new();
        for disk in opened.disks.iter().filter(is_new) {
            specs.push(disk_spec(disk, &lock(&self.state))?);
        }
        // What is served no more has its identity until it is gone.
        let disks = {
            let mut state = lock(&self.state);
            let disks = state.keep_opened(&site, opened).map_err(refused)?;
            state.served.extend(known);
            disks
        };
        let server_config = server_config(next, &self.state)?;
        let added = self.units.add(&specs).await;
        added.map_err(|error| config.failed(&ConfigError::new(None, error.to_string())))?;
        if let Err(error) = self.server.change(server_config).await {
            let added: Vec<String> = specs.into_iter().map(|spec| spec.name).collect();
            self.units.remove(&added).await;
            return Err(config.not_started(&error));
        }
        Ok(disks)
    }

    /// Why disks that `next` does not serve cannot go now.
    fn sanitized_and_gone(&self, next: &Served) -> Vec<String> {
        let stays = next.volumes();
        let reports = self.units.reports().into_iter();
        let gone = reports.filter(|(name, _)| !stays.contains(name));
        gone.filter(|(_, report)| matches!(report.sanitize, Some(SanitizeReport::Running { .. })))
            .map(|(name, _)| {
                format!("volume \"{name}\" is being sanitized: wait until that has ended")
            })
            .collect()
    }

    /// A change did not work: all is as it was. Files that it has made go again, and what was recorded of
    /// them. A file that was there has its identity from now on: it carries its mark.
    async fn go_back(&mut self, volumes: Volumes, mut records: Records) {
        for failed in self.graph.close_all_but(&self.served.open()).await {
            tracing::warn!("{failed}");
        }
        let removed = self.graph.remove_made().into_iter();
        let removed: Vec<PathBuf> = removed
            .map(|path| store::resolve(&path).unwrap_or(path))
            .collect();
        if self.graph.replace_volumes(volumes).is_err() {
            tracing::error!("the configuration that is served is wrong now");
        }
        let disks = self.disks.iter();
        let served = disks.map(|disk| (disk.tree.name().to_owned(), disk.uuid));
        let names: Vec<String> = self.served.volumes().into_iter().collect();
        let directory = self.state_directory();
        let site = self.config().site(&directory, &names);
        let mut state = lock(&self.state);
        state.served = served.collect();
        records.keep_marked(&state.records, &removed);
        if records != state.records {
            match records.save() {
                Ok(()) => state.records = records,
                Err(error) => tracing::warn!(%error, "a change in vain stays recorded"),
            }
        }
        if let Err(error) = state.serves(&site) {
            tracing::warn!(%error, "the state directory names the other configuration");
        }
    }

    /// Takes no new connections and commands, answers what was accepted, flushes the volumes and gives
    /// up what they have claimed.
    ///
    /// # Errors
    /// The first volume whose last flush failed; all else has been done.
    pub async fn stop(self) -> Result<(), FlushError> {
        self.tell_lost_paths();
        let Daemon {
            mut graph,
            disks,
            units,
            server,
            state,
            ..
        } = self;
        server.stop().await;
        units.stop();
        let flushed = units.flush().await;
        // Before its disks are let go: what nobody has any more is not closed.
        close(&mut graph).await;
        drop((units, disks, state));
        flushed
    }

    /// Says when the configuration is another one than that which is served, and what is wrong with it.
    async fn tell_changed_configuration(&self) {
        let path = self.config().path().display();
        match self.config().changed().await {
            Ok(None) => {}
            Ok(Some(Ok(()))) => tracing::warn!(
                %path,
                "the configuration has changed; `sanstone apply -c` with this path, or a restart, serves it"
            ),
            Ok(Some(Err(failure))) => {
                for line in failure.to_string().lines() {
                    tracing::error!(
                        "the configuration has changed, and a restart would fail: {line}"
                    );
                }
            }
            Err(error) => tracing::warn!(
                %path,
                %error,
                "the configuration cannot be read any more; a restart would fail"
            ),
        }
    }

    /// Lets the volumes follow files that became longer, and says what was found, if anything.
    fn follow_lengths(&self) -> bool {
        let found = self.graph.look_at_lengths();
        let has_found = !found.is_empty();
        for file in found {
            let grown = match file {
                Ok(grown) => grown,
                Err(error) => {
                    tracing::error!("{error}");
                    continue;
                }
            };
            let path = grown.path.display();
            let (from, to) = (grown.from_bytes, grown.len.bytes());
            tracing::info!(%path, from, to, "a file has grown");
            let follows = |disk: &Disk| disk.tree.shape().len.is_shared_with(&grown.len);
            if !self.disks.iter().any(follows) {
                let why = "a stripe or concat keeps the length that it was created with; for a longer one, create a new one";
                tracing::warn!(%path, "no served volume grows with this file: {why}");
            }
        }
        has_found
    }

    /// Says which files are served without the path that they were opened by.
    fn tell_lost_paths(&self) {
        for message in self.graph.look_at_paths() {
            tracing::error!("{message}");
        }
    }
}

/// What a start has made beside the graph.
struct Serving {
    units: Units,
    server: Server,
    state: Arc<Mutex<State>>,
}

async fn serve(
    served: &Served,
    process: &Process,
    graph: &mut Graph,
    disks: &mut Vec<Disk>,
    lanes: &[LaneHandle],
    with_parents: bool,
) -> Result<Serving, Failure> {
    let config = &served.config;
    let volumes: Vec<String> = served.volumes().into_iter().collect();
    let directory = config.state_directory();
    let site = config.site(&directory, &volumes);
    let refused = |refusal| config.refused(refusal);
    let mut state = open::prepare(&site, with_parents).map_err(refused)?;
    let opened = open::open(&site, process, &mut state, graph, lanes).await;
    *disks = opened.map_err(refused)?;
    let state = Arc::new(Mutex::new(state));
    let server_config = server_config(served, &state)?;
    let units = Units::open(units_config(config, &state, disks)?, lanes).await;
    let units = units.map_err(|error| config.failed(&ConfigError::new(None, error.to_string())))?;
    let server = Server::start(server_config, &units).await;
    let server = server.map_err(|error| config.not_started(&error))?;
    Ok(Serving {
        units,
        server,
        state,
    })
}

/// Gives up what the volumes have claimed. What cannot be given up tells the next one whose it was,
/// and that is us.
pub(crate) async fn close(graph: &mut Graph) {
    for failed in graph.close().await {
        tracing::warn!("{failed}");
    }
}

/// The disks that are served, with what was kept of them.
pub(crate) fn units_config(
    config: &Config,
    state: &Arc<Mutex<State>>,
    disks: &[Disk],
) -> Result<UnitsConfig, Failure> {
    let mut specs = Vec::new();
    for disk in disks {
        specs.push(disk_spec(disk, &lock(state))?);
    }
    Ok(UnitsConfig {
        disks: specs,
        keep: Some(keep(state.clone())),
        limits: config.unit_limits().map_err(|error| config.wrong(&error))?,
    })
}

/// A disk with what was kept of it.
fn disk_spec(disk: &Disk, state: &State) -> Result<DiskSpec, Failure> {
    let name = disk.tree.name().to_owned();
    Ok(DiskSpec {
        kept: state.kept_of(&disk.uuid, &name)?,
        name,
        uuid: *disk.uuid.as_bytes(),
        open: open_on_lane(&disk.tree),
    })
}

/// What the front is to serve.
fn server_config(served: &Served, state: &Arc<Mutex<State>>) -> Result<ServerConfig, Failure> {
    let config = &served.config;
    let mut targets = Vec::new();
    for table in served.targets.iter().cloned() {
        let luns = table.luns.into_iter().map(|(number, lun)| {
            let spec = LunSpec {
                volume: lun.volume,
                removable: lun.removable,
                read_only: lun.read_only,
            };
            (number, spec)
        });
        let mut portal_groups = table.portal_groups;
        for group in &mut portal_groups {
            // The port's name (RFC 7143 §4.4.4).
            let port = format!("{},t,0x{:04x}", table.name, group.tag);
            group.relative_port = lock(state).relative_port(&port)?;
        }
        targets.push(TargetSpec {
            name: table.name,
            portal_groups,
            luns: luns.collect(),
            allow: table.allow.map_or(Allow::Everyone, Allow::Names),
            allow_from: table.allow_from,
            chap: table.chap,
            redirect: table.redirect,
        });
    }
    Ok(ServerConfig {
        targets,
        discovery: served.discovery.clone(),
        digests: config.digests(),
        limits: config.limits().clone(),
    })
}

fn open_on_lane(tree: &Tree) -> OpenVolume {
    let tree = tree.clone();
    Arc::new(move || {
        let tree = tree.clone();
        LaneFuture::new(async move { tree.on_lane().await })
    })
}

/// Keeps logical units' state in the state directory, where its fsyncs hold up no lane.
fn keep(state: Arc<Mutex<State>>) -> Keep {
    Arc::new(move |volume, text| {
        let (state, volume) = (state.clone(), volume.to_owned());
        LaneFuture::new(async move {
            let keep = move || {
                let kept = lock(&state).keep(&volume, text.as_deref());
                kept.map_err(|error| error.to_string())
            };
            let kept = blocking::run(blocking::Kind::Files, keep).await;
            kept.unwrap_or_else(|error| Err(error.to_string()))
        })
    })
}

pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
