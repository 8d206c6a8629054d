//! The server: binds the listening address, gives every lane its front, and spreads connections over the lanes.

use std::{
    cell::Cell,
    io::{self, ErrorKind},
    pin::pin,
    rc::Rc,
    sync::Arc,
};

use engine::{
    Duration,
    cross::{Sender, answered, channel, oneshot},
    net::{Credentials, TcpListener, TcpStream, UnixListener},
    spawn, store,
    sync::Notify,
    task::{self, Either},
    time,
};
use unit::Units;

use crate::{
    config::{Address, Config},
    front::Front,
    notices::{Notice, Notices},
    places::{Arrival, Places},
    service::{Everywhere, Guest, Newcomer, Request},
};

/// How long binding is retried while the address is in use.
const IN_USE_LIMIT: Duration = Duration::from_secs(2);
/// How long to wait before retrying a bind or an accept that failed.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);
/// How long to wait before checking again whether displaced connections have closed.
const PAUSE_WHEN_CROWDED: Duration = Duration::from_millis(1);

/// Why a server did not start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// The address could not be bound.
    #[error("cannot listen on {address}: {cause}; {mend}")]
    Address {
        /// The address that could not be bound.
        address: Address,
        /// The operating system's error message.
        cause: String,
        /// What the administrator should check.
        mend: &'static str,
    },
    /// A lane could not open the volume.
    #[error("{0}")]
    Unit(String),
}

/// A running server. The lane that started it accepts the connections.
pub struct Server {
    address: Address,
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
            places: Places::new(config.limits),
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
        let address = place.address();
        let acceptor = Acceptor {
            lanes: lanes.clone(),
            everywhere,
            next_lane: Cell::new(0),
        };
        spawn(acceptor.accept(place, stop.clone()));
        Ok(Server {
            address,
            lanes,
            stop,
        })
    }

    /// The address it listens on, with the port that the system chose.
    pub fn address(&self) -> &Address {
        &self.address
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

fn not_bound(address: &Address, error: &io::Error) -> StartError {
    let is_unix = matches!(address, Address::Unix(_));
    let mend = match error.kind() {
        ErrorKind::AddrInUse if is_unix => {
            "another program listens there: stop it, remove the socket, or choose another path"
        }
        ErrorKind::AlreadyExists if is_unix => {
            "the path exists and is not a socket: remove the file, or choose another path"
        }
        ErrorKind::NotFound if is_unix => "create its directory first, or choose another path",
        ErrorKind::InvalidInput if is_unix => {
            "the path of a socket has at most 107 bytes: choose a shorter one"
        }
        ErrorKind::AddrInUse => {
            "another program listens there (`ss -ltnp` shows which): stop it, or choose another \
             port"
        }
        ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: use one that it has, or 0.0.0.0 for all"
        }
        ErrorKind::PermissionDenied => {
            "choose one where this process may listen; ports below 1024 require a privilege"
        }
        _ => "choose another address, or make sure that this process may listen there",
    };
    StartError::Address {
        address: address.clone(),
        cause: error.to_string(),
        mend,
    }
}

/// A bound listening socket. Clients that connect wait until a server accepts them.
pub struct Place(Listener);

enum Listener {
    Tcp(TcpListener),
    Unix(Address, UnixListener),
}

impl Place {
    /// Listens at `address`, on the current lane. Retries for a while if it is in use: the kernel tears down a ring
    /// some time after its process has exited, and until then a killed server still holds its listening sockets.
    ///
    /// # Errors
    /// [`StartError::Address`]
    pub async fn take(address: &Address) -> Result<Place, StartError> {
        let begun = time::now();
        loop {
            match Place::bind(address) {
                Err(error)
                    if error.kind() == ErrorKind::AddrInUse
                        && time::now() - begun < IN_USE_LIMIT =>
                {
                    time::sleep(PAUSE_AFTER_ERROR).await;
                }
                bound => return bound.map_err(|error| not_bound(address, &error)),
            }
        }
    }

    fn bind(address: &Address) -> io::Result<Place> {
        let bound = match address {
            Address::Tcp(tcp) => TcpListener::bind(*tcp).map(Listener::Tcp),
            Address::Unix(path) => {
                // A file that is not a socket will not go away by itself, so retrying is pointless.
                let is_other = |look: store::Look| look.kind != store::Kind::Socket;
                if store::look(path).is_ok_and(is_other) {
                    return Err(ErrorKind::AlreadyExists.into());
                }
                let bound = UnixListener::bind(path);
                bound.map(|listener| Listener::Unix(address.clone(), listener))
            }
        };
        bound.map(Place)
    }

    /// The bound address, with the port that the system chose.
    pub fn address(&self) -> Address {
        match &self.0 {
            Listener::Tcp(listener) => Address::Tcp(listener.local_addr()),
            Listener::Unix(address, _) => address.clone(),
        }
    }

    async fn accept(&self) -> io::Result<TcpStream> {
        match &self.0 {
            Listener::Tcp(listener) => listener.accept().await,
            Listener::Unix(_, listener) => listener.accept().await,
        }
    }

    /// Describes the peer of `stream` for the log; `None` if it is gone.
    fn peer(&self, stream: &TcpStream) -> Option<String> {
        match &self.0 {
            Listener::Tcp(_) => stream.addresses().ok().map(|(_, peer)| peer.to_string()),
            Listener::Unix(address, _) => Some(match stream.credentials() {
                Ok(Credentials { pid: 0, uid }) => format!("{address} (uid {uid})"),
                Ok(Credentials { pid, uid }) => format!("{address} (pid {pid}, uid {uid})"),
                Err(_) => address.to_string(),
            }),
        }
    }
}

/// The accept side: assigns connections to the lanes round-robin.
struct Acceptor {
    lanes: Vec<Sender<Request>>,
    everywhere: Arc<Everywhere>,
    next_lane: Cell<usize>,
}

impl Acceptor {
    /// Accepts connections until told to stop.
    async fn accept(self, place: Place, stop: Rc<Notify>) {
        let mut stopped = pin!(stop.notified());
        loop {
            match task::either(stopped.as_mut(), place.accept()).await {
                Either::One(()) => return,
                Either::Other(Ok(stream)) => {
                    if let Some(peer) = place.peer(&stream) {
                        self.let_in(stream, peer);
                    }
                }
                // The peer closed the connection before it was accepted.
                Either::Other(Err(error)) if error.kind() == ErrorKind::ConnectionAborted => {}
                Either::Other(Err(error)) => {
                    if let Some(suppressed) = self
                        .everywhere
                        .notices
                        .may_say(Notice::Trouble, time::now())
                    {
                        tracing::warn!(%error, suppressed, "a connection could not be accepted");
                    }
                    time::sleep(PAUSE_AFTER_ERROR).await;
                }
            }
            while self.everywhere.places.is_crowded() {
                let pause = time::sleep(PAUSE_WHEN_CROWDED);
                if let Either::One(()) = task::either(stopped.as_mut(), pause).await {
                    return;
                }
            }
        }
    }

    fn let_in(&self, stream: TcpStream, peer: String) {
        let lane = &self.lanes[self.next_lane.get()];
        let guest = Guest {
            peer: peer.clone(),
            lane: lane.clone(),
        };
        let places = &self.everywhere.places;
        let (id, oldest) = match places.arrive(guest) {
            Arrival::LetIn(id, oldest) => (id, oldest),
            Arrival::Refused(limit) => {
                if let Some(suppressed) = self
                    .everywhere
                    .notices
                    .may_say(Notice::Trouble, time::now())
                {
                    tracing::warn!(
                        peer,
                        limit,
                        suppressed,
                        "connection refused: the client limit is reached; disconnect a client \
                         first"
                    );
                }
                return;
            }
        };
        self.next_lane
            .set((self.next_lane.get() + 1) % self.lanes.len());
        let newcomer = Newcomer {
            id,
            peer,
            stream: stream.detach(),
        };
        if lane.send(Request::Serve(newcomer)).is_err() {
            tracing::error!("a lane has ended; its connection is dropped");
            places.leave(id);
        }
        if let Some((id, guest)) = oldest {
            if let Some(suppressed) = self
                .everywhere
                .notices
                .may_say(Notice::Trouble, time::now())
            {
                tracing::warn!(
                    peer = guest.peer,
                    suppressed,
                    "closed a connection that was still in its handshake, to make room for a new \
                     one"
                );
            }
            if guest.lane.send(Request::MakeRoom(id)).is_err() {
                places.leave(id);
            }
        }
    }
}
