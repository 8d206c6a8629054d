//! A simulated machine that runs a whole daemon from the text of its configuration, as `sanstone serve` does. It can be
//! shut down, killed, cut from power and restarted; its files, including the state directory, are what its simulated
//! disk has kept.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::pending,
    path::Path,
    rc::Rc,
    time::Duration,
};

use engine::{
    LaneHandle,
    blocking::{self, WorkKind},
    cross::{OneshotSender, Receiver, Sender, channel, oneshot},
    sim::Host,
    task::JoinHandle,
    time,
};
use node::{Config, Daemon, DaemonFailure, Process};
use uuid::Uuid;

use crate::machine::{End, Machine};

/// The path of the configuration on every machine.
const CONFIG: &str = "/srv/daemon.toml";
/// The pause before the next attempt to start a daemon that did not start.
const RESTART_AFTER: Duration = Duration::from_millis(100);
/// After this many attempts the daemon will never start.
const ATTEMPTS_MAX: usize = 1_000;

/// One machine.
pub struct DaemonMachine {
    machine: Machine,
    /// Failed starts; each was retried.
    refused: Rc<Cell<usize>>,
    /// The serving daemon, if any.
    serving: Rc<RefCell<Option<Serving>>>,
    running: RefCell<Option<Running>>,
}

/// A daemon that serves.
struct Serving {
    disks: BTreeMap<String, Uuid>,
}

/// A daemon that serves or is starting.
struct Running {
    tell: Sender<DaemonRequest>,
    ended: JoinHandle<()>,
}

/// What a daemon is asked for.
enum DaemonRequest {
    Stop,
    /// To serve what its configuration is now.
    Apply(OneshotSender<Result<Vec<String>, DaemonFailure>>),
}

impl DaemonMachine {
    /// Writes `text` to the configuration of `host`, and runs nothing yet.
    pub fn new(host: Host, text: &str) -> DaemonMachine {
        DaemonMachine {
            machine: Machine::new(host, "a daemon", CONFIG, text),
            refused: Rc::default(),
            serving: Rc::default(),
            running: RefCell::default(),
        }
    }

    /// The machine.
    pub fn host(&self) -> &Host {
        &self.machine.host
    }

    /// Does what `sanstone volume create` does for the stripe called `volume`.
    pub async fn create_stripe(&self, volume: &'static str) {
        self.machine.create_stripe(volume, false).await;
    }

    /// The same with `--force`.
    pub async fn create_by_force(&self, volume: &'static str) {
        self.machine.create_stripe(volume, true).await;
    }

    /// Does what `sanstone volume take-over` does for `volume`, with `--force` or without, before the daemon is started.
    ///
    /// # Errors
    /// Why it was not taken over.
    pub async fn take_over(&self, volume: &'static str, force: bool) -> Result<(), DaemonFailure> {
        self.machine.take_over(volume, force).await
    }

    /// Starts the daemon on a machine that is on and runs none, retrying until it starts.
    pub fn start(&self) {
        let (tell, told) = channel();
        let (process, host) = (self.machine.process(), self.machine.host.clone());
        let (refused, serving) = (self.refused.clone(), self.serving.clone());
        let ended = self.machine.host.spawn(async move {
            let daemon = start(&host, &process, &refused).await;
            let disks = daemon.disks().iter();
            let disks = disks.map(|disk| (disk.tree.name().to_owned(), disk.uuid));
            serving.replace(Some(Serving {
                disks: disks.collect(),
            }));
            serve(daemon, told).await;
        });
        self.running.replace(Some(Running { tell, ended }));
    }

    /// Brings it down.
    pub async fn end(&self, how: End) {
        let running = self.running.take().expect("it runs a daemon");
        if how == End::Stopped {
            let is_told = running.tell.send(DaemonRequest::Stop).is_ok();
            assert!(is_told, "it listens until it is told");
            running.ended.await;
        }
        self.serving.take();
        self.machine.end(how);
    }

    /// Writes `text` to its configuration and has the serving daemon apply it, as `sanstone apply` does. Returns the
    /// changes.
    ///
    /// # Errors
    /// Why it was refused.
    pub async fn apply(&self, text: &str) -> Result<Vec<String>, DaemonFailure> {
        self.machine.configure(text);
        let (sender, answer) = oneshot();
        let is_told = match &*self.running.borrow() {
            Some(running) => running.tell.send(DaemonRequest::Apply(sender)).is_ok(),
            None => false,
        };
        assert!(is_told, "a daemon serves");
        answer.outcome().await.expect("the daemon answers")
    }

    /// Starts machine and daemon again.
    pub fn restart(&self) {
        self.machine.host.restart();
        self.start();
    }

    /// Waits until it serves.
    pub async fn ready(&self) {
        while !self.serves() {
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether its daemon serves.
    pub fn serves(&self) -> bool {
        self.serving.borrow().is_some()
    }

    /// The identities of the disks that it serves, by the names of their volumes.
    pub fn disks(&self) -> BTreeMap<String, Uuid> {
        let serving = self.serving.borrow();
        serving.as_ref().expect("it serves").disks.clone()
    }

    /// Starts the daemon once, and stops it.
    ///
    /// # Errors
    /// Why it does not start.
    pub async fn try_once(&self) -> Result<(), DaemonFailure> {
        let (process, host) = (self.machine.process(), self.machine.host.clone());
        let tried = self.machine.host.spawn(async move {
            let (config, lanes) = (load_to_serve().await?, [host.lane(0)]);
            let daemon = Daemon::start(config, &process, &lanes, true).await?;
            daemon.stop().await.expect("nothing was written");
            Ok(())
        });
        tried.await
    }

    /// How often its daemon did not start.
    pub fn refused(&self) -> usize {
        self.refused.get()
    }
}

/// Reads the configuration and checks it, as `sanstone serve` does.
async fn load_to_serve() -> Result<Config, DaemonFailure> {
    let load = || Config::load_to_serve(Path::new(CONFIG), false, |_, _| ());
    let loaded = blocking::run(WorkKind::Files, load)
        .await
        .expect("it is run");
    Ok(loaded?.0)
}

/// The same for the daemon that serves, as `sanstone apply` does.
async fn load_to_apply() -> Result<Config, DaemonFailure> {
    let load = || Config::load_to_apply(Path::new(CONFIG), |_, _| ());
    let loaded = blocking::run(WorkKind::Files, load)
        .await
        .expect("it is run");
    Ok(loaded?.0)
}

/// Starts a daemon on the current machine, `host`, retrying until it starts.
async fn start(host: &Host, process: &Process, refused: &Cell<usize>) -> Daemon {
    let mut last = String::new();
    for _ in 0..ATTEMPTS_MAX {
        let config = load_to_serve().await;
        let config = config.unwrap_or_else(|failure| panic!("{failure}"));
        let lanes: Vec<LaneHandle> = (0..config.lanes().unwrap_or(1))
            .map(|lane| host.lane(lane))
            .collect();
        match Daemon::start(config, process, &lanes, true).await {
            Ok(daemon) => return daemon,
            // The configuration matches the local disks, so only remote disks can be missing.
            Err(DaemonFailure::Wrong(message)) => panic!("{message}"),
            Err(failure) => {
                refused.set(refused.get() + 1);
                last = failure.to_string();
            }
        }
        time::sleep(RESTART_AFTER).await;
    }
    panic!("{host:?} does not start: {last}");
}

/// Serves until told to stop. A flush that fails then is only logged: the client that wrote the data learns of the loss
/// when the daemon is back.
async fn serve(mut daemon: Daemon, told: Receiver<DaemonRequest>) {
    loop {
        match time::before(daemon.looks_for_missing_at(), told.receive()).await {
            None => daemon.look_for_missing().await,
            Some(Some(DaemonRequest::Apply(answer))) => answer.send(apply(&mut daemon).await),
            Some(_) => break,
        }
    }
    let _ = daemon.stop().await;
}

async fn apply(daemon: &mut Daemon) -> Result<Vec<String>, DaemonFailure> {
    let applied = daemon.apply(load_to_apply().await?, false, pending()).await;
    applied.map(|changes| changes.iter().map(ToString::to_string).collect())
}
