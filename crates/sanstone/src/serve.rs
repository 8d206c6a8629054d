//! `sanstone serve`: opens the volumes of a configuration, serves its targets, and on SIGTERM or
//! SIGINT (or, supervised, when standard input closes) finishes what was accepted before it ends; on a
//! second one it ends at once.
//! SIGHUP has it look at the lengths of its files again, SIGUSR1 say where the time went.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use engine::{
    LaneFuture, LaneHandle, blocking,
    cross::{Receiver, channel},
};
use node::{Disk, State};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1},
    iterator::Signals,
};
use target::{Allow, Keep, LunSpec, OpenVolume, Server, ServerConfig, StartError, TargetSpec};
use volume::{
    config::ConfigError,
    graph::{Graph, Tree},
};

use crate::{config::Config, descriptors, failure::Failure, lanes::Lanes, log, probe};

/// Serves until told to stop.
pub(crate) fn run(path: &Path, supervised: bool) -> Result<(), Failure> {
    // First of all: until then a SIGHUP ends the process.
    let told = listen(supervised)?;
    let (config, _) = Config::load_to_serve(path, supervised)?;
    if !config.has_targets() {
        let message = "there is no target to serve; write a [target.\"iqn.…\"] table".to_owned();
        return Err(Failure::Wrong(format!("{}: {message}", path.display())));
    }
    // Before anything is made for volumes that nobody could reach.
    probe_portals(&config)?;
    // A lane that panics has lost its connections' state: ending the process tells everyone.
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("a nameless thread");
        log::say(format_args!("sanstone: {name} {panic}"));
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            log::say(backtrace);
        }
        log::flush();
        std::process::abort();
    }));
    let mut graph = config.graph()?;
    let lanes = Lanes::start(config.lanes())?;
    let served = lanes.first.block_on(async {
        let ended = serve(&config, &mut graph, &lanes.handles(), &told, supervised).await;
        // However it ended: what was claimed is given up.
        close(&mut graph).await;
        ended?;
        tracing::info!("stopped");
        Ok(())
    });
    lanes.stop();
    served
}

/// Opens the volumes and serves them until told to stop.
async fn serve(
    config: &Config,
    graph: &mut Graph,
    lanes: &[LaneHandle],
    told: &Receiver<Told>,
    supervised: bool,
) -> Result<(), Failure> {
    let (state, disks) = open(config, graph, lanes, !supervised).await?;
    let state = Arc::new(Mutex::new(state));
    let server_config = server_config(config, &state, &disks)?;
    let server = Server::start(server_config, lanes)
        .await
        .map_err(|error| not_started(config, &error))?;
    for portal in server.portals() {
        tracing::info!(%portal, "serving");
    }
    if supervised {
        announce(&server)?;
    }
    loop {
        match told.receive().await {
            Some(Told::Report) => {
                tracing::info!(
                    "where the time went\n{}{}",
                    server.stage_times(),
                    graph.report()
                );
            }
            Some(Told::LookAgain) => {
                tell_changed_configuration(config);
                follow_lengths(graph, &disks);
                tell_lost_paths(graph);
                server.tell_lengths();
            }
            Some(Told::Stop) | None => break,
        }
    }
    tell_lost_paths(graph);
    tracing::info!(
        "stopping: finishing the commands that were accepted; a second SIGTERM or SIGINT ends at once"
    );
    Ok(server.stop().await?)
}

/// Looks whether the portals can be bound.
fn probe_portals(config: &Config) -> Result<(), Failure> {
    let targets = config.targets().map_err(|error| config.wrong(&error))?;
    let groups = targets.into_iter().flat_map(|target| target.portal_groups);
    // What several targets share is asked for once.
    let portals: BTreeSet<_> = groups.flat_map(|group| group.portals).collect();
    probe::portals(portals).map_err(|error| not_started(config, &error))
}

/// Why the server did not start, with the place of the portal if that is why.
fn not_started(config: &Config, error: &StartError) -> Failure {
    let place = match error {
        StartError::Portal { address, .. } => config.place_of_portal(*address),
        StartError::Volume(_) => None,
    };
    config.failed(&ConfigError::new(place, error.to_string()))
}

/// Says when the configuration is another one than that which is served.
fn tell_changed_configuration(config: &Config) {
    let path = config.path.display();
    match config.has_changed() {
        Ok(false) => {}
        Ok(true) => tracing::warn!(
            %path,
            "the configuration has changed since start; restart to apply it"
        ),
        Err(error) => tracing::warn!(
            %path,
            %error,
            "the configuration cannot be read any more; a restart would fail"
        ),
    }
}

/// Signals within it are one request to stop: `timeout` sends SIGTERM to its child and to the child's
/// group, and a shell's trap may add one to the terminal's.
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// What whoever started us can want.
#[derive(Clone, Copy)]
enum Told {
    Stop,
    Report,
    LookAgain,
}

/// Lets the volumes follow files that became longer, and says what was found.
fn follow_lengths(graph: &Graph, disks: &[Disk]) {
    let found = graph.look_at_lengths();
    if found.is_empty() {
        tracing::info!("SIGHUP: no file has changed its length");
    }
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
        if !disks.iter().any(follows) {
            let why = "a stripe keeps the length that it was created with; for a longer one, create a new stripe";
            tracing::warn!(%path, "no served volume grows with this file: {why}");
        }
    }
}

/// Says which files are served without the path that they were opened by.
fn tell_lost_paths(graph: &Graph) {
    for message in graph.look_at_paths() {
        tracing::error!("{message}");
    }
}

/// Listens for SIGTERM and SIGINT (stop), SIGUSR1 (report) and SIGHUP (look at the lengths again).
fn listen(supervised: bool) -> Result<Receiver<Told>, Failure> {
    let (teller, told) = channel();
    if supervised {
        let teller = teller.clone();
        let watch = move || {
            // Whatever is written there means nothing; only the end counts.
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            let _ = teller.send(Told::Stop);
        };
        thread::Builder::new()
            .name("supervisor".into())
            .spawn(watch)?;
    }
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP]).context("catching signals")?;
    let watch = move || {
        let mut stopping: Option<Instant> = None;
        for signal in signals.forever() {
            let what = match signal {
                SIGUSR1 => Told::Report,
                SIGHUP => Told::LookAgain,
                _ => Told::Stop,
            };
            if matches!(what, Told::Stop)
                && stopping.get_or_insert_with(Instant::now).elapsed() > ONE_REQUEST
            {
                log::say(
                    "sanstone: second request to stop: ending at once, without the commands that are not finished",
                );
                log::flush();
                std::process::exit(1);
            }
            if teller.send(what).is_err() {
                break;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(watch)?;
    Ok(told)
}

/// Tells whoever started us where we serve.
fn announce(server: &Server) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for portal in server.portals() {
        writeln!(out, "{portal}")?;
    }
    out.flush()
}

/// Opens the disks that are served.
async fn open(
    config: &Config,
    graph: &mut Graph,
    lanes: &[LaneHandle],
    with_parents: bool,
) -> Result<(State, Vec<Disk>), Failure> {
    let served = config.served()?;
    let state = config.state_directory();
    let site = config.site(&state, &served);
    let refused = |refusal| config.refused(refusal);
    let mut state = node::prepare(&site, with_parents).map_err(refused)?;
    let disks = node::open(&site, &mut state, graph, lanes).await;
    Ok((state, disks.map_err(refused)?))
}

/// Gives up what the volumes have claimed. What cannot be given up tells the next one whose it was,
/// and that is us.
async fn close(graph: &mut Graph) {
    for failed in graph.close().await {
        tracing::warn!("{failed}");
    }
}

/// Keeps logical units' state in the state directory, where its fsyncs hold up no lane.
fn keep(state: Arc<Mutex<State>>) -> Keep {
    Arc::new(move |volume, text| {
        let (state, volume) = (state.clone(), volume.to_owned());
        LaneFuture::new(async move {
            let keep = move || {
                let state = state.lock().unwrap_or_else(PoisonError::into_inner);
                let kept = state.keep(&volume, text.as_deref());
                kept.map_err(|error| error.to_string())
            };
            let kept = blocking::run(blocking::Kind::Files, keep).await;
            kept.unwrap_or_else(|error| Err(error.to_string()))
        })
    })
}

fn server_config(
    config: &Config,
    state: &Arc<Mutex<State>>,
    disks: &[Disk],
) -> Result<ServerConfig, Failure> {
    let limits = config.limits().map_err(|error| config.wrong(&error))?;
    descriptors::raise((limits.connections_max + 2 * limits.logins_max) as u64);
    let mut targets = Vec::new();
    for table in config.targets().map_err(|error| config.wrong(&error))? {
        let mut luns = BTreeMap::new();
        for (number, lun) in table.luns {
            let Some(disk) = disks.iter().find(|disk| disk.tree.name() == lun.volume) else {
                continue;
            };
            let kept = {
                let state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.kept(&lun.volume)?
            };
            luns.insert(
                number,
                LunSpec {
                    volume: lun.volume.clone(),
                    uuid: *disk.uuid.as_bytes(),
                    open: open_on_lane(&disk.tree),
                    kept,
                    removable: lun.removable,
                    read_only: lun.read_only,
                },
            );
        }
        let mut portal_groups = table.portal_groups;
        for group in &mut portal_groups {
            // The port's name (RFC 7143 §4.4.4).
            let port = format!("{},t,0x{:04x}", table.name, group.tag);
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            group.relative_port = state.relative_port(&port)?;
        }
        let allow = table.allow.map_or(Allow::Everyone, Allow::Names);
        targets.push(TargetSpec {
            name: table.name,
            portal_groups,
            luns,
            allow,
            allow_from: table.allow_from,
            chap: table.chap,
            redirect: table.redirect,
        });
    }
    Ok(ServerConfig {
        keep: Some(keep(state.clone())),
        targets,
        discovery: config.discovery().map_err(|error| config.wrong(&error))?,
        digests: config.digests(),
        limits,
    })
}

fn open_on_lane(tree: &Tree) -> OpenVolume {
    let tree = tree.clone();
    Arc::new(move || {
        let tree = tree.clone();
        LaneFuture::new(async move { tree.on_lane().await })
    })
}
