//! A whole daemon, from its configuration to its end: it opens the disks, serves the targets, and at the
//! end finishes accepted work, flushes, and releases its claims. It uses lanes and the engine's file
//! system but knows nothing of the process: signals, descriptors and the terminal are up to the caller.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use engine::{
    LaneFuture, LaneHandle, blocking, store,
    task::{self, Either},
    time,
};
use front_iscsi::{Allow, LunSpec, Server, ServerConfig, TargetSpec};
use unit::{DiskSpec, FlushError, Keep, OpenVolume, Units, UnitsConfig};
use uuid::Uuid;
use volume::{
    claim::{boot_id, name_of},
    config::{ConfigError, Volumes},
    graph::{Graph, Tree},
};

use crate::{
    Error, Failure, Refusal,
    config::{Config, TargetTable},
    difference::{Difference, Served},
    open::{self, Disk},
    record::Records,
    state::State,
    view::{Onlooker, Seen, View},
};

/// How long volumes may still take to open when the change that needs them is given up: those that just take their time.
const GIVE_UP_PATIENCE: Duration = Duration::from_secs(5);

/// A daemon's process, as described to others that want a stripe it has claimed.
#[derive(Clone, Debug)]
pub struct Process {
    /// The boot ID of the machine; nil if unknown. A claimant from the same boot that no longer holds
    /// its lock is dead.
    pub boot: Uuid,
    /// For people: what it does, and where.
    pub name: String,
}

impl Process {
    /// Describes the current process, which serves the configuration at `path`.
    pub fn this(path: &Path) -> Process {
        Process {
            boot: boot_id(),
            name: name_of(format_args!("sanstone serve -c {}", path.display())),
        }
    }
}

/// A serving daemon, until [`Daemon::stop`]. The tasks on its lanes end with the lanes.
pub struct Daemon {
    served: Served,
    lanes: Vec<LaneHandle>,
    graph: Graph,
    disks: Vec<Disk>,
    units: Units,
    server: Server,
    /// Holds the lock of the state directory until everything has been released.
    state: Arc<Mutex<State>>,
}

impl Daemon {
    /// Opens what `config` serves on `lanes`, one of which must be the current one, and starts
    /// serving. `with_parents` also creates missing parents of the state directory.
    ///
    /// # Errors
    /// Whatever keeps it from serving; nothing stays claimed then.
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
                // Before the disks are dropped, as in `stop`.
                close(&mut graph).await;
                drop(disks);
                Err(failure)
            }
        }
    }

    /// The addresses it listens on, including ports chosen by the system.
    pub fn portals(&self) -> &[SocketAddr] {
        self.server.portals()
    }

    /// The directory of its persistent state, which no other daemon may use.
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

    /// Where the time of commands has gone since the start, as tables for people.
    pub fn report(&self) -> String {
        format!("{}{}", self.units.stage_times(), self.graph.report())
    }

    /// A snapshot of what it is doing now.
    pub async fn view(&self) -> View {
        self.onlooker().view().await
    }

    /// A handle for observing it as it is served now, even while another configuration is being applied.
    pub fn onlooker(&self) -> Onlooker {
        let names = self.config().volume_names();
        let trees = names.filter_map(|name| Some((name.clone(), self.graph.view(name)?)));
        let disks = self.disks.iter();
        let disks = disks.map(|disk| (disk.tree.name().to_owned(), disk.uuid));
        let seen = Seen {
            configuration: self.config().path().to_owned(),
            state: self.state_directory(),
            trees: trees.collect(),
            disks: disks.collect(),
            targets: self.server.targets().to_vec(),
            attached: None,
            units: self.units.clone(),
        };
        Onlooker {
            seen,
            reporter: self.server.reporter(),
        }
    }

    /// Checks for changes from outside: of the configuration (logged), of file lengths (the disks
    /// follow), and of the files' paths (logged). Returns whether a file has another length, even one that
    /// could not be followed.
    pub async fn look_again(&self) -> bool {
        self.tell_changed_configuration().await;
        let has_grown = self.follow_lengths();
        self.tell_lost_paths();
        self.units.tell_lengths();
        has_grown
    }

    /// Switches to `config`, which must have been [loaded to be served](Config::load_to_serve), and returns
    /// the changes, one line each. Sessions that are not affected notice nothing. Returns after everything no
    /// longer served has ended, been flushed and released. A dry run changes nothing. If `give_up` is ready while
    /// volumes are being opened, for which it may wait long, nothing changes either. Drop it only when it is over:
    /// half a change stays in the files.
    ///
    /// # Errors
    /// Changes that are not possible while serving, or that failed; nothing has changed then.
    pub async fn apply(
        &mut self,
        config: Config,
        is_dry_run: bool,
        give_up: impl Future<Output = ()>,
    ) -> Result<Vec<String>, Failure> {
        let next = Served::new(config)?;
        let Difference { lines, mut refused } = Difference::between(&self.served, &next);
        let (was_served, is_served) = (self.served.volumes(), next.volumes());
        let gone: Vec<String> = was_served.difference(&is_served).cloned().collect();
        // From now on: a sanitize takes hours, and its volume would be closed under it.
        let no_sanitize = self.units.bar_sanitize(&gone);
        if let Err(running) = &no_sanitize {
            let wait = "is being sanitized: wait until the sanitize has finished";
            let running = running.iter();
            refused.extend(running.map(|name| format!("volume \"{name}\" {wait}")));
        }
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
        let records = aside(&self.state, |state| state.records.clone()).await?;
        let before = self.graph.replace_volumes(next.config.volumes().clone());
        let before = before.map_err(|error| next.config.wrong(&error))?;
        self.graph.begin_trial();
        let known = match self.change_to(&next, &records, give_up).await {
            Ok(disks) => std::mem::replace(&mut self.disks, disks),
            Err(failure) => {
                self.go_back(before, records).await;
                return Err(failure);
            }
        };
        self.graph.keep_made();
        self.units.remove(&gone).await;
        for failed in self.graph.close_all_but(&next.open()).await {
            tracing::warn!("{failed}");
        }
        // Not before: a volume that nobody holds any more would not have been closed.
        drop(known);
        self.served = next;
        let served = self.identities();
        // It is applied all the same: the names of closed volumes do no harm there.
        let _ = aside(&self.state, |state| state.served = served).await;
        Ok(lines)
    }

    /// The identities of the served disks, by the names of their volumes.
    fn identities(&self) -> BTreeMap<String, Uuid> {
        let disks = self.disks.iter();
        disks
            .map(|disk| (disk.tree.name().to_owned(), disk.uuid))
            .collect()
    }

    /// Opens what is new in `next` and serves all of it. Volumes that are no longer served stay open.
    async fn change_to(
        &mut self,
        next: &Served,
        records: &Records,
        give_up: impl Future<Output = ()>,
    ) -> Result<Vec<Disk>, Failure> {
        let config = &next.config;
        let served: Vec<String> = next.volumes().into_iter().collect();
        let directory = config.state_directory();
        let site = config.site(&directory, &served);
        let refused = |refusal| config.refused(refusal);
        let known = self.identities();
        let opening = open::open_all(&site, records, &mut self.graph, &self.lanes);
        let opened = unless(opening, give_up).await.ok_or_else(|| {
            let message = "the daemon is stopping, and nothing has changed";
            Failure::Failed(message.to_owned())
        })?;
        let opened = opened.map_err(refused)?;
        for disk in &opened.disks {
            let name = disk.tree.name();
            if known.get(name).is_some_and(|uuid| *uuid != disk.uuid) {
                let message =
                    format!("volume \"{name}\" would become another disk: restart to apply this");
                return Err(Failure::Failed(message));
            }
        }
        let site = site.to_send();
        let kept = aside(&self.state, move |state| {
            let disks = state.keep_opened(&site.site(), opened)?;
            let is_new = |disk: &&Disk| !known.contains_key(disk.tree.name());
            let new = disks.iter().filter(is_new);
            let new = new.map(|disk| disk_spec(disk, state));
            let new = new.collect::<Result<Vec<_>, _>>()?;
            // Volumes no longer served keep their identity until they are closed.
            state.served.extend(known);
            Ok::<_, Refusal>((disks, new))
        });
        let (disks, new) = kept.await?.map_err(refused)?;
        let server_config = server_config(next, &self.state).await?;
        let added = self.units.add(&new).await;
        added.map_err(|error| config.failed(&ConfigError::new(None, error.to_string())))?;
        if let Err(error) = self.server.change(server_config).await {
            let added: Vec<String> = new.into_iter().map(|spec| spec.name).collect();
            self.units.remove(&added).await;
            return Err(config.not_started(&error));
        }
        Ok(disks)
    }

    /// Undoes a failed change. Files that it created are removed, with their records. A file that existed
    /// before keeps its new identity, because it carries the mark.
    async fn go_back(&mut self, volumes: Volumes, records: Records) {
        for failed in self.graph.close_all_but(&self.served.open()).await {
            tracing::warn!("{failed}");
        }
        let removed = self.graph.remove_made().into_iter();
        let removed: Vec<PathBuf> = removed
            .map(|path| store::resolve(&path).unwrap_or(path))
            .collect();
        if self.graph.replace_volumes(volumes).is_err() {
            tracing::error!(
                "the previous volumes could not be restored after a failed change: restart \
                 the daemon"
            );
        }
        let names: Vec<String> = self.served.volumes().into_iter().collect();
        let directory = self.state_directory();
        let site = self.config().site(&directory, &names).to_send();
        let served = self.identities();
        let back = aside(&self.state, move |state| {
            state.served = served;
            state.take_back(records, &removed);
            state.serves(&site.site())
        });
        if let Err(error) = back.await.and_then(|served| served) {
            tracing::warn!(
                %error,
                "the state directory still names the configuration of the failed change"
            );
        }
    }

    /// Stops accepting connections and commands, answers what was accepted, flushes the volumes and
    /// releases their claims.
    ///
    /// # Errors
    /// The first volume whose last flush failed; everything else has been done.
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
        // Before the disks are dropped: a volume that nobody holds any more would not be closed.
        close(&mut graph).await;
        drop((units, disks, state));
        flushed
    }

    /// Logs whether the configuration file differs from the one being served, and any errors in it.
    async fn tell_changed_configuration(&self) {
        let path = self.config().path().display();
        match self.config().changed().await {
            Ok(None) => {}
            Ok(Some(Ok(()))) => tracing::warn!(
                %path,
                "the configuration file has changed; `sanstone apply -c` with this path, or a restart, \
                 puts it into effect"
            ),
            Ok(Some(Err(failure))) => {
                for line in failure.to_string().lines() {
                    tracing::error!(
                        "the configuration file has changed, and a restart would fail: {line}"
                    );
                }
            }
            Err(error) => tracing::warn!(
                %path,
                %error,
                "the configuration file can no longer be read; a restart would fail"
            ),
        }
    }

    /// Lets the volumes grow with their files, and logs any changes.
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
                let why = "a stripe or concat keeps the length that it was created with; create a new \
                     one to use more space";
                tracing::warn!(%path, "no served volume grows with this file: {why}");
            }
        }
        has_found
    }

    /// Logs which files are being served although their path no longer leads to them.
    fn tell_lost_paths(&self) {
        for message in self.graph.look_at_paths() {
            tracing::error!("{message}");
        }
    }
}

/// What a start creates besides the graph.
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
    let server_config = server_config(served, &state).await?;
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

/// The outcome of `opening`, unless `give_up` is ready first; then `None`, and what was about to open has had a moment
/// to do so: it is closed in order then.
async fn unless<T>(
    opening: impl Future<Output = T>,
    give_up: impl Future<Output = ()>,
) -> Option<T> {
    let mut opening = pin!(opening);
    match task::either(opening.as_mut(), give_up).await {
        Either::One(opened) => Some(opened),
        Either::Other(()) => {
            let _ = time::timeout(GIVE_UP_PATIENCE, opening).await;
            None
        }
    }
}

/// Runs `work` on the state where it holds up no lane: it reads and writes files, or waits for others that do.
async fn aside<T: Send + 'static>(
    state: &Arc<Mutex<State>>,
    work: impl FnOnce(&mut State) -> T + Send + 'static,
) -> Result<T, Error> {
    let state = state.clone();
    let done = blocking::run(blocking::Kind::Files, move || work(&mut lock(&state)));
    let failed = || "running work on the state directory".to_owned();
    done.await.map_err(|error| Error::io(failed())(error))
}

/// Releases the claims of the volumes. A claim that cannot be released still names us as the
/// previous owner.
pub(crate) async fn close(graph: &mut Graph) {
    for failed in graph.close().await {
        tracing::warn!("{failed}");
    }
}

/// The served disks with their stored state.
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

/// A disk with its stored state.
fn disk_spec(disk: &Disk, state: &State) -> Result<DiskSpec, Error> {
    let name = disk.tree.name().to_owned();
    Ok(DiskSpec {
        kept: state.kept_of(&disk.uuid, &name)?,
        name,
        uuid: *disk.uuid.as_bytes(),
        open: open_on_lane(&disk.tree),
    })
}

/// The configuration of the iSCSI front.
async fn server_config(
    served: &Served,
    state: &Arc<Mutex<State>>,
) -> Result<ServerConfig, Failure> {
    let config = &served.config;
    let tables = served.targets.clone();
    let targets = aside(state, |state| {
        let tables = tables.into_iter();
        tables.map(|table| target_spec(table, state)).collect()
    });
    let targets: Result<_, Error> = targets.await?;
    Ok(ServerConfig {
        targets: targets?,
        discovery: served.discovery.clone(),
        digests: config.digests(),
        limits: config.limits().clone(),
    })
}

/// A target with the numbers of its ports.
fn target_spec(table: TargetTable, state: &mut State) -> Result<TargetSpec, Error> {
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
        // The target port name (RFC 7143 §4.4.4).
        let port = format!("{},t,0x{:04x}", table.name, group.tag);
        group.relative_port = state.relative_port(&port)?;
    }
    Ok(TargetSpec {
        name: table.name,
        portal_groups,
        luns: luns.collect(),
        allow: table.allow.map_or(Allow::Everyone, Allow::Names),
        allow_from: table.allow_from,
        chap: table.chap,
        redirect: table.redirect,
    })
}

fn open_on_lane(tree: &Tree) -> OpenVolume {
    let tree = tree.clone();
    Arc::new(move || {
        let tree = tree.clone();
        LaneFuture::new(async move { tree.on_lane().await })
    })
}

/// Stores the state of logical units in the state directory, off the lanes because of its fsyncs.
fn keep(state: Arc<Mutex<State>>) -> Keep {
    Arc::new(move |volume, text| {
        let (state, volume) = (state.clone(), volume.to_owned());
        LaneFuture::new(async move {
            let kept = aside(&state, move |state| state.keep(&volume, text.as_deref())).await;
            let kept = kept.and_then(|kept| kept);
            kept.map_err(|error| error.to_string())
        })
    })
}

pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
