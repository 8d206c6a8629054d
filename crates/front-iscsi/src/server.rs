//! The server: binds the portals, gives every lane its front, and has their connections accepted.

use std::{collections::BTreeMap, io::ErrorKind, net::SocketAddr, rc::Rc, sync::Arc};

use engine::{LaneFuture, cross::answered, net::TcpListener, spawn, sync::Notify};
use front::{Acceptor, Address, FrontLanes, Listener, StartError, retried};
use iscsi::Chap;
use unit::Units;

use crate::{
    config::{ServerConfig, TargetSpec},
    front::IscsiLane,
    report::SessionReport,
    request::LaneRequest,
    sessions::{AcceptPolicy, Sessions},
};

/// A running server. The lane that started it accepts connections on all its portals.
pub struct IscsiServer {
    targets: Vec<TargetSpec>,
    discovery: Option<Arc<Chap>>,
    portals: Vec<SocketAddr>,
    lanes: FrontLanes<LaneRequest>,
    acceptor: Rc<Acceptor<AcceptPolicy>>,
    sessions: Arc<Sessions>,
    /// Keyed by the requested address, whose port may be 0.
    listening: BTreeMap<SocketAddr, Listening>,
    /// What all lanes have prepared to serve.
    prepared: Option<(ServerConfig, Bound)>,
}

/// A listening portal.
struct Listening {
    /// The bound address, with the port that the system chose.
    address: SocketAddr,
    stop: Rc<Notify>,
}

impl IscsiServer {
    /// Binds the portals and starts serving `units` on all their lanes.
    ///
    /// # Errors
    /// [`StartError`]; nothing is served in that case.
    pub async fn start(mut config: ServerConfig, units: &Units) -> Result<IscsiServer, StartError> {
        let bound = bind(&mut config, &BTreeMap::new()).await?;
        let sessions = Arc::new(Sessions::new(config.limits.places()));
        let opening = FrontLanes::start::<IscsiLane>(units, (config.clone(), sessions.clone()));
        let lanes = opening.await.map_err(StartError::Unit)?;
        let mut server = IscsiServer {
            targets: config.targets,
            discovery: config.discovery,
            portals: Vec::new(),
            acceptor: Acceptor::new(AcceptPolicy(sessions.clone()), lanes.clone()),
            lanes,
            sessions,
            listening: BTreeMap::new(),
            prepared: None,
        };
        server.listen(bound);
        Ok(server)
    }

    /// Has all lanes prepare to serve `config`, and binds its portals.
    ///
    /// # Errors
    /// [`StartError`]; nothing is prepared then.
    pub async fn prepare(&mut self, mut config: ServerConfig) -> Result<(), StartError> {
        let bound = bind(&mut config, &self.listening).await?;
        let prepare = |done| LaneRequest::Prepare {
            config: config.clone(),
            done,
        };
        let ready = self.lanes.answers("prepare a new configuration", prepare);
        if let Some(Err(error)) = ready.await.into_iter().find(Result::is_err) {
            self.discard().await;
            return Err(StartError::Unit(error));
        }
        self.prepared = Some((config, bound));
        Ok(())
    }

    /// Discards what has been prepared.
    pub async fn discard(&mut self) {
        self.prepared = None;
        let forget = |done| LaneRequest::Forget { done };
        let what = "discard a prepared configuration";
        self.lanes.answers(what, forget).await;
    }

    /// Switches to what has been prepared: its targets and its CHAP settings for discovery. Digests and limits apply to new
    /// connections only. The returned future completes once everything that the new configuration drops has ended:
    /// sessions of removed targets and of initiators that may no longer use theirs, and I/O on removed LUNs.
    pub fn commit(&mut self) -> LaneFuture<'static, ()> {
        let (config, bound) = self.prepared.take().expect("it has been prepared");
        let over = self.lanes.ask(|done| LaneRequest::Commit { done });
        if self.asks_for_other_secrets(&config) {
            self.sessions.failures.reset();
        }
        // Only now: each lane already knows the new targets when their first connection arrives.
        self.sessions.admission.set_places(config.limits.places());
        self.targets = config.targets;
        self.discovery = config.discovery;
        self.listen(bound);
        LaneFuture::new(async move {
            for over in over {
                // A lane that has shut down has no sessions.
                answered(over, "close targets that are no longer served").await;
            }
        })
    }

    /// [Prepares](Self::prepare) `config` and [switches](Self::commit) to it.
    ///
    /// # Errors
    /// [`StartError`]; the old configuration stays in force in that case.
    pub async fn change(
        &mut self,
        config: ServerConfig,
    ) -> Result<LaneFuture<'static, ()>, StartError> {
        self.prepare(config).await?;
        Ok(self.commit())
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

    /// Checks whether `config` could be served at its portals by briefly listening on each new one.
    ///
    /// # Errors
    /// The first portal that cannot be listened on.
    pub(crate) async fn try_portals(&self, config: &ServerConfig) -> Result<(), StartError> {
        for portal in config.portals() {
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

    /// The peers that have a session.
    pub(crate) fn peers(&self) -> Vec<String> {
        let admission = &self.sessions.admission;
        admission.sessions(|arrival| arrival.ends.to_string())
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
        let stop = |done| LaneRequest::Stop { done };
        self.lanes.answers("end all connections", stop).await;
    }
}

/// Reports a server's sessions.
#[derive(Clone)]
pub struct Reporter {
    lanes: FrontLanes<LaneRequest>,
}

impl Reporter {
    /// All sessions, including discovery sessions, ordered by initiator name.
    pub async fn sessions(&self) -> Vec<SessionReport> {
        let report = |done| LaneRequest::Report { done };
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
    bound.map_err(|error| StartError::address(Address::Tcp(address), &error))
}

/// Whether the two addresses conflict: same port, and one of them is the wildcard address.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && (one.ip().is_unspecified() || other.ip().is_unspecified())
}
