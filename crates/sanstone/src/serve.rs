//! `sanstone serve`: starts a daemon, and on SIGTERM or SIGINT (or, supervised, when standard input
//! closes) has it finish what was accepted before it ends; on a second one it ends at once.
//! SIGHUP has it look at the lengths of its files again, SIGUSR1 say where the time went. What others
//! want to know of it they ask over the admin socket.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, Write},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use engine::{
    LaneHandle,
    cross::{Receiver, Sender, channel},
};
use node::{Config, Daemon, Process};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1},
    iterator::Signals,
};

use crate::{
    admin::{self, Ask},
    descriptors,
    failure::Failure,
    lanes::Lanes,
    log, probe,
};

/// Serves until told to stop.
pub(crate) fn run(path: &Path, supervised: bool) -> Result<(), Failure> {
    // First of all: until then a SIGHUP ends the process.
    let (teller, told) = channel();
    listen(&teller, supervised)?;
    let (config, _) = Config::load_to_serve(path, supervised, |note| {
        log::say(format_args!("note: {note}"));
    })?;
    if !config.has_targets() {
        let message = "there is no target to serve; write a [target.\"iqn.…\"] table".to_owned();
        return Err(Failure::Wrong(format!("{}: {message}", path.display())));
    }
    // Before anything is made for volumes that nobody could reach.
    probe::portals(config.portals()?).map_err(|error| config.not_started(&error))?;
    let limits = config.limits().map_err(|error| config.wrong(&error))?;
    descriptors::raise((limits.connections_max + 2 * limits.logins_max) as u64);
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
    let lanes = Lanes::start(config.lanes())?;
    let served = lanes
        .first
        .block_on(serve(config, &lanes.handles(), (teller, &told), supervised));
    lanes.stop();
    served
}

/// Serves until told to stop.
async fn serve(
    config: Config,
    lanes: &[LaneHandle],
    (teller, told): (Sender<Told>, &Receiver<Told>),
    supervised: bool,
) -> Result<(), Failure> {
    let process = Process::this(config.path());
    let mut daemon = Daemon::start(config, &process, lanes, !supervised).await?;
    let admin = open_admin(&daemon, teller);
    for portal in daemon.portals() {
        tracing::info!(%portal, "serving");
    }
    let announced = if supervised {
        announce(&daemon)
    } else {
        Ok(())
    };
    if announced.is_ok() {
        attend(&mut daemon, told).await;
        tracing::info!(
            "stopping: finishing the commands that were accepted; a second SIGTERM or SIGINT ends at once"
        );
    }
    if let Some(admin) = admin {
        admin.stop();
    }
    // However it went: what is claimed is given up.
    daemon.stop().await?;
    announced?;
    tracing::info!("stopped");
    Ok(())
}

/// Opens the admin socket. Without it the daemon serves all the same.
fn open_admin(daemon: &Daemon, teller: Sender<Told>) -> Option<admin::Server> {
    let state = daemon.state_directory();
    let hand = move |ask| teller.send(Told::Asked(ask)).is_ok();
    let server = admin::Server::start(&state, hand);
    server
        .inspect_err(|error| {
            let state = state.display();
            tracing::error!(
                %state,
                %error,
                "there is no admin socket: `sanstone show`, `top` and `apply` cannot reach this daemon"
            );
        })
        .ok()
}

/// Does what `daemon` is told to, until that is to stop.
async fn attend(daemon: &mut Daemon, told: &Receiver<Told>) {
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
            Some(Told::Asked(Ask::View(answer))) => {
                // Whoever asked may have gone.
                let _ = answer.send(daemon.view().await);
            }
            Some(Told::Asked(Ask::Apply {
                config,
                is_dry_run,
                answer,
            })) => {
                let path = config.path().display().to_string();
                let applied = daemon.apply(*config, is_dry_run).await;
                tell_applied(&path, is_dry_run, &applied);
                let _ = answer.send(applied);
            }
            Some(Told::Stop) | None => return,
        }
    }
}

/// Logs what another configuration has changed.
fn tell_applied(path: &str, is_dry_run: bool, applied: &Result<Vec<String>, node::Failure>) {
    match applied {
        Ok(_) if is_dry_run => {}
        Ok(changes) => {
            for change in changes {
                tracing::info!(path, "applied: {change}");
            }
        }
        Err(failure) => {
            for line in failure.to_string().lines() {
                tracing::warn!(path, "not applied: {line}");
            }
        }
    }
}

/// Signals within it are one request to stop: `timeout` sends SIGTERM to its child and to the child's
/// group, and a shell's trap may add one to the terminal's.
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// What whoever started us can want.
enum Told {
    Stop,
    Report,
    LookAgain,
    Asked(Ask),
}

/// Listens for SIGTERM and SIGINT (stop), SIGUSR1 (report) and SIGHUP (look at the lengths again).
fn listen(teller: &Sender<Told>, supervised: bool) -> Result<(), Failure> {
    let teller = teller.clone();
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
    Ok(())
}

/// Tells whoever started us where we serve.
fn announce(daemon: &Daemon) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for portal in daemon.portals() {
        writeln!(out, "{portal}")?;
    }
    out.flush()
}
