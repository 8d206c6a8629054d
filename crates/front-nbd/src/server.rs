//! The server: gives every lane its front, and spreads connections over the lanes.

use std::{cell::Cell, io::ErrorKind, pin::pin, rc::Rc, sync::Arc};

use engine::{
    Duration,
    cross::{Sender, answered, channel, oneshot},
    net::TcpStream,
    rate::Suppressed,
    spawn,
    sync::Notify,
    task::{self, Either},
    time,
};
use front::{Admission, Displaced, Limit, Peer};
use unit::Units;

use crate::{
    config::{Address, Config, Limits},
    error::StartError,
    front::Front,
    notices::{Notice, Notices},
    place::{Listener, Place},
    service::{Everywhere, Guest, Newcomer, Request},
};

/// How long to wait before retrying an accept that failed.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);
/// How long to wait before checking again whether displaced connections have closed.
const PAUSE_WHEN_CROWDED: Duration = Duration::from_millis(1);

/// A running server. The lane that started it accepts the connections.
pub struct Server {
    addresses: Vec<Address>,
    everywhere: Arc<Everywhere>,
    lanes: Vec<Sender<Request>>,
    stop: Rc<Notify>,
}

impl Server {
    /// Starts serving a volume of `units`, on all their lanes, to clients that connect to `place`.
    ///
    /// # Errors
    /// [`StartError::Unit`]; nothing is served in that case.
    pub async fn start(config: Config, place: Place, units: &Units) -> Result<Server, StartError> {
        let everywhere = Arc::new(Everywhere {
            admission: Admission::new(config.limits.places()),
            notices: Notices::default(),
        });
        let (lanes, receivers): (Vec<_>, Vec<_>) = (0..units.lanes()).map(|_| channel()).unzip();
        for (lane, requests) in receivers.into_iter().enumerate() {
            let (started, opened) = oneshot();
            let (config, everywhere) = (config.clone(), everywhere.clone());
            units.enter(lane, move |units| async move {
                match Front::open(config, units, everywhere) {
                    Ok(front) => {
                        started.send(Ok(()));
                        front.run(requests).await;
                    }
                    Err(error) => started.send(Err(error)),
                }
            });
            let outcome = opened.outcome().await;
            let opened = outcome.unwrap_or_else(|unanswered| Err(unanswered.to_string()));
            opened.map_err(StartError::Unit)?;
        }
        let stop = Rc::new(Notify::new());
        let acceptor = Rc::new(Acceptor {
            lanes: lanes.clone(),
            everywhere: everywhere.clone(),
            limits: config.limits,
            next_lane: Cell::new(0),
        });
        let addresses = place.0.iter().map(Listener::address).collect();
        for listener in place.0 {
            spawn(acceptor.clone().accept(listener, stop.clone()));
        }
        Ok(Server {
            addresses,
            everywhere,
            lanes,
            stop,
        })
    }

    /// The addresses it listens on, with the port that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The clients that have chosen the export, for people. A connection in its handshake is none.
    pub fn clients(&self) -> Vec<String> {
        self.everywhere
            .admission
            .sessions(|guest| guest.peer.clone())
    }

    /// Accepts no more connections or requests, answers the requests already accepted, and ends all connections. The
    /// holder of the units is responsible for [flushing](Units::flush) what the connections wrote.
    pub async fn stop(self) {
        self.stop.notify();
        let mut answers = Vec::new();
        for lane in &self.lanes {
            let (done, answer) = oneshot();
            if lane.send(Request::Stop(done)).is_ok() {
                answers.push(answer);
            }
        }
        for answer in answers {
            // A lane that has shut down has no connections.
            answered(answer, "end all connections").await;
        }
    }
}

/// The accept side: distributes connections over the lanes round-robin and displaces old ones to make room.
struct Acceptor {
    lanes: Vec<Sender<Request>>,
    everywhere: Arc<Everywhere>,
    limits: Limits,
    next_lane: Cell<usize>,
}

impl Acceptor {
    /// Accepts connections until told to stop.
    async fn accept(self: Rc<Self>, place: Listener, stop: Rc<Notify>) {
        let admission = &self.everywhere.admission;
        let mut stopped = pin!(stop.notified());
        loop {
            match task::either(stopped.as_mut(), place.accept()).await {
                Either::One(()) => return,
                Either::Other(Ok(stream)) => {
                    if let Some((peer, name)) = place.peer(&stream) {
                        self.let_in(stream, peer, name);
                    }
                }
                // The peer closed the connection before it was accepted.
                Either::Other(Err(error)) if error.kind() == ErrorKind::ConnectionAborted => {}
                Either::Other(Err(error)) => {
                    // Most likely out of file descriptors or memory: displace a connection to free some.
                    if let Some(suppressed) = self.may_say_trouble() {
                        tracing::warn!(%error, suppressed, "a connection could not be accepted");
                    }
                    if let Some(displaced) = admission.make_room() {
                        self.tell(displaced);
                    }
                    time::sleep(PAUSE_AFTER_ERROR).await;
                }
            }
            while admission.is_crowded() {
                let pause = time::sleep(PAUSE_WHEN_CROWDED);
                if let Either::One(()) = task::either(stopped.as_mut(), pause).await {
                    return;
                }
            }
        }
    }

    fn let_in(&self, stream: TcpStream, from: Peer, peer: String) {
        let admission = &self.everywhere.admission;
        if admission.is_full() {
            if let Some(suppressed) = self.may_say_trouble() {
                tracing::warn!(
                    peer,
                    limit = self.limits.connections_max,
                    suppressed,
                    "connection refused: the client limit is reached; disconnect a client first"
                );
            }
            return;
        }
        let lane = &self.lanes[self.next_lane.get()];
        self.next_lane
            .set((self.next_lane.get() + 1) % self.lanes.len());
        let guest = Guest {
            peer: peer.clone(),
            lane: lane.clone(),
        };
        let (id, displaced) = admission.arrive(from, guest);
        let newcomer = Newcomer {
            id,
            peer,
            stream: stream.detach(),
        };
        if lane.send(Request::Serve(newcomer)).is_err() {
            tracing::error!("a lane has ended; its connection is dropped");
            admission.leave(id, time::now());
        }
        if let Some(displaced) = displaced {
            self.tell(displaced);
        }
    }

    /// Tells a displaced connection's lane to close it.
    fn tell(&self, displaced: Displaced<Guest>) {
        let Displaced { id, entry, limit } = displaced;
        if let Some(suppressed) = self.may_say_trouble() {
            let limit = match limit {
                Limit::Logins => self.limits.handshakes_max,
                Limit::LoginsPerPeer => self.limits.handshakes_per_peer_max,
            };
            tracing::warn!(
                peer = entry.peer,
                limit,
                suppressed,
                "closed a connection that was still in its handshake, to make room for a new one"
            );
        }
        if entry.lane.send(Request::MakeRoom(id)).is_err() {
            self.everywhere.admission.leave(id, time::now());
        }
    }

    fn may_say_trouble(&self) -> Option<Suppressed> {
        let notices = &self.everywhere.notices;
        notices.may_say(Notice::Trouble, time::now())
    }
}
