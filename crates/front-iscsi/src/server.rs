//! The server: binds the portals, gives every lane its front, and spreads connections over the lanes.

use std::{
    cell::Cell, collections::BTreeMap, io::ErrorKind, net::SocketAddr, pin::pin, rc::Rc, sync::Arc,
};

use engine::{
    Duration, LaneFuture,
    cross::{OneshotReceiver, OneshotSender, Sender, answered, channel, oneshot},
    net::TcpListener,
    net::TcpStream,
    spawn,
    sync::Notify,
    task::{self, Either},
    time,
};
use front::{Displaced, Limit, Peer};
use iscsi::Chap;
use unit::Units;

use crate::{
    config::{ServerConfig, TargetSpec},
    front::Front,
    notices::{Notice, Suppressed},
    portals,
    report::SessionReport,
    request::{Newcomer, Request},
    service::Service,
    sessions::{Arrival, Sessions},
};

/// How long binding a portal is retried while its address is in use.
pub const IN_USE_LIMIT: Duration = Duration::from_secs(2);
/// How long to wait before accepting again after an accept failed.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);
/// How long to wait before accepting again while too many displaced connections are still closing.
const PAUSE_WHEN_CROWDED: Duration = Duration::from_millis(2);

/// Why a server did not start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// A portal's address could not be bound.
    #[error("cannot listen on {address}: {cause}; {mend}")]
    Portal {
        /// The address that could not be bound.
        address: SocketAddr,
        /// The operating system's error message.
        cause: String,
        /// What the administrator should check.
        mend: &'static str,
    },
    /// The portal overlaps another portal of this server, which keeps listening until the new configuration is in
    /// force.
    #[error(
        "cannot listen on {address}: this daemon already listens on {other}; remove that portal \
         and apply, then add this one"
    )]
    Ours {
        /// The address that could not be bound.
        address: SocketAddr,
        /// The address this server already listens on.
        other: SocketAddr,
    },
    /// A lane could not open a logical unit.
    #[error("{0}")]
    Unit(String),
}

impl StartError {
    /// The error for binding `address`, which the system refused with `error`.
    pub fn portal(address: SocketAddr, error: &std::io::Error) -> StartError {
        StartError::Portal {
            address,
            mend: mend(address, error.kind()),
            cause: error.to_string(),
        }
    }
}

/// A running server. The lane that started it accepts connections on all its portals.
pub struct Server {
    targets: Vec<TargetSpec>,
    discovery: Option<Arc<Chap>>,
    portals: Vec<SocketAddr>,
    lanes: Vec<Sender<Request>>,
    sessions: Arc<Sessions>,
    /// Keyed by the requested address, whose port may be 0.
    listening: BTreeMap<SocketAddr, Listening>,
}

/// A listening portal.
struct Listening {
    /// The bound address, with the port that the system chose.
    address: SocketAddr,
    stop: Rc<Notify>,
}

impl Server {
    /// Binds the portals and starts serving `units` on all their lanes.
    ///
    /// # Errors
    /// [`StartError`]; nothing is served in that case.
    pub async fn start(mut config: ServerConfig, units: &Units) -> Result<Server, StartError> {
        let bound = bind(&mut config, &BTreeMap::new()).await?;
        let sessions = Arc::new(Sessions::new(config.limits.places()));
        let lanes = 0..units.lanes();
        let (senders, receivers): (Vec<_>, Vec<_>) = lanes.map(|_| channel()).unzip();
        for (own, requests) in receivers.into_iter().enumerate() {
            let (started, opened) = oneshot();
            let (config, sessions, all) = (config.clone(), sessions.clone(), senders.clone());
            units.enter(own, move |units| async move {
                match Service::open(&config, units, sessions, own, all).await {
                    Ok(service) => {
                        started.send(Ok(()));
                        Front::new(service).run(requests).await;
                    }
                    Err(error) => started.send(Err(error)),
                }
            });
            let outcome = opened.outcome().await;
            let opened = outcome.unwrap_or_else(|unanswered| Err(unanswered.to_string()));
            opened.map_err(StartError::Unit)?;
        }
        let mut server = Server {
            targets: config.targets,
            discovery: config.discovery,
            portals: Vec::new(),
            lanes: senders,
            sessions,
            listening: BTreeMap::new(),
        };
        server.listen(bound);
        Ok(server)
    }

    /// Switches to `config`: its targets and its CHAP settings for discovery. Digests and limits apply to new
    /// connections only. The returned future completes once everything that the new configuration drops has ended:
    /// sessions of removed targets and of initiators that may no longer use theirs, and I/O on removed LUNs.
    ///
    /// # Errors
    /// [`StartError`]; the old configuration stays in force in that case.
    pub async fn change(
        &mut self,
        mut config: ServerConfig,
    ) -> Result<LaneFuture<'static, ()>, StartError> {
        let bound = bind(&mut config, &self.listening).await?;
        for lane in &self.lanes {
            let (done, answer) = oneshot();
            let config = config.clone();
            if lane.send(Request::Prepare { config, done }).is_ok() {
                let ready = answered(answer, "prepare a new configuration").await;
                if let Some(Err(error)) = ready {
                    self.forget_ready().await;
                    return Err(StartError::Unit(error));
                }
            }
        }
        let over = self.ask(|done| Request::Commit { done });
        if self.asks_for_other_secrets(&config) {
            self.sessions.failures.reset();
        }
        // Only now: each lane already knows the new targets when their first connection arrives.
        self.sessions.admission.set_places(config.limits.places());
        self.targets = config.targets;
        self.discovery = config.discovery;
        self.listen(bound);
        Ok(LaneFuture::new(async move {
            for over in over {
                // A lane that has shut down has no sessions.
                answered(over, "close targets that are no longer served").await;
            }
        }))
    }

    /// Whether `config` has other secrets than the configuration in force: failures under those say nothing any more.
    fn asks_for_other_secrets(&self, config: &ServerConfig) -> bool {
        let of = |targets: &[TargetSpec]| -> Vec<_> {
            let targets = targets.iter();
            targets
                .map(|target| (target.name.clone(), target.chap.clone()))
                .collect()
        };
        self.discovery != config.discovery || of(&self.targets) != of(&config.targets)
    }

    /// Has every lane discard the configuration it prepared.
    async fn forget_ready(&self) {
        for forgotten in self.ask(|done| Request::Forget { done }) {
            answered(forgotten, "discard a prepared configuration").await;
        }
    }

    /// Sends a request to every lane.
    fn ask<T>(&self, request: impl Fn(OneshotSender<T>) -> Request) -> Vec<OneshotReceiver<T>> {
        ask(&self.lanes, request)
    }

    /// Accepts connections on exactly the addresses in `bound`.
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
            let acceptor = Acceptor {
                lanes: self.lanes.clone(),
                sessions: self.sessions.clone(),
                next_lane: Cell::new(0),
            };
            spawn(acceptor.accept(listener, listening.stop.clone()));
            self.listening.insert(address, listening);
        }
        let asked = asked
            .iter()
            .filter_map(|address| self.listening.get(address));
        self.portals = asked.map(|listening| listening.address).collect();
    }

    /// The targets being served, with the ports that the system chose.
    pub fn targets(&self) -> &[TargetSpec] {
        &self.targets
    }

    /// The addresses being listened on, with the ports that the system chose.
    pub fn portals(&self) -> &[SocketAddr] {
        &self.portals
    }

    /// Checks whether another configuration could be served at `portals` by briefly listening on each new one.
    ///
    /// # Errors
    /// The first portal that cannot be listened on.
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

    /// A handle that reports the sessions, even while the server changes its configuration.
    pub fn reporter(&self) -> Reporter {
        Reporter {
            lanes: self.lanes.clone(),
        }
    }

    /// Logins since the start that failed authentication.
    pub fn failed_logins(&self) -> u64 {
        self.sessions.failures.total()
    }

    /// Accepts no more connections or commands, answers the commands already accepted, and ends all connections. The
    /// holder of the units is responsible for [flushing](Units::flush) what the connections wrote.
    pub async fn stop(self) {
        for listening in self.listening.values() {
            listening.stop.notify();
        }
        for answer in self.ask(|done| Request::Stop { done }) {
            // A lane that has shut down has no connections.
            answered(answer, "end all connections").await;
        }
    }
}

/// Reports a server's sessions.
#[derive(Clone)]
pub struct Reporter {
    lanes: Vec<Sender<Request>>,
}

impl Reporter {
    /// All sessions, including discovery sessions, ordered by initiator name.
    pub async fn sessions(&self) -> Vec<SessionReport> {
        let mut sessions = Vec::new();
        for answer in ask(&self.lanes, |done| Request::Report { done }) {
            // A lane that has shut down has no sessions.
            sessions.extend(
                answered(answer, "report its sessions")
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

/// Sends a request to each of `lanes`.
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

/// The addresses that a configuration asks for, without duplicates.
struct Bound {
    asked: Vec<SocketAddr>,
    /// Those not listened on before.
    new: Vec<(SocketAddr, TcpListener)>,
}

/// Binds each address that is not already listened on, and writes the ports that the system chose into the
/// configuration.
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

/// Advice for a portal that cannot be bound.
fn mend(address: SocketAddr, kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied if address.port() < 1024 => {
            "ports below 1024 require a privilege: choose 1024 or above, such as 3260, or give \
             this process CAP_NET_BIND_SERVICE"
        }
        ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: use one that it has, or 0.0.0.0 for all"
        }
        ErrorKind::AddrInUse => {
            "another program listens there (`ss -ltnp` shows which): stop it, or choose another \
             port"
        }
        _ => "choose another address, or make sure that this process may listen there",
    }
}

/// Listens on `address`, in addition to what is listened on already. Retries for a while if the address is in use:
/// the kernel tears down an io_uring instance only some time after its process has exited, and until then a killed
/// server still holds its listening sockets.
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

/// Whether the two addresses conflict: same port, and one of them is the wildcard address.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && (one.ip().is_unspecified() || other.ip().is_unspecified())
}

/// The accept side: distributes connections over the lanes round-robin and displaces old ones to make room.
struct Acceptor {
    lanes: Vec<Sender<Request>>,
    sessions: Arc<Sessions>,
    next_lane: Cell<usize>,
}

impl Acceptor {
    /// Accepts connections until told to stop.
    async fn accept(self, listener: TcpListener, stop: Rc<Notify>) {
        let mut stopped = pin!(stop.notified());
        loop {
            match task::either(stopped.as_mut(), listener.accept()).await {
                Either::One(()) => return,
                Either::Other(Ok(stream)) => self.let_in(stream),
                // The peer closed the connection before it was accepted.
                Either::Other(Err(error)) if error.kind() == ErrorKind::ConnectionAborted => {}
                Either::Other(Err(error)) => {
                    // Most likely out of file descriptors or memory: displace a connection to free some.
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
        // A connection that is closed already has no peer address.
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
        let (id, displaced) = self.sessions.admission.arrive(Peer::of(peer.ip()), arrival);
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

    /// Tells a displaced connection's lane to close it.
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
                "closed a connection that had not logged in, to make room for a new one"
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
