//! `sanstone serve`: starts a daemon, and on SIGTERM or SIGINT (or, supervised, when standard input
//! closes) has it finish what was accepted before it ends; on a second one it ends at once.
//! SIGHUP has it look at the lengths of its files again, SIGUSR1 say where the time went.

use std::{
    io::{self, Write},
    path::Path,
};

use engine::{LaneHandle, cross::Receiver};
use node::{Config, Daemon, Process};

use crate::{
    descriptors,
    failure::Failure,
    lanes::Lanes,
    log, probe,
    signals::{self, Told},
};

/// Serves until told to stop.
pub(crate) fn run(path: &Path, supervised: bool) -> Result<(), Failure> {
    // First of all: until then a SIGHUP ends the process.
    let told = signals::listen(supervised)?;
    let (config, _) = Config::load_to_serve(path, supervised, |note| {
        log::say(format_args!("note: {note}"));
    })?;
    if !config.has_targets() {
        let message = "there is no target to serve; write a [target.\"iqn.…\"] table".to_owned();
        return Err(Failure::Wrong(format!("{}: {message}", path.display())));
    }
    // Before anything is made for volumes that nobody could reach.
    probe::portals(config.portals()?).map_err(|error| config.not_started(&error))?;
    let limits = config.limits();
    descriptors::raise((limits.connections_max + 2 * limits.logins_max) as u64);
    log::abort_at_panic();
    let lanes = Lanes::start(config.lanes())?;
    let served = lanes
        .first
        .block_on(serve(config, &lanes.handles(), &told, supervised));
    lanes.stop();
    served
}

/// Serves until told to stop.
async fn serve(
    config: Config,
    lanes: &[LaneHandle],
    told: &Receiver<Told>,
    supervised: bool,
) -> Result<(), Failure> {
    let process = Process::this(config.path());
    let daemon = Daemon::start(config, &process, lanes, !supervised).await?;
    for portal in daemon.portals() {
        tracing::info!(%portal, "serving");
    }
    let announced = if supervised {
        announce(&daemon)
    } else {
        Ok(())
    };
    if announced.is_ok() {
        attend(&daemon, told).await;
        tracing::info!(
            "stopping: finishing the commands that were accepted; a second SIGTERM or SIGINT ends at once"
        );
    }
    // However it went: what is claimed is given up.
    daemon.stop().await?;
    announced?;
    tracing::info!("stopped");
    Ok(())
}

/// Does what `daemon` is told to, until that is to stop.
async fn attend(daemon: &Daemon, told: &Receiver<Told>) {
    loop {
        match told.receive().await {
            Some(Told::Report) => {
                tracing::info!("where the time went\n{}", daemon.report());
            }
            Some(Told::LookAgain) => {
                if !daemon.look_again() {
                    tracing::info!("SIGHUP: no file has changed its length");
                }
            }
            Some(Told::Stop) | None => return,
        }
    }
}

/// Tells whoever started us where we serve.
fn announce(daemon: &Daemon) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for portal in daemon.portals() {
        writeln!(out, "{portal}")?;
    }
    out.flush()
}
