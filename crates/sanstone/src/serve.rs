//! `sanstone serve`: starts a daemon. On SIGTERM or SIGINT (or, supervised, when standard input closes) it
//! finishes accepted commands before it ends; a second signal ends it at once. SIGHUP makes it check the
//! lengths of its files again, SIGUSR1 makes it log where the time went. All other requests come over the
//! admin socket.

use std::{
    collections::VecDeque,
    io::{self, Write},
    path::Path,
    pin::{Pin, pin},
    sync::mpsc,
};

use engine::{
    LaneHandle,
    cross::{OneshotSender, Receiver, Sender, channel, oneshot},
    task::{self, Either},
};
use node::{Config, Daemon, Level, Onlooker, Process, StopError, View};

use crate::{
    admin::{self, ApplyRequest},
    descriptors,
    failure::VerbFailure,
    lanes::Lanes,
    log, probe, service,
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
    (teller, wanted): (Sender<DaemonRequest>, &Receiver<DaemonRequest>),
    supervised: bool,
) -> Result<(), VerbFailure> {
    let process = Process::this(config.path());
    let mut daemon = Daemon::start(config, &process, lanes, !supervised).await?;
    let looks = teller.clone();
    let admin = open_admin(&daemon, teller);
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
            looks.send(DaemonRequest::View(answer)).is_ok()
        })?;
        attend(&mut daemon, wanted).await;
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

/// Opens the admin socket. The daemon serves even without it.
fn open_admin(daemon: &Daemon, teller: Sender<DaemonRequest>) -> Option<admin::AdminServer> {
    let looks = teller.clone();
    let asked = admin::Daemon {
        view: Box::new(move |answer| looks.send(DaemonRequest::View(answer)).is_ok()),
        apply: Ok(Box::new(move |change| {
            teller.send(DaemonRequest::Apply(change)).is_ok()
        })),
    };
    admin::AdminServer::start(&daemon.state_directory(), asked)
}

/// Handles requests to `daemon` until it is told to stop.
async fn attend(daemon: &mut Daemon, wanted: &Receiver<DaemonRequest>) {
    // Requests that arrived while a configuration was being applied.
    let mut later = VecDeque::new();
    loop {
        let next = match later.pop_front() {
            Some(next) => Some(next),
            None => wanted.receive().await,
        };
        match next {
            Some(DaemonRequest::Told(SignalRequest::Report)) => {
                tracing::info!("where the time went\n{}", daemon.report());
            }
            Some(DaemonRequest::Told(SignalRequest::LookAgain)) => {
                if !daemon.look_again().await {
                    tracing::info!("SIGHUP: no file or remote disk has changed");
                }
            }
            Some(DaemonRequest::View(answer)) => {
                // The client may have gone.
                let _ = answer.send(daemon.view().await);
            }
            Some(DaemonRequest::Apply(ApplyRequest {
                config,
                is_dry_run,
                answer,
            })) => {
                let path = config.path().display().to_string();
                let onlooker = daemon.onlooker();
                let (stop, told) = oneshot();
                let give_up = async {
                    let _ = told.outcome().await;
                };
                let applying = pin!(daemon.apply(*config, is_dry_run, give_up));
                let (applied, is_stopping) =
                    attend_others(applying, stop, &onlooker, wanted, &mut later).await;
                tell_applied(&path, is_dry_run, &applied);
                let _ = answer.send(applied);
                if is_stopping {
                    return;
                }
            }
            Some(DaemonRequest::Told(SignalRequest::Stop)) | None => return,
        }
    }
}

/// Runs `work`, which may wait for a disk for a long time. Returns its output, and whether the daemon is to stop: when
/// that request comes, `stop` passes it on, so that `work` ends soon. Meanwhile, this answers views from `onlooker`, and
/// queues other requests in `later`: signals, and those of the few admin clients.
async fn attend_others<T>(
    mut work: Pin<&mut impl Future<Output = T>>,
    stop: OneshotSender<()>,
    onlooker: &Onlooker,
    wanted: &Receiver<DaemonRequest>,
    later: &mut VecDeque<DaemonRequest>,
) -> (T, bool) {
    let mut stop = Some(stop);
    loop {
        match task::either(work.as_mut(), wanted.receive()).await {
            Either::One(done) => return (done, stop.is_none()),
            Either::Other(Some(DaemonRequest::Told(SignalRequest::Stop))) => {
                if let Some(stop) = stop.take() {
                    tracing::info!(
                        "stopping once the apply in progress has ended; a second SIGTERM or SIGINT ends at once"
                    );
                    stop.send(());
                }
            }
            Either::Other(Some(DaemonRequest::View(answer))) => {
                let _ = answer.send(onlooker.view().await);
            }
            Either::Other(Some(other)) => later.push_back(other),
            // Nobody is left who could make requests, such as the one to stop.
            Either::Other(None) => {
                drop(stop);
                return (work.await, true);
            }
        }
    }
}

/// Logs what another configuration changed.
fn tell_applied(
    path: &str,
    is_dry_run: bool,
    applied: &Result<Vec<node::ConfigChange>, node::DaemonFailure>,
) {
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

/// A request to the daemon.
enum DaemonRequest {
    /// From a signal or the process that started us.
    Told(SignalRequest),
    /// From a client of the admin socket: return the current view.
    View(mpsc::Sender<View>),
    /// From a client of the admin socket: apply another configuration.
    Apply(ApplyRequest),
}

impl From<SignalRequest> for DaemonRequest {
    fn from(told: SignalRequest) -> DaemonRequest {
        DaemonRequest::Told(told)
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
