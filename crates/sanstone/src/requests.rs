//! What a running `serve` or `attach` is asked for, by signals and over the admin socket, and how another configuration is
//! applied meanwhile.

use std::{
    collections::VecDeque,
    pin::{Pin, pin},
    sync::mpsc,
    time::Duration,
};

use engine::{
    Instant, LaneFuture,
    cross::{OneshotReceiver, OneshotSender, Receiver, Sender, oneshot},
    task::{self, Either},
    time,
};
use node::{ConfigChange, DaemonFailure, Onlooker, View};

use crate::{
    admin::{self, ApplyRequest, LoadConfig},
    signals::{self, SignalRequest},
};

/// How long a start may take once the process is to stop: enough for what waits for no disk.
const START_TIME: Duration = Duration::from_secs(2);

/// A request to this process.
pub(crate) enum Request {
    /// From a signal or the process that started us.
    Told(SignalRequest),
    /// From a client of the admin socket: return the current view.
    View(mpsc::Sender<View>),
    /// From a client of the admin socket: apply another configuration.
    Apply(ApplyRequest),
}

impl From<SignalRequest> for Request {
    fn from(told: SignalRequest) -> Request {
        Request::Told(told)
    }
}

/// What clients of the admin socket ask, passed on to `teller`; `load` reads the configurations that are to be applied.
pub(crate) fn asked(teller: Sender<Request>, load: LoadConfig) -> admin::Daemon {
    let looks = teller.clone();
    admin::Daemon {
        view: Box::new(move |answer| looks.send(Request::View(answer)).is_ok()),
        apply: Box::new(move |change| teller.send(Request::Apply(change)).is_ok()),
        load,
    }
}

/// The requests, in their order.
pub(crate) struct Requests<'a> {
    wanted: &'a Receiver<Request>,
    /// Those that came during the start, or while another configuration was being applied.
    later: VecDeque<Request>,
}

impl<'a> Requests<'a> {
    pub(crate) fn new(wanted: &'a Receiver<Request>) -> Requests<'a> {
        Requests {
            wanted,
            later: VecDeque::new(),
        }
    }

    /// Runs `start`, which may wait long for a disk that is away. Told to stop meanwhile, it may still take [`START_TIME`]; then the
    /// process ends at once, because nobody has been served yet.
    pub(crate) async fn see_started<T>(&mut self, start: impl Future<Output = T>) -> T {
        let mut start = pin!(start);
        loop {
            let request = match task::either(start.as_mut(), self.wanted.receive()).await {
                Either::One(started) => return started,
                Either::Other(None) => return start.await,
                Either::Other(Some(request)) => request,
            };
            let stops = matches!(request, Request::Told(SignalRequest::Stop));
            self.later.push_back(request);
            if stops {
                let started = time::timeout(START_TIME, start).await;
                return started.unwrap_or_else(|| {
                    signals::end_at_once("told to stop before its disks were there")
                });
            }
        }
    }

    /// The next one; `None`: nobody is left who could make any.
    pub(crate) async fn next(&mut self) -> Option<Request> {
        match self.later.pop_front() {
            Some(next) => Some(next),
            None => self.wanted.receive().await,
        }
    }

    /// As [`Requests::next`], until `at` at most, if there is such a time. `None` inside: it has come.
    pub(crate) async fn next_before(&mut self, at: Option<Instant>) -> Option<Option<Request>> {
        time::before(at, self.next()).await
    }

    /// Runs `work`, which may wait for a disk, and answers views from `onlooker` meanwhile. Returns whether the process is to
    /// stop: then `work` has been given up.
    pub(crate) async fn run_beside(
        &mut self,
        work: impl Future<Output = ()>,
        onlooker: &Onlooker,
    ) -> bool {
        let (stop, told) = oneshot::<()>();
        let work = pin!(task::either(work, told.outcome()));
        self.attend_others(work, stop, onlooker).await.1
    }

    /// Runs `apply`, which may wait for a disk for a long time, and tells the log and whoever has asked what has come of it.
    /// Returns the outcome, and whether the process is to stop: `apply` hears of that, so that it ends soon. Meanwhile,
    /// views are answered from `onlooker`.
    pub(crate) async fn apply<'b>(
        &mut self,
        request: ApplyRequest,
        onlooker: &Onlooker,
        apply: impl FnOnce(
            Box<node::Config>,
            LaneFuture<'b, ()>,
        ) -> LaneFuture<'b, Result<Vec<ConfigChange>, DaemonFailure>>,
    ) -> bool {
        let ApplyRequest {
            config,
            is_dry_run,
            answer,
        } = request;
        let path = config.path().display().to_string();
        let (stop, told) = oneshot();
        let give_up = |told: OneshotReceiver<()>| async move {
            let _ = told.outcome().await;
        };
        let applying = pin!(apply(config, LaneFuture::new(give_up(told))));
        let (applied, is_stopping) = self.attend_others(applying, stop, onlooker).await;
        tell_applied(&path, is_dry_run, &applied);
        // The client may have gone.
        let _ = answer.send(applied);
        is_stopping
    }

    /// Runs `work`. Returns its output, and whether the process is to stop: when that request comes, `stop` passes it on.
    /// Meanwhile, this answers views from `onlooker`, and queues other requests: signals, and those of the few admin
    /// clients.
    async fn attend_others<T>(
        &mut self,
        mut work: Pin<&mut impl Future<Output = T>>,
        stop: OneshotSender<()>,
        onlooker: &Onlooker,
    ) -> (T, bool) {
        let mut stop = Some(stop);
        loop {
            match task::either(work.as_mut(), self.wanted.receive()).await {
                Either::One(done) => return (done, stop.is_none()),
                Either::Other(Some(Request::Told(SignalRequest::Stop))) => {
                    if let Some(stop) = stop.take() {
                        tracing::info!(
                            "stopping once what is in progress has ended; a second SIGTERM or SIGINT ends at once"
                        );
                        stop.send(());
                    }
                }
                Either::Other(Some(Request::View(answer))) => {
                    let _ = answer.send(onlooker.view().await);
                }
                Either::Other(Some(other)) => self.later.push_back(other),
                // Nobody is left who could make requests, such as the one to stop.
                Either::Other(None) => {
                    drop(stop);
                    return (work.await, true);
                }
            }
        }
    }
}

/// Logs what another configuration changed.
fn tell_applied(path: &str, is_dry_run: bool, applied: &Result<Vec<ConfigChange>, DaemonFailure>) {
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
