//! The server: binds the portals, gives every lane its front, and has their connections accepted.

use std::{collections::BTreeMap, io::ErrorKind, net::SocketAddr, rc::Rc, sync::Arc};

use engine::{LaneFuture, cross::answered, net::TcpListener, spawn, sync::Notify};
use front::{Acceptor, FrontLanes, Listener, retried};
use iscsi::Chap;
use unit::Units;

use crate::{
    config::{ServerConfig, TargetSpec},
    front::Front,
    report::SessionReport,
    request::Request,
    sessions::{AcceptPolicy, Sessions},
};

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
    lanes: FrontLanes<Request>,
    acceptor: Rc<Acceptor<AcceptPolicy>>,
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
        let opening = FrontLanes::start::<Front>(units, (config.clone(), sessions.clone()));
        let lanes = opening.await.map_err(StartError::Unit)?;
        let mut server = Server {
            targets: config.targets,
            discovery: config.discovery,
            portals: Vec::new(),
            acceptor: Acceptor::new(AcceptPolicy(sessions.clone()), lanes.clone()),
            lanes,
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
        let prepare = |done| Request::Prepare {
            config: config.clone(),
            done,
        };
        let ready = self.lanes.answers("prepare a new configuration", prepare);
        if let Some(Err(error)) = ready.await.into_iter().find(Result::is_err) {
            let forget = |done| Request::Forget { done };
            self.lanes
                .answers("discard a prepared configuration", forget)
                .await;
            return Err(StartError::Unit(error));
        }
        let over = self.lanes.ask(|done| Request::Commit { done });
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
            let (acceptor, stop) = (self.acceptor.clone(), listening.stop.clone());
            spawn(acceptor.accept(Listener::Tcp(listener), stop));
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
        let stop = |done| Request::Stop { done };
        self.lanes.answers("end all connections", stop).await;
    }
}

/// Reports a server's sessions.
#[derive(Clone)]
pub struct Reporter {
    lanes: FrontLanes<Request>,
}

impl Reporter {
    /// All sessions, including discovery sessions, ordered by initiator name.
    pub async fn sessions(&self) -> Vec<SessionReport> {
        let report = |done| Request::Report { done };
        let reported = self.lanes.answers("report its sessions", report).await;
        let mut sessions: Vec<_> = reported.into_iter().flatten().collect();
        sessions
            .sort_by(|one, other| (&one.initiator, one.peer).cmp(&(&other.initiator, other.peer)));
        sessions
    }
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

/// Listens on `address`, in addition to what is listened on already.
async fn listen(
    address: SocketAddr,
    listening: &BTreeMap<SocketAddr, Listening>,
) -> Result<TcpListener, StartError> {
    let error = match TcpListener::bind(address) {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    if error.kind() == ErrorKind::AddrInUse {
        let mut ours = listening.values().map(|known| known.address);
        if let Some(other) = ours.find(|other| overlap(address, *other)) {
            return Err(StartError::Ours { address, other });
        }
    }
    let bound = retried(|| TcpListener::bind(address)).await;
    bound.map_err(|error| StartError::portal(address, &error))
}

/// Whether the two addresses conflict: same port, and one of them is the wildcard address.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && (one.ip().is_unspecified() || other.ip().is_unspecified())
}
