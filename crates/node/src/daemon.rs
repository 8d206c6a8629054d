//! A whole daemon, from its configuration to its end: the disks are opened, the targets served, and at
//! the end what was accepted is finished, flushed, and given up. It knows its lanes and the engine's file
//! system, and no process: signals, descriptors and the terminal are for whoever starts it.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use engine::{LaneFuture, LaneHandle, blocking};
use front_iscsi::{Allow, LunSpec, Server, ServerConfig, TargetSpec};
use unit::{DiskSpec, FlushError, Keep, OpenVolume, Units, UnitsConfig};
use uuid::Uuid;
use volume::{
    claim::{boot_id, name_of},
    config::ConfigError,
    graph::{Graph, Tree},
};

use crate::{
    Failure,
    config::Config,
    open::{self, Disk},
    state::State,
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
    config: Config,
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
        let mut graph = config.graph()?;
        let mut disks = Vec::new();
        match serve(
            &config,
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
                config,
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

    /// The disks that it serves.
    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// Where the time of commands has gone since the start, in tables for people.
    pub fn report(&self) -> String {
        format!("{}{}", self.units.stage_times(), self.graph.report())
    }

    /// Looks again at what may have changed outside: the configuration, which it says, the lengths of
    /// files, which its disks follow, and their paths. Whether a file has another length.
    pub fn look_again(&self) -> bool {
        self.tell_changed_configuration();
        let has_grown = self.follow_lengths();
        self.tell_lost_paths();
        self.units.tell_lengths();
        has_grown
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
    fn tell_changed_configuration(&self) {
        let path = self.config.path().display();
        match self.config.changed() {
            Ok(None) => {}
            Ok(Some(Ok(()))) => tracing::warn!(
                %path,
                "the configuration has changed since start; restart to apply it"
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
                let why = "a stripe keeps the length that it was created with; for a longer one, create a new stripe";
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
    config: &Config,
    process: &Process,
    graph: &mut Graph,
    disks: &mut Vec<Disk>,
    lanes: &[LaneHandle],
    with_parents: bool,
) -> Result<Serving, Failure> {
    let served = config.served()?;
    let directory = config.state_directory();
    let site = config.site(&directory, &served);
    let refused = |refusal| config.refused(refusal);
    let mut state = open::prepare(&site, with_parents).map_err(refused)?;
    let opened = open::open(&site, process, &mut state, graph, lanes).await;
    *disks = opened.map_err(refused)?;
    let state = Arc::new(Mutex::new(state));
    let server_config = server_config(config, &state)?;
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
        let name = disk.tree.name().to_owned();
        specs.push(DiskSpec {
            kept: lock(state).kept(&name)?,
            name,
            uuid: *disk.uuid.as_bytes(),
            open: open_on_lane(&disk.tree),
        });
    }
    Ok(UnitsConfig {
        disks: specs,
        keep: Some(keep(state.clone())),
        limits: config.unit_limits().map_err(|error| config.wrong(&error))?,
    })
}

/// What the front is to serve: the targets of `config`.
fn server_config(config: &Config, state: &Arc<Mutex<State>>) -> Result<ServerConfig, Failure> {
    let wrong = |error| config.wrong(&error);
    let mut targets = Vec::new();
    for table in config.targets().map_err(wrong)? {
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
        discovery: config.discovery().map_err(wrong)?,
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
