//! The server: binds the portals, gives every lane its front, spreads connections over the lanes.

use std::{
    cell::Cell, collections::BTreeMap, io::ErrorKind, net::SocketAddr, pin::pin, rc::Rc, sync::Arc,
};

use engine::{
    Duration,
    cross::{OneshotReceiver, OneshotSender, Sender, channel, oneshot},
    net::TcpListener,
    net::TcpStream,
    spawn,
    sync::Notify,
    task::{self, Either},
    time,
};
use unit::{Units, answered};

use crate::{
    admission::{Displaced, Limit, Places},
    config::{ServerConfig, TargetSpec},
    front::Front,
    notices::{Notice, Suppressed},
    portals,
    report::SessionReport,
    request::{Newcomer, Request},
    service::Service,
    sessions::{Arrival, Sessions},
};

/// How long an address may stay in use before that is an error.
pub const IN_USE_LIMIT: Duration = Duration::from_secs(2);
/// Before the next try after a connection could not be accepted.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);
/// While as many connections as have room are still on their way out.
const PAUSE_WHEN_CROWDED: Duration = Duration::from_millis(2);

/// Why a server did not start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// A portal's address could not be bound.
    #[error("cannot listen on {address}: {cause}; {mend}")]
    Portal {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        cause: String,
        /// What to look at.
        mend: &'static str,
    },
    /// A portal's port is taken by another portal of the same server, which stays until the new one is there.
    #[error(
        "cannot listen on {address}: this daemon itself listens on {other}; take that portal away and apply, \
         then write this one"
    )]
    Ours {
        /// The address.
        address: SocketAddr,
        /// The one that is listened on.
        other: SocketAddr,
    },
    /// A logical unit could not be shown on a lane.
    #[error("{0}")]
    Unit(String),
}

impl StartError {
    /// The system has said `error` when `address` was to be bound.
    pub fn portal(address: SocketAddr, error: &std::io::Error) -> StartError {
        StartError::Portal {
            address,
            mend: mend(address, error.kind()),
            cause: error.to_string(),
        }
    }
}

/// A running server. Its portals are accepted on the lane that started it.
pub struct Server {
    targets: Vec<TargetSpec>,
    portals: Vec<SocketAddr>,
    lanes: Vec<Sender<Request>>,
    sessions: Arc<Sessions>,
    /// By the addresses that were asked for.
    listening: BTreeMap<SocketAddr, Listening>,
}

/// A portal's address that is listened on.
struct Listening {
    /// With the port that the system chose.
    address: SocketAddr,
    stop: Rc<Notify>,
}

impl Server {
    /// Binds the portals and begins to serve `units`, on all their lanes.
    ///
    /// # Errors
    /// [`StartError`]; nothing is served then.
    pub async fn start(mut config: ServerConfig, units: &Units) -> Result<Server, StartError> {
        let bound = bind(&mut config, &BTreeMap::new()).await?;
        let sessions = Arc::new(Sessions::new(Places::of(&config.limits)));
        let lanes = 0..units.lanes();
        let (senders, receivers): (Vec<_>, Vec<_>) = lanes.map(|_| channel()).unzip();
        for (own, requests) in receivers.into_iter().enumerate() {
            let (started, opened) = oneshot();
            let (config, sessions, all) = (config.clone(), sessions.clone(), senders.clone());
            units.enter(own, move |units| async move {
                match Service::open(&config, units, sessions, own, all) {
                    Ok(service) => {
                        started.send(Ok(()));
                        Front::new(service).run(requests).await;
                    }
                    Err(error) => started.send(Err(error)),
                }
            });
            let ended = || Err("its lane has ended".to_owned());
            opened
                .await
                .unwrap_or_else(ended)
                .map_err(StartError::Unit)?;
        }
        let mut server = Server {
            targets: config.targets,
            portals: Vec::new(),
            lanes: senders,
            sessions,
            listening: BTreeMap::new(),
        };
        server.listen(bound);
        Ok(server)
    }

    /// Serves what `config` says from now on: its targets, and what discovery has to prove. Digests and
    /// limits are for the connections that come. Returns when what is served no more has ended: the sessions
    /// of targets that are gone and of initiators that may not use theirs any more, and the I/O of LUNs
    /// that are gone.
    ///
    /// # Errors
    /// [`StartError`]; all is served as before then.
    pub async fn change(&mut self, mut config: ServerConfig) -> Result<(), StartError> {
        let bound = bind(&mut config, &self.listening).await?;
        for lane in &self.lanes {
            let (done, answer) = oneshot();
            let config = config.clone();
            if lane.send(Request::Prepare { config, done }).is_ok() {
                let ready = answered(answer, "make another configuration ready").await;
                if let Some(Err(error)) = ready {
                    self.forget_ready().await;
                    return Err(StartError::Unit(error));
                }
            }
        }
        let over = self.ask(|done| Request::Commit { done });
        // Behind that: a lane serves the new targets when their first connection comes.
        self.sessions
            .admission
            .set_places(Places::of(&config.limits));
        self.targets = config.targets;
        self.listen(bound);
        for over in over {
            // A lane that has ended has no sessions.
            answered(over, "end what is served no more").await;
        }
        Ok(())
    }

    /// Has no lane keep what was made ready.
    async fn forget_ready(&self) {
        for forgotten in self.ask(|done| Request::Forget { done }) {
            answered(forgotten, "forget another configuration").await;
        }
    }

    /// Asks every lane.
    fn ask<T>(&self, request: impl Fn(OneshotSender<T>) -> Request) -> Vec<OneshotReceiver<T>> {
        ask(&self.lanes, request)
    }

    /// Accepts connections where `bound` says, and nowhere else.
    fn listen(&mut self, bound: Bound) {
        let Bound { asked, new } = bound;
        self.listening.retain(|address, listening| {
            let stays = asked.contains(address);
            if !stays {
                listening.stop.notify();
            }
            stays
        });
        for (address, listener) in new {
            let listening = Listening {
                address: listener.local_addr(),
                stop: Rc::new(Notify::new()),
            };
            let door = Door {
                lanes: self.lanes.clone(),
                sessions: self.sessions.clone(),
                next_lane: Cell::new(0),
            };
            spawn(door.accept(listener, listening.stop.clone()));
            self.listening.insert(address, listening);
        }
        let asked = asked
            .iter()
            .filter_map(|address| self.listening.get(address));
        self.portals = asked.map(|listening| listening.address).collect();
    }

    /// The targets that it serves, with the ports that the system chose.
    pub fn targets(&self) -> &[TargetSpec] {
        &self.targets
    }

    /// The addresses that are listened on, with the ports that the system chose.
    pub fn portals(&self) -> &[SocketAddr] {
        &self.portals
    }

    /// Looks whether another configuration could be served at `portals`: each that is new is listened on for
    /// a moment.
    ///
    /// # Errors
    /// The first that could not be listened on.
    pub async fn try_portals(
        &self,
        portals: impl IntoIterator<Item = SocketAddr>,
    ) -> Result<(), StartError> {
        for portal in portals {
            if !self.listening.contains_key(&portal) {
                listen(portal, &self.listening).await?;
            }
        }
        Ok(())
    }

    /// Tells of the sessions, also while the server is changed.
    pub fn reporter(&self) -> Reporter {
        Reporter {
            lanes: self.lanes.clone(),
        }
    }

    /// Logins that failed because the initiator could not prove who it is, since the start.
    pub fn failed_logins(&self) -> u64 {
        self.sessions.failures.total()
    }

    /// Takes no new connections and commands, answers what was accepted, and ends all connections. What
    /// they wrote is [flushed](Units::flush) by whoever holds the units.
    pub async fn stop(self) {
        for listening in self.listening.values() {
            listening.stop.notify();
        }
        for answer in self.ask(|done| Request::Stop { done }) {
            // A lane that has ended has no connections.
            answered(answer, "end all connections").await;
        }
    }
}

/// Tells of a server's sessions.
#[derive(Clone)]
pub struct Reporter {
    lanes: Vec<Sender<Request>>,
}

impl Reporter {
    /// All sessions, those for discovery too, in the order of their initiators' names.
    pub async fn sessions(&self) -> Vec<SessionReport> {
        let mut sessions = Vec::new();
        for answer in ask(&self.lanes, |done| Request::Report { done }) {
            // A lane that has ended has no sessions.
            sessions.extend(
                answered(answer, "describe its sessions")
                    .await
                    .into_iter()
                    .flatten(),
            );
        }
        sessions
            .sort_by(|one, other| (&one.initiator, one.peer).cmp(&(&other.initiator, other.peer)));
        sessions
    }
}

/// Asks all `lanes`.
fn ask<T>(
    lanes: &[Sender<Request>],
    request: impl Fn(OneshotSender<T>) -> Request,
) -> Vec<OneshotReceiver<T>> {
    let asked = lanes.iter().filter_map(|lane| {
        let (done, answer) = oneshot();
        lane.send(request(done)).is_ok().then_some(answer)
    });
    asked.collect()
}

/// The addresses that a configuration asks for, each once.
struct Bound {
    asked: Vec<SocketAddr>,
    /// Those that nobody listened on before.
    new: Vec<(SocketAddr, TcpListener)>,
}

/// Binds each address once that is not listened on already, and writes the ports that the system chose
/// into the configuration.
async fn bind(
    config: &mut ServerConfig,
    listening: &BTreeMap<SocketAddr, Listening>,
) -> Result<Bound, StartError> {
    let known = listening.iter();
    let mut bound: BTreeMap<_, _> = known
        .map(|(asked, known)| (*asked, known.address))
        .collect();
    let (mut all, mut new) = (Vec::new(), Vec::new());
    for portal in config
        .targets
        .iter_mut()
        .flat_map(|target| &mut target.portal_groups)
        .flat_map(|group| &mut group.portals)
    {
        let asked = *portal;
        if !all.contains(&asked) {
            all.push(asked);
        }
        *portal = match bound.get(&asked) {
            Some(address) => *address,
            None => {
                let listener = listen(asked, listening).await?;
                let address = listener.local_addr();
                bound.insert(asked, address);
                new.push((asked, listener));
                address
            }
        };
    }
    Ok(Bound { asked: all, new })
}

/// What helps against a portal that cannot be bound.
fn mend(address: SocketAddr, kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied if address.port() < 1024 => {
            "ports below 1024 need a privilege: write one from 1024 on, as 3260, or give this process \
             CAP_NET_BIND_SERVICE"
        }
        ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: write one that it has, or 0.0.0.0 for all"
        }
        ErrorKind::AddrInUse => {
            "another program listens there (`ss -ltnp` shows which): stop it, or write another port"
        }
        _ => "write another address, or see to it that this process may listen there",
    }
}

/// Listens on `address`, beside what is listened on already. One that is in use is tried again for a while:
/// the kernel takes a ring apart after its process has ended, and a server that was killed listens on until
/// then.
async fn listen(
    address: SocketAddr,
    listening: &BTreeMap<SocketAddr, Listening>,
) -> Result<TcpListener, StartError> {
    let begun = time::now();
    loop {
        let error = match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => error,
        };
        if error.kind() == ErrorKind::AddrInUse {
            let mut ours = listening.values().map(|known| known.address);
            if let Some(other) = ours.find(|other| overlap(address, *other)) {
                return Err(StartError::Ours { address, other });
            }
            if time::now() - begun < IN_USE_LIMIT {
                time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        }
        return Err(StartError::portal(address, &error));
    }
}

/// Whether nobody can listen on both: one of them is all addresses of their port.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && (one.ip().is_unspecified() || other.ip().is_unspecified())
}

/// Where connections come in: hands them to the lanes in turn, and has others make room.
struct Door {
    lanes: Vec<Sender<Request>>,
    sessions: Arc<Sessions>,
    next_lane: Cell<usize>,
}

impl Door {
    /// Lets connections in until told to stop.
    async fn accept(self, listener: TcpListener, stop: Rc<Notify>) {
        let mut stopped = pin!(stop.notified());
        loop {
            match task::either(stopped.as_mut(), listener.accept()).await {
                Either::One(()) => return,
                Either::Other(Ok(stream)) => self.let_in(stream),
                // The peer did not wait.
                Either::Other(Err(error)) if error.kind() == ErrorKind::ConnectionAborted => {}
                Either::Other(Err(error)) => {
                    // Out of descriptors or memory, most likely: somebody has to go first.
                    if let Some(suppressed) = self.may_say(Notice::NotAccepted) {
                        tracing::warn!(%error, suppressed, "a connection could not be accepted");
                    }
                    if let Some(displaced) = self.sessions.admission.make_room() {
                        self.tell(displaced);
                    }
                    time::sleep(PAUSE_AFTER_ERROR).await;
                }
            }
            while self.sessions.admission.is_crowded() {
                time::sleep(PAUSE_WHEN_CROWDED).await;
            }
        }
    }

    fn let_in(&self, stream: TcpStream) {
        // One that is gone already has no peer.
        let Ok((local, peer)) = stream.addresses() else {
            return;
        };
        let (local, peer) = (portals::plain(local), portals::plain(peer));
        let lane = &self.lanes[self.next_lane.get()];
        self.next_lane
            .set((self.next_lane.get() + 1) % self.lanes.len());
        let arrival = Arrival {
            peer,
            lane: lane.clone(),
        };
        let (id, displaced) = self.sessions.admission.arrive(peer.ip(), arrival);
        let newcomer = Newcomer {
            id,
            peer,
            local,
            stream: stream.detach(),
        };
        if lane.send(Request::Serve(newcomer)).is_err() {
            tracing::error!("a lane has ended; its connection is dropped");
            self.sessions.admission.leave(id, time::now());
        }
        if let Some(displaced) = displaced {
            self.tell(displaced);
        }
    }

    /// Tells a connection that it has to leave.
    fn tell(&self, displaced: Displaced<Arrival>) {
        let Displaced { id, entry, limit } = displaced;
        if let Some(suppressed) = self.may_say(Notice::Displaced) {
            let limit = match limit {
                Limit::Logins => "limits.logins",
                Limit::LoginsPerPeer => "limits.logins_per_peer",
            };
            tracing::warn!(
                peer = %entry.peer,
                limit,
                suppressed,
                "a connection that had not logged in has made room for a new one"
            );
        }
        if entry
            .lane
            .send(Request::MakeRoom { connection: id })
            .is_err()
        {
            self.sessions.admission.leave(id, time::now());
        }
    }

    fn may_say(&self, notice: Notice) -> Option<Suppressed> {
        self.sessions.notices.may_say(notice, time::now())
    }
}
