//! The server: binds the portals, gives every lane its front, spreads connections over the lanes.

use std::{
    cell::Cell, collections::BTreeMap, future::Future, io::ErrorKind, net::SocketAddr, pin::pin,
    rc::Rc, sync::Arc, task::Poll,
};

use engine::{
    Duration, LaneHandle,
    cross::{Sender, channel, oneshot},
    net::TcpListener,
    net::TcpStream,
    spawn,
    sync::Notify,
    time,
};

use crate::{
    admission::{Displaced, Limit, Places},
    config::{LunSpec, ServerConfig},
    front::{Front, Home, Homes, Newcomer, Request},
    memory::CommonMemory,
    notices::{Notice, Suppressed},
    portals,
    sessions::{Arrival, Sessions},
    stages::StageReport,
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
    /// A volume could not be opened on a lane.
    #[error("{0}")]
    Volume(String),
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

/// A volume could not be flushed when its server stopped: what had been written to it and not been
/// flushed before may be lost.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the last flush of volume {volume} failed, and what was written since the one before may be lost: \
     {cause}"
)]
pub struct StopError {
    /// Its name.
    pub volume: String,
    /// What it said.
    pub cause: String,
}

/// A running server. Its portals are accepted on the lane that started it.
pub struct Server {
    portals: Vec<SocketAddr>,
    lanes: Vec<Sender<Request>>,
    sessions: Arc<Sessions>,
    stop: Rc<Notify>,
}

impl Server {
    /// Opens the volumes on all `lanes` (one of them may be the current one), binds the portals
    /// and begins to serve.
    ///
    /// # Errors
    /// [`StartError`]; nothing is served then.
    pub async fn start(
        mut config: ServerConfig,
        lanes: &[LaneHandle],
    ) -> Result<Server, StartError> {
        let listeners = bind(&mut config).await?;
        let limits = &config.limits;
        let sessions = Arc::new(Sessions::new(Places {
            sessions: limits.connections_max,
            reserved: limits.reserved.min(limits.connections_max),
            logins: limits.logins_max,
            logins_per_peer: limits.logins_per_peer_max,
        }));
        let homes: Homes = Arc::new(
            config
                .targets
                .iter()
                .flat_map(|target| target.luns.values())
                .map(|lun| (lun.volume.clone(), home(lun)))
                .collect(),
        );
        let common = CommonMemory::new(config.limits.plan(lanes.len()).common);
        let mut senders = Vec::new();
        let mut receivers = Vec::new();
        for _ in lanes {
            let (sender, receiver) = channel();
            senders.push(sender);
            receivers.push(receiver);
        }
        for (own, (lane, requests)) in lanes.iter().zip(receivers).enumerate() {
            let (started, opened) = oneshot();
            let (config, sessions, all) = (config.clone(), sessions.clone(), senders.clone());
            let (homes, common) = (homes.clone(), common.clone());
            lane.spawn(move || async move {
                match Front::open(&config, homes, sessions, common, own, all).await {
                    Ok(front) => {
                        started.send(Ok(()));
                        front.run(requests).await;
                    }
                    Err(error) => started.send(Err(error)),
                }
            });
            let ended = || Err("its lane has ended".to_owned());
            opened
                .await
                .unwrap_or_else(ended)
                .map_err(StartError::Volume)?;
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

    /// Where the time of commands has gone since the start.
    pub fn stage_times(&self) -> StageReport {
        self.sessions.stages.report()
    }

    /// Looks at the lengths of the volumes. Where one has another than its disk, every nexus is told
    /// by a unit attention (CAPACITY DATA HAS CHANGED), once. Returns before it is done.
    pub fn tell_lengths(&self) {
        // What the copies of a disk have in common knows its length, so one lane does it for all.
        if let Some(lane) = self.lanes.first() {
            // A lane that has ended serves nobody.
            let _ = lane.send(Request::TellLengths);
        }
    }

    /// Takes no new connections and commands, answers what was accepted, ends all connections and
    /// flushes the volumes.
    ///
    /// # Errors
    /// [`StopError`] for the first volume whose flush failed; all else has been done.
    pub async fn stop(self) -> Result<(), StopError> {
        self.stop.notify();
        let mut answers = Vec::new();
        for lane in &self.lanes {
            let (done, answer) = oneshot();
            if lane.send(Request::Stop { done }).is_ok() {
                answers.push(answer);
            }
        }
        let mut result = Ok(());
        for answer in answers {
            // A lane that has ended has nothing left to flush.
            result = result.and(answer.await.unwrap_or(Ok(())));
        }
        result
    }
}

/// The home of a volume's state, with what was kept of it.
fn home(lun: &LunSpec) -> Arc<Home> {
    let home = Home::default();
    if let Some(kept) = &lun.kept {
        home.unit.restore(kept);
    }
    Arc::new(home)
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
