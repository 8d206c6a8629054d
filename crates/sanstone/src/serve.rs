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

use anyhow::{Context, anyhow};
use engine::{
    LaneFuture, LaneHandle,
    cross::{Receiver, channel},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1},
    iterator::Signals,
};
use target::{Allow, Keep, LunSpec, OpenVolume, Server, ServerConfig, TargetSpec};
use volume::graph::{Graph, Tree};

use crate::{config::Config, descriptors, failure::Failure, lanes::Lanes, log, state::State};

/// Serves until told to stop.
pub(crate) fn run(path: &Path, supervised: bool) -> Result<(), Failure> {
    // First of all: until then a SIGHUP ends the process.
    let told = listen(supervised)?;
    let config = Config::load(path)?;
    if config.targets().map_err(|e| config.wrong(&e))?.is_empty() {
        let message = "there is no target to serve; write a [target.\"iqn.…\"] table".to_owned();
        return Err(Failure::Wrong(format!("{}: {message}", path.display())));
    }
    if !supervised {
        config.check_ports()?;
    }
    config.check_system()?;
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
    let state = State::open(&config.state_directory(), !supervised);
    let state = state.map_err(|error| config.state_failed(&error))?;
    let state = Arc::new(Mutex::new(state));
    let lanes = Lanes::start(config.lanes())?;
    let served = lanes.first.block_on(async {
        let trees = open(&config, &mut graph, &lanes.handles()).await?;
        let server_config = server_config(&config, &state, &trees)?;
        let server = Server::start(server_config, &lanes.handles())
            .await
            .map_err(|error| Failure::Failed(anyhow!("{}: {error}", path.display())))?;
        for portal in server.portals() {
            tracing::info!(%portal, "serving");
        }
        if supervised {
            announce(&server)?;
        }
        loop {
            match told.receive().await {
                Some(Told::Report) => {
                    tracing::info!("where the time went\n{}", server.stage_times());
                }
                Some(Told::LookAgain) => {
                    follow_lengths(&graph, &trees);
                    tell_lost_paths(&graph);
                    server.tell_lengths();
                }
                Some(Told::Stop) | None => break,
            }
        }
        tell_lost_paths(&graph);
        tracing::info!(
            "told to stop: finishing what was accepted; a second SIGTERM or SIGINT ends it at once"
        );
        server.stop().await?;
        tracing::info!("stopped");
        Ok(())
    });
    lanes.stop();
    served
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
fn follow_lengths(graph: &Graph, trees: &[Tree]) {
    let found = graph.look_at_lengths();
    if found.is_empty() {
        tracing::info!("told to look at the lengths again: no file has another one");
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
        let follows = |tree: &Tree| tree.shape().len.is_shared_with(&grown.len);
        if !trees.iter().any(follows) {
            let why = "a stripe stays as long as it was created; to make it longer, make a new one";
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
                log::say("sanstone: told again to stop: what is not finished is given up");
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

/// Opens the volumes that are served, each at home on a lane in turn.
async fn open(
    config: &Config,
    graph: &mut Graph,
    lanes: &[LaneHandle],
) -> Result<Vec<Tree>, Failure> {
    let tables = config.targets().map_err(|error| config.wrong(&error))?;
    let names: BTreeSet<&String> = tables
        .iter()
        .flat_map(|table| table.luns.values().map(|lun| &lun.volume))
        .collect();
    let mut trees = Vec::new();
    for (name, home) in names.into_iter().zip(lanes.iter().cycle()) {
        let tree = graph
            .open(name, home)
            .await
            .map_err(|error| config.failed(&error))?;
        trees.push(tree);
    }
    Ok(trees)
}

/// Keeps logical units' state in the state directory.
fn keep(state: Arc<Mutex<State>>) -> Keep {
    Arc::new(move |volume, text| {
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = state.keep(volume, text.as_deref());
        kept.map_err(|error| format!("{error:#}"))
    })
}

fn server_config(
    config: &Config,
    state: &Arc<Mutex<State>>,
    trees: &[Tree],
) -> Result<ServerConfig, Failure> {
    let limits = config.limits().map_err(|error| config.wrong(&error))?;
    descriptors::raise((limits.connections_max + 2 * limits.logins_max) as u64);
    let mut targets = Vec::new();
    for table in config.targets().map_err(|error| config.wrong(&error))? {
        let mut luns = BTreeMap::new();
        for (number, lun) in table.luns {
            let Some(tree) = trees.iter().find(|tree| tree.name() == lun.volume) else {
                continue;
            };
            let (uuid, kept) = {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                (
                    *state.identity(&lun.volume)?.as_bytes(),
                    state.kept(&lun.volume)?,
                )
            };
            luns.insert(
                number,
                LunSpec {
                    volume: lun.volume.clone(),
                    uuid,
                    open: open_on_lane(tree),
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
