//! `sanstone serve`: starts a daemon. On SIGTERM or SIGINT (or, supervised, when standard input closes) it
//! finishes accepted commands before it ends; a second signal ends it at once. SIGHUP makes it check the
//! lengths of its files again, SIGUSR1 makes it log where the time went. All other requests come over the
//! admin socket.

use std::{
    cell::RefCell,
    fmt::Display,
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use engine::{
    LaneFuture, LaneHandle,
    cross::{Receiver, Sender, channel},
};
use node::{Config, Daemon, DaemonFailure, Level, Process, StopError};

use crate::{
    admin, descriptors,
    failure::VerbFailure,
    lanes::Lanes,
    log, probe,
    requests::{self, Request, Requests},
    service,
    signals::{self, SignalRequest},
};

/// Serves until told to stop.
pub(crate) fn run(path: &Path, supervised: bool) -> Result<(), VerbFailure> {
    // Done first: until the handlers are installed, SIGHUP would end the process.
    let (teller, wanted) = channel();
    signals::listen(&teller, supervised)?;
    // Advice is for `check`: a start would repeat it each time.
    let (config, _) = Config::load_to_serve(path, supervised, |level, note| {
        if level == Level::Warn {
            log::say(format_args!("note: {note}"));
        }
    })?;
    config.require_targets()?;
    // Checked before anything is created for volumes that nobody could reach.
    probe::portals(config.portals()?).map_err(|error| config.not_started(&error))?;
    let limits = config.limits();
    descriptors::raise((limits.connections_max + 2 * limits.logins_max) as u64);
    log::abort_at_panic();
    let lanes = Lanes::start(config.lanes(), config.waiting())?;
    service::watch(&lanes.handles())?;
    let served = lanes.first.block_on(serve(
        config,
        &lanes.handles(),
        (teller, &wanted),
        supervised,
    ));
    lanes.stop();
    served
}

/// Serves until told to stop.
async fn serve(
    config: Config,
    lanes: &[LaneHandle],
    (teller, wanted): (Sender<Request>, &Receiver<Request>),
    supervised: bool,
) -> Result<(), VerbFailure> {
    let process = Process::this(config.path());
    let mut requests = Requests::new(wanted);
    service::starting("opening its volumes");
    let starting = Daemon::start(config, &process, lanes, !supervised);
    let mut daemon = requests.see_started(starting).await?;
    let looks = teller.clone();
    // The daemon serves even without it.
    let asked = requests::asked(teller, Arc::new(load_to_apply));
    let admin = admin::AdminServer::start(&daemon.state_directory(), asked);
    for portal in daemon.places() {
        tracing::info!(%portal, "serving");
    }
    let announced = if supervised {
        announce(&daemon)
    } else {
        Ok(())
    };
    if announced.is_ok() {
        let status = format!("serving at {}", daemon.places().join(", "));
        service::serving(&status);
        service::report_health(status, move |answer| {
            looks.send(Request::View(answer)).is_ok()
        })?;
        attend(&mut daemon, requests).await;
        tracing::info!(
            "stopping: finishing the accepted commands; a second SIGTERM or SIGINT ends at once"
        );
        service::stopping();
    }
    if let Some(admin) = admin {
        admin.stop();
    }
    // Whatever the outcome, give up the claims.
    let stopped = daemon.stop().await;
    if let Err(hung @ StopError::Hung { .. }) = stopped {
        signals::end_at_once(hung);
    }
    stopped?;
    announced?;
    tracing::info!("stopped");
    Ok(())
}

/// The configuration in the file at `path`, checked as a start does, with what is to be said about it.
fn load_to_apply(path: &Path) -> Result<(Box<Config>, Vec<String>), DaemonFailure> {
    let notes = RefCell::new(Vec::new());
    let note = |_, note: &dyn Display| notes.borrow_mut().push(note.to_string());
    let (config, disks) = Config::load_to_apply(path, note)?;
    config.require_targets()?;
    let mut notes = notes.take();
    let disks = disks.iter();
    notes.extend(disks.map(|note| config.located(&note.text).to_string()));
    Ok((Box::new(config), notes))
}

/// Handles requests to `daemon` until it is told to stop.
async fn attend(daemon: &mut Daemon, mut requests: Requests<'_>) {
    loop {
        let next = requests.next_before(daemon.looks_for_missing_at()).await;
        let Some(next) = next else {
            let onlooker = daemon.onlooker();
            if requests
                .run_beside(daemon.look_for_missing(), &onlooker)
                .await
            {
                return;
            }
            continue;
        };
        match next {
            Some(Request::Told(SignalRequest::Report)) => {
                tracing::info!("where the time went\n{}", daemon.report());
            }
            Some(Request::Told(SignalRequest::LookAgain)) => {
                if !daemon.look_again().await {
                    tracing::info!("SIGHUP: no file or remote disk has changed");
                }
            }
            Some(Request::View(answer)) => {
                // The client may have gone.
                let _ = answer.send(daemon.view().await);
            }
            Some(Request::Apply(request)) => {
                let (onlooker, is_dry_run) = (daemon.onlooker(), request.is_dry_run);
                let daemon = &mut *daemon;
                let applying = requests.apply(request, &onlooker, move |config, give_up| {
                    LaneFuture::new(daemon.apply(*config, is_dry_run, give_up))
                });
                if applying.await {
                    return;
                }
            }
            Some(Request::Told(SignalRequest::Stop)) | None => return,
        }
    }
}

/// Tells the process that started us the addresses we serve on.
fn announce(daemon: &Daemon) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for portal in daemon.places() {
        writeln!(out, "{portal}")?;
    }
    out.flush()
}
