//! The accept side of a front: spreads connections over the lanes in turn, and displaces old ones to make room for new
//! ones ([`Admission`]).

use std::{cell::Cell, fmt, io::ErrorKind, pin::pin, rc::Rc};

use engine::{
    Duration, Instant,
    cross::Sender,
    net::{DetachedStream, TcpStream},
    sync::Notify,
    task::{self, Either},
    time,
};

use crate::{
    admission::{Admission, Displaced, Limit},
    lanes::FrontLanes,
    listener::Listener,
    notices::Notices,
    peer::Peer,
};

/// How long to wait before accepting again after an accept failed.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);
/// How long to wait before accepting again while too many displaced connections are still closing.
const PAUSE_WHEN_CROWDED: Duration = Duration::from_millis(2);

/// In so much time, [`DISPLACED_MAX`] connections are displaced at most: with hundreds of places, whoever goes on at once
/// is far from its turn to leave then, however many connect, and those who connect get a bounded part of a CPU.
const DISPLACE_INTERVAL: Duration = Duration::from_millis(10);
/// 16,000 a second.
const DISPLACED_MAX: u32 = 160;

/// What an [`Acceptor`] has to know of its front.
pub trait Accepts: 'static {
    /// A request to one of its lanes.
    type Request: Send + 'static;
    /// Where a connection comes from and where it arrived; its text names the peer in the log.
    type Ends: Clone + fmt::Display;
    /// What a connection that has no session yet is said to be.
    const BEFORE_SESSION: &'static str;

    /// Who is let in.
    fn admission(&self) -> &Admission<Arrival<Self>>;

    /// The ends of a connection; `None` if its peer is gone already.
    fn ends(listener: &Listener, stream: &TcpStream) -> Option<(Peer, Self::Ends)>;

    /// Has a lane serve a connection.
    fn serve(newcomer: Newcomer<Self::Ends>) -> Self::Request;

    /// Has a lane close the connection `id`, which has no session yet, to make room for another.
    fn make_room(id: u64) -> Self::Request;

    /// How users know the limit that was reached.
    fn limit(&self, limit: Limit) -> String;

    /// If not `None`, connections are refused at once while so many sessions exist.
    fn sessions_max(&self) -> Option<usize>;
}

/// A connection before its session: where to send the request that closes it.
pub struct Arrival<F: Accepts + ?Sized> {
    /// Its ends.
    pub ends: F::Ends,
    lane: Sender<F::Request>,
}

/// A connection that has been admitted.
pub struct Newcomer<E> {
    /// Its number.
    pub id: u64,
    /// Its ends.
    pub ends: E,
    /// Its socket.
    pub stream: DetachedStream,
}

/// A kind of log line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Notice {
    NotAccepted,
    Displaced,
    Full,
}

/// Accepts connections on any number of listeners.
pub struct Acceptor<F: Accepts> {
    front: F,
    lanes: FrontLanes<F::Request>,
    next_lane: Cell<usize>,
    pace: Cell<Displacements>,
    notices: Notices<Notice>,
}

/// How many connections were displaced lately.
#[derive(Clone, Copy, Default)]
struct Displacements {
    began: Instant,
    displaced: u32,
}

impl Displacements {
    /// Counts one more. Returns how long to wait until there may be another, if at all.
    fn note(&mut self, now: Instant) -> Option<Duration> {
        if now - self.began >= DISPLACE_INTERVAL {
            *self = Displacements {
                began: now,
                displaced: 0,
            };
        }
        self.displaced += 1;
        let left = DISPLACE_INTERVAL - (now - self.began);
        (self.displaced >= DISPLACED_MAX).then_some(left)
    }
}

impl<F: Accepts> Acceptor<F> {
    /// An acceptor for `front`, which serves on `lanes`.
    pub fn new(front: F, lanes: FrontLanes<F::Request>) -> Rc<Acceptor<F>> {
        Rc::new(Acceptor {
            front,
            lanes,
            next_lane: Cell::new(0),
            pace: Cell::default(),
            notices: Notices::default(),
        })
    }

    /// Accepts connections until told to stop.
    pub fn accept(
        self: Rc<Self>,
        listener: Listener,
        stop: Rc<Notify>,
    ) -> impl Future<Output = ()> {
        // Its task may begin after it was told.
        let stopped = stop.notified_from_now();
        self.accept_until(listener, stopped)
    }

    async fn accept_until(self: Rc<Self>, listener: Listener, stopped: impl Future<Output = ()>) {
        let admission = self.front.admission();
        let mut stopped = pin!(stopped);
        loop {
            match task::either(stopped.as_mut(), listener.accept()).await {
                Either::One(()) => return,
                Either::Other(Ok(stream)) => {
                    if let Some(pause) = self.let_in(&listener, stream) {
                        let pause = time::sleep(pause);
                        if let Either::One(()) = task::either(stopped.as_mut(), pause).await {
                            return;
                        }
                    }
                }
                // The peer closed the connection before it was accepted.
                Either::Other(Err(error)) if error.kind() == ErrorKind::ConnectionAborted => {}
                Either::Other(Err(error)) => {
                    // Most likely out of file descriptors or memory: displace a connection to free some.
                    if let Some(suppressed) = self.notices.may_say(Notice::NotAccepted, time::now())
                    {
                        tracing::warn!(%error, suppressed, "a connection could not be accepted");
                    }
                    if let Some(displaced) = admission.make_room() {
                        self.displace(displaced);
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

    /// Has a lane serve a connection. Returns how long to wait before the next, if at all.
    fn let_in(&self, listener: &Listener, stream: TcpStream) -> Option<Duration> {
        let (peer, ends) = F::ends(listener, &stream)?;
        let admission = self.front.admission();
        if let Some(limit) = self.front.sessions_max().filter(|_| admission.is_full()) {
            if let Some(suppressed) = self.notices.may_say(Notice::Full, time::now()) {
                tracing::warn!(
                    peer = %ends,
                    limit,
                    suppressed,
                    "connection refused: the client limit is reached; disconnect a client first"
                );
            }
            return None;
        }
        let lane = self.lanes.lane(self.next_lane.get());
        self.next_lane
            .set((self.next_lane.get() + 1) % self.lanes.count());
        let arrival = Arrival {
            ends: ends.clone(),
            lane: lane.clone(),
        };
        let (id, displaced) = admission.arrive(peer, arrival);
        let stream = stream.detach();
        let request = F::serve(Newcomer { id, ends, stream });
        if lane.send(request).is_err() {
            tracing::error!("a lane has ended; its connection is dropped");
            admission.leave(id, time::now());
        }
        self.displace(displaced?);
        let mut pace = self.pace.get();
        let pause = pace.note(time::now());
        self.pace.set(pace);
        pause
    }

    /// Has a displaced connection's lane close it.
    fn displace(&self, displaced: Displaced<Arrival<F>>) {
        let Displaced { id, entry, limit } = displaced;
        if let Some(suppressed) = self.notices.may_say(Notice::Displaced, time::now()) {
            tracing::warn!(
                peer = %entry.ends,
                limit = self.front.limit(limit),
                suppressed,
                "closed a connection that {}, to make room for a new one",
                F::BEFORE_SESSION
            );
        }
        if entry.lane.send(F::make_room(id)).is_err() {
            self.front.admission().leave(id, time::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_displaces_so_many_in_an_interval_and_no_more() {
        let mut pace = Displacements::default();
        let mut now = Instant::from_ns(5_000_000_000);
        for _ in 0..10 {
            let began = now;
            for _ in 1..DISPLACED_MAX {
                assert_eq!(pace.note(now), None);
            }
            let pause = pace.note(now).expect("it is enough");
            assert_eq!(pause, DISPLACE_INTERVAL);
            now = began + pause;
        }
        // Whoever comes seldom never waits.
        for _ in 0..1000 {
            now += DISPLACE_INTERVAL;
            assert_eq!(pace.note(now), None);
        }
    }
}
