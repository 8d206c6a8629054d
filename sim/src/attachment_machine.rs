//! A simulated machine that attaches a volume of its configuration and shows it to NBD clients, as `sanstone attach
//! --nbd` does. It can be stopped, killed, cut from power and restarted; its files, including the state directory, are
//! what its simulated disk has kept.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    path::Path,
    rc::Rc,
    time::Duration,
};

use engine::{
    LaneHandle,
    cross::{OneshotSender, Receiver, Sender, channel, oneshot},
    sim::Host,
    task::JoinHandle,
    time,
};
use front_nbd::{Address, Listeners, NbdServer};
use node::{
    Attachment, Config, DaemonFailure, Process,
    description::{Attached, Description},
};

use crate::machine::{End, Machine};

/// The path of the configuration on every machine.
const CONFIG: &str = "/srv/attached.toml";
/// The name of the volume that is attached.
pub const VOLUME: &str = "db";
const PORT: u16 = 10809;
/// The pause before the next attempt to attach a volume that could not be opened.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// After this many attempts it will never open.
const ATTEMPTS_MAX: usize = 1_000;

/// One machine.
pub struct AttachmentMachine {
    machine: Machine,
    lanes: usize,
    /// Attempts that failed; each was repeated.
    refused: Rc<Cell<usize>>,
    is_attached: Rc<Cell<bool>>,
    running: RefCell<Option<Running>>,
}

/// An attachment that shows its volume, or is being opened.
struct Running {
    tell: Sender<AttachmentRequest>,
    ended: JoinHandle<()>,
}

/// What an attachment is asked for.
enum AttachmentRequest {
    Stop,
    LookAgain(OneshotSender<bool>),
    Describe(OneshotSender<Description>),
}

impl AttachmentMachine {
    /// Writes `text` to the configuration of `host`, which has so many `lanes`, and runs nothing yet.
    pub fn new(host: Host, lanes: usize, text: &str) -> AttachmentMachine {
        AttachmentMachine {
            machine: Machine::new(host, "an attachment", CONFIG, text),
            lanes,
            refused: Rc::default(),
            is_attached: Rc::default(),
            running: RefCell::default(),
        }
    }

    /// Where NBD clients find the volume.
    pub fn address(&self) -> SocketAddr {
        self.machine.host.addr(PORT)
    }

    /// The machine.
    pub fn host(&self) -> &Host {
        &self.machine.host
    }

    /// Does what `sanstone volume create` does for the volume.
    pub async fn create_stripe(&self) {
        self.machine.create_stripe(VOLUME, false).await;
    }

    /// The same with `--force`.
    pub async fn create_by_force(&self) {
        self.machine.create_stripe(VOLUME, true).await;
    }

    /// Does what `sanstone volume take-over` does for the volume, with `--force` or without, before it is attached.
    ///
    /// # Errors
    /// Why it was not taken over.
    pub async fn take_over(&self, force: bool) -> Result<(), DaemonFailure> {
        self.machine.take_over(VOLUME, force).await
    }

    fn lane_handles(&self) -> Vec<LaneHandle> {
        (0..self.lanes)
            .map(|lane| self.machine.host.lane(lane))
            .collect()
    }

    /// Opens the volume once, without a front, and closes it again.
    ///
    /// # Errors
    /// Why it does not open.
    pub async fn try_once(&self) -> Result<(), DaemonFailure> {
        let (process, lanes) = (self.machine.process(), self.lane_handles());
        let tried = self.machine.host.spawn(async move {
            let attachment = Attachment::open(load()?, VOLUME, &process, &lanes).await?;
            attachment.stop().await.expect("nothing was written");
            Ok(())
        });
        tried.await
    }

    /// Attaches the volume on a machine that is on and has not attached it, retrying until it opens.
    pub fn start(&self) {
        let (tell, told) = channel();
        let (process, lanes, address) =
            (self.machine.process(), self.lane_handles(), self.address());
        let (refused, is_attached) = (self.refused.clone(), self.is_attached.clone());
        let ended = self.machine.host.spawn(async move {
            let place = Listeners::take(&Address::Tcp(address)).await;
            let place = place.expect("nobody else is there");
            let mut attachment = open(&process, &lanes, &refused).await;
            let config = front_nbd::NbdConfig {
                volume: attachment.volume().to_owned(),
                relative_port: attachment.relative_port(),
                read_only: false,
                limits: front_nbd::NbdLimits::default(),
                tls: None,
            };
            let server = NbdServer::start(config, place, attachment.units()).await;
            let server = server.expect("it listens");
            is_attached.set(true);
            attend(&mut attachment, &told).await;
            server.stop().await;
            // A flush that fails is only logged. Clients treat what they have not flushed as lost.
            let _ = attachment.stop().await;
        });
        self.running.replace(Some(Running { tell, ended }));
    }

    /// Brings it down.
    pub async fn end(&self, how: End) {
        let running = self.running.take().expect("it runs");
        if how == End::Stopped {
            let is_told = running.tell.send(AttachmentRequest::Stop).is_ok();
            assert!(is_told, "it listens until it is told");
            running.ended.await;
        }
        self.is_attached.set(false);
        self.machine.end(how);
    }

    /// Starts the machine again, and attaches the volume.
    pub fn restart(&self) {
        self.machine.host.restart();
        self.start();
    }

    /// Whether it has attached the volume, or is trying to.
    pub fn runs(&self) -> bool {
        self.running.borrow().is_some()
    }

    /// Whether clients find the volume.
    pub fn is_attached(&self) -> bool {
        self.is_attached.get()
    }

    /// Waits until clients find the volume.
    pub async fn ready(&self) {
        while !self.is_attached() {
            time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// How often the volume could not be opened.
    pub fn refused(&self) -> usize {
        self.refused.get()
    }

    async fn ask<T>(&self, make: impl FnOnce(OneshotSender<T>) -> AttachmentRequest) -> T {
        let (sender, answer) = oneshot();
        let is_told = match &*self.running.borrow() {
            Some(running) => running.tell.send(make(sender)).is_ok(),
            None => false,
        };
        assert!(is_told, "it runs");
        answer.outcome().await.expect("it answers")
    }

    /// Has it look at its files again, as SIGHUP does; whether one has another length.
    pub async fn look_again(&self) -> bool {
        self.ask(AttachmentRequest::LookAgain).await
    }

    /// What `sanstone show` shows of it.
    pub async fn describe(&self) -> Description {
        self.ask(AttachmentRequest::Describe).await
    }
}

fn load() -> Result<Config, DaemonFailure> {
    Config::load(Path::new(CONFIG))
}

/// Opens the volume, retrying until it opens.
async fn open(process: &Process, lanes: &[LaneHandle], refused: &Cell<usize>) -> Attachment {
    let mut last = String::new();
    for _ in 0..ATTEMPTS_MAX {
        let config = load().unwrap_or_else(|failure| panic!("{failure}"));
        match Attachment::open(config, VOLUME, process, lanes).await {
            Ok(attachment) => return attachment,
            // The configuration is right, so only remote disks can be missing.
            Err(DaemonFailure::Wrong(message)) => panic!("{message}"),
            Err(failure) => {
                refused.set(refused.get() + 1);
                last = failure.to_string();
            }
        }
        time::sleep(RETRY_AFTER).await;
    }
    panic!("{VOLUME} does not open: {last}");
}

/// Does what it is asked for until that is to stop.
async fn attend(attachment: &mut Attachment, told: &Receiver<AttachmentRequest>) {
    loop {
        let told = time::before(attachment.looks_for_missing_at(), told.receive());
        let Some(told) = told.await else {
            attachment.look_for_missing().await;
            continue;
        };
        match told {
            Some(AttachmentRequest::LookAgain(answer)) => {
                answer.send(attachment.look_again().await)
            }
            Some(AttachmentRequest::Describe(answer)) => {
                let attached = Attached {
                    broken_mount: None,
                    is_stopping: false,
                    volume: attachment.volume().to_owned(),
                    front: "nbd".to_owned(),
                    place: String::new(),
                    read_only: false,
                };
                answer.send(attachment.onlooker(attached).view().await.describe());
            }
            Some(AttachmentRequest::Stop) | None => return,
        }
    }
}
