//! `sanstone serve`: opens the volumes of a configuration, serves its targets, and on SIGTERM or
//! SIGINT finishes what was accepted before it ends.

use std::{
    path::Path,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::{Context, anyhow};
use engine::{LaneFuture, cross::channel};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};
use target::{Allow, Keep, Limits, LunSpec, OpenVolume, Server, ServerConfig, TargetSpec};
use volume::{
    SharedVolume,
    config::{Kind, What},
    leaf::ram::Region,
};

use crate::{config::Config, failure::Failure, lanes::Lanes, state::State};

/// Serves until told to stop.
pub(crate) fn run(path: &Path) -> Result<(), Failure> {
    let config = Config::load(path)?;
    if config.targets().map_err(|e| config.wrong(&e))?.is_empty() {
        let message = "there is no target to serve; write a [target.\"iqn.…\"] table".to_owned();
        return Err(Failure::Wrong(format!("{}: {message}", path.display())));
    }
    // A lane that panics has lost its connections' state: ending the process tells everyone.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("catching signals")?;
    let (told, stop) = channel();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if told.send(signal).is_err() {
                    break;
                }
            }
        })?;
    let state = Arc::new(Mutex::new(State::open(&config.state_directory())?));
    let lanes = Lanes::start(config.lanes())?;
    let served = lanes.first.block_on(async {
        let server_config = server_config(&config, &state)?;
        let server = Server::start(server_config, &lanes.handles())
            .await
            .map_err(|error| Failure::Failed(anyhow!("{}: {error}", path.display())))?;
        for portal in server.portals() {
            tracing::info!(%portal, "serving");
        }
        stop.receive().await;
        tracing::info!("told to stop: finishing what was accepted");
        server.stop().await;
        tracing::info!("stopped");
        Ok(())
    });
    lanes.stop();
    served
}

/// Keeps logical units' state in the state directory.
fn keep(state: Arc<Mutex<State>>) -> Keep {
    Arc::new(move |volume, text| {
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = state.keep(volume, text.as_deref());
        kept.map_err(|error| format!("{error:#}"))
    })
}

fn server_config(config: &Config, state: &Arc<Mutex<State>>) -> Result<ServerConfig, Failure> {
    let mut limits = Limits::default();
    limits.memory_bytes = config.memory_bytes().unwrap_or(limits.memory_bytes);
    limits.connections_max = config.connections_max().unwrap_or(limits.connections_max);
    let mut targets = Vec::new();
    for table in config.targets().map_err(|e| config.wrong(&e))? {
        let mut luns = std::collections::BTreeMap::new();
        for (number, lun) in table.luns {
            let name = lun.volume;
            let (uuid, kept) = {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                (*state.identity(&name)?.as_bytes(), state.kept(&name)?)
            };
            luns.insert(
                number,
                LunSpec {
                    open: open(config, &name)?,
                    volume: name,
                    uuid,
                    kept,
                    removable: lun.removable,
                    read_only: lun.read_only,
                    atomic_writes: true,
                },
            );
        }
        let allow = table.allow.map_or(Allow::Everyone, Allow::Names);
        targets.push(TargetSpec {
            name: table.name,
            portals: table.portals,
            luns,
            allow,
        });
    }
    Ok(ServerConfig {
        keep: Some(keep(state.clone())),
        targets,
        limits,
    })
}

fn open(config: &Config, name: &str) -> Result<OpenVolume, Failure> {
    let What::Inline(kind) = &config.volumes().0[name].what else {
        unreachable!()
    };
    let Kind::Ram(ram) = &**kind else {
        unreachable!()
    };
    let region = Region::new(ram.size.get_ref().bytes(), ram.block_size.bytes())?;
    Ok(Arc::new(move || {
        let region = region.clone();
        LaneFuture::new(async move { Ok(Rc::new(region.on_lane()) as SharedVolume) })
    }))
}
