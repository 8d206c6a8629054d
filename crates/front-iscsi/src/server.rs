//! The server: binds the portals, gives every lane its front, spreads connections over the lanes.

use std::{
    cell::Cell, collections::BTreeMap, future::Future, io::ErrorKind, net::SocketAddr, pin::pin,
    rc::Rc, sync::Arc, task::Poll,
};

use engine::{
    Duration,
    cross::{Sender, channel, oneshot},
    net::TcpListener,
    net::TcpStream,
    spawn,
    sync::Notify,
    time,
};
use unit::{Units, answered};

use crate::{
    admission::{Displaced, Limit, Places},
    config::ServerConfig,
    front::Front,
    notices::{Notice, Suppressed},
    portals,
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
    portals: Vec<SocketAddr>,
    lanes: Vec<Sender<Request>>,
    sessions: Arc<Sessions>,
    stop: Rc<Notify>,
}

impl Server {
    /// Binds the portals and begins to serve `units`, on all their lanes.
    ///
    /// # Errors
    /// [`StartError`]; nothing is served then.
    pub async fn start(mut config: ServerConfig, units: &Units) -> Result<Server, StartError> {
        let listeners = bind(&mut config).await?;
        let limits = &config.limits;
        let sessions = Arc::new(Sessions::new(Places {
            sessions: limits.connections_max,
            reserved: limits.reserved.min(limits.connections_max),
            logins: limits.logins_max,
            logins_per_peer: limits.logins_per_peer_max,
        }));
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
        let stop = Rc::new(Notify::new());
        let portals = listeners.iter().map(TcpListener::local_addr).collect();
        for listener in listeners {
            let door = Door {
                lanes: senders.clone(),
                sessions: sessions.clone(),
                next_lane: Cell::new(0),
            };
            spawn(door.accept(listener, stop.clone()));
        }
        Ok(Server {
            portals,
            lanes: senders,
            sessions,
            stop,
        })
    }

    /// The addresses that are listened on, with the ports that the system chose.
    pub fn portals(&self) -> &[SocketAddr] {
        &self.portals
    }

    /// Logins that failed because the initiator could not prove who it is, since the start.
    pub fn failed_logins(&self) -> u64 {
        self.sessions.failures.total()
    }

    /// Takes no new connections and commands, answers what was accepted, and ends all connections. What
    /// they wrote is [flushed](Units::flush) by whoever holds the units.
    pub async fn stop(self) {
        self.stop.notify();
        let mut answers = Vec::new();
        for lane in &self.lanes {
            let (done, answer) = oneshot();
            if lane.send(Request::Stop { done }).is_ok() {
                answers.push(answer);
            }
        }
        for answer in answers {
            // A lane that has ended has no connections.
            answered(answer, "end all connections").await;
        }
    }
}

/// Binds each address once, and writes the ports that the system chose into the configuration.
async fn bind(config: &mut ServerConfig) -> Result<Vec<TcpListener>, StartError> {
    let mut bound: BTreeMap<SocketAddr, SocketAddr> = BTreeMap::new();
    let mut listeners = Vec::new();
    for portal in config
        .targets
        .iter_mut()
        .flat_map(|target| &mut target.portal_groups)
        .flat_map(|group| &mut group.portals)
    {
        let asked = *portal;
        *portal = match bound.get(&asked) {
            Some(address) => *address,
            None => {
                let listener = listen(asked).await;
                let listener = listener.map_err(|error| StartError::portal(asked, &error))?;
                let address = listener.local_addr();
                bound.insert(asked, address);
                listeners.push(listener);
                address
            }
        };
    }
    Ok(listeners)
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

/// Listens on `address`. One that is in use is tried again for a while: the kernel takes a ring
/// apart after its process has ended, and a server that was killed listens on until then.
async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let begun = time::now();
    loop {
        match TcpListener::bind(address) {
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse
                    && time::now() - begun < IN_USE_LIMIT =>
            {
                time::sleep(Duration::from_millis(20)).await;
            }
            other => return other,
        }
    }
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
            let accepted = {
                let mut accepting = pin!(listener.accept());
                std::future::poll_fn(|cx| {
                    if stopped.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(None);
                    }
                    accepting.as_mut().poll(cx).map(Some)
                })
                .await
            };
            match accepted {
                None => return,
                Some(Ok(stream)) => self.let_in(stream),
                // The peer did not wait.
                Some(Err(error)) if error.kind() == ErrorKind::ConnectionAborted => {}
                Some(Err(error)) => {
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
