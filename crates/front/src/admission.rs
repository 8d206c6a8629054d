//! Admission control: how many connections may exist, and which of them are displaced by new ones.
//!
//! Connections that have not logged in are counted separately from sessions, so that merely connecting does not use
//! up a session's place. When there are too many of them, a new one is still accepted and an old one is closed: hosts
//! that have never logged in or hold more than their part go first, and among those the host with the most
//! connections. Each host has a share; beyond it, a new connection displaces only the host's own. Which of a host's, or of
//! equal hosts', leaves is decided by [how soon each goes on](seats): a host may hold the right initiator and a crowd that
//! knows all but its secret.
//!
//! A session holds its place until it ends. Some places of ended sessions are reserved for their initiators, so that
//! a database that lost its connections can come back. If more sessions have ended than can be reserved for, the
//! longest-lived take precedence: an initiator that keeps logging in and out, under whatever names, cannot displace a
//! database.

mod kept;
mod known;
mod seats;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use engine::{Duration, Instant};

use crate::peer::Peer;
use kept::Kept;
use known::KnownPeers;
pub use seats::Progress;
use seats::{Seat, Seats, Standing};

/// A host that has logged in before comes before others as long as it holds no more than this part of the places.
const KNOWN_PART: usize = 8;
/// But it may always have so many: an initiator asks for the targets while it logs in.
const KNOWN_LEAST: usize = 2;

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug)]
pub struct PlaceLimits {
    /// Maximum number of sessions.
    pub sessions: usize,
    /// How many of these places may be reserved for initiators that had a session before.
    pub reserved: usize,
    /// Maximum number of connections that have not logged in.
    pub logins: usize,
    /// How many of these one host may have.
    pub logins_per_peer: usize,
}

/// The limit that made a connection leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// [`PlaceLimits::logins`].
    Logins,
    /// [`PlaceLimits::logins_per_peer`].
    LoginsPerPeer,
}

/// A connection that must make room for another.
#[derive(PartialEq, Eq, Debug)]
pub struct Displaced<T> {
    /// Its number.
    pub id: u64,
    /// What it was admitted with.
    pub entry: T,
    /// The limit that was reached.
    pub limit: Limit,
}

/// Hosts with equally many connections before login; the least lose one first. The address comes first: only a host on
/// the network path can forge it, whereas names are not secret.
type Rank = (bool, Reverse<usize>);

/// A host's connections before login.
#[derive(Default)]
struct Host {
    seats: Seats,
    /// Where it is among all hosts, and with which of its connections.
    place: Option<(Rank, Seat)>,
}

struct Guest<T> {
    peer: Peer,
    standing: Standing,
    seat: Seat,
    entry: T,
}

struct AdmittedSession<T> {
    entry: T,
    initiator: String,
    began: Instant,
    /// The total duration of the sessions that held this place before.
    before: Duration,
}

/// Shared by all lanes; used when a connection arrives, logs in or ends, never for an I/O. `T` is whatever is needed
/// to tell a connection to leave.
pub struct Admission<T>(Mutex<AdmissionState<T>>);

struct AdmissionState<T> {
    places: PlaceLimits,
    last_id: u64,
    guests: HashMap<u64, Guest<T>>,
    /// Of each host, the connection that leaves next.
    hosts: BTreeMap<Rank, Seats>,
    seats_of: HashMap<Peer, Host>,
    /// Counts what places depend on.
    events: u64,
    chance: u64,
    /// Connections that were told to leave but have not ended yet.
    leaving: BTreeSet<u64>,
    /// The sessions, and the number of sessions by initiator.
    sessions: HashMap<u64, AdmittedSession<T>>,
    sessions_of: HashMap<String, usize>,
    kept: Kept,
    known: KnownPeers,
}

impl<T> Admission<T> {
    /// Nobody is there yet.
    pub fn new(places: PlaceLimits) -> Self {
        Admission(Mutex::new(AdmissionState {
            places,
            last_id: 0,
            guests: HashMap::new(),
            hosts: BTreeMap::new(),
            seats_of: HashMap::new(),
            events: 0,
            chance: 1,
            leaving: BTreeSet::new(),
            sessions: HashMap::new(),
            sessions_of: HashMap::new(),
            kept: Kept::default(),
            known: KnownPeers::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, AdmissionState<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the limits. Existing connections keep their places.
    pub fn set_places(&self, places: PlaceLimits) {
        let mut state = self.lock();
        state.places = places;
        state.kept.keep_at_most(places.reserved);
    }

    /// Admits a connection. Returns its number, and the connection it displaces, if any.
    pub fn arrive(&self, peer: Peer, entry: T) -> (u64, Option<Displaced<T>>) {
        let mut state = self.lock();
        let chance = state.chance();
        let own = state.seats_of.get(&peer).map(|host| &host.seats);
        let displaced = if own.is_some_and(|own| own.len() >= state.places.logins_per_peer) {
            let seat = own.and_then(|own| own.choose(chance));
            seat.map(|seat| (seat, Limit::LoginsPerPeer))
        } else if state.guests.len() >= state.places.logins {
            state.choose().map(|seat| (seat, Limit::Logins))
        } else {
            None
        };
        let displaced = displaced.and_then(|(seat, limit)| state.displace(seat.id, limit));
        state.last_id += 1;
        let id = state.last_id;
        let standing = Standing::ARRIVED;
        let seat = state.sit(id, peer, standing);
        let guest = Guest {
            peer,
            standing,
            seat,
            entry,
        };
        state.guests.insert(id, guest);
        (id, displaced)
    }

    /// Displaces a connection, as if one more had arrived.
    pub fn make_room(&self) -> Option<Displaced<T>> {
        let mut state = self.lock();
        let seat = state.choose()?;
        state.displace(seat.id, Limit::Logins)
    }

    /// Whether so many displaced connections are still closing that no more should be accepted for now; without this
    /// check their number would be unbounded.
    pub fn is_crowded(&self) -> bool {
        let state = self.lock();
        state.leaving.len() >= state.places.logins
    }

    /// Whether every session's place is taken, so that nobody can [enter](Self::enter) before one ends.
    pub fn is_full(&self) -> bool {
        let state = self.lock();
        state.sessions.len() >= state.places.sessions
    }

    /// The peer has sent another whole message of its login or handshake.
    pub fn step(&self, id: u64) {
        self.lock().restand(id, Standing::step);
    }

    /// The connection has started a login as `initiator`.
    pub fn begin(&self, id: u64, initiator: &str) {
        let mut state = self.lock();
        let known = state.kept.knows(initiator) || state.sessions_of.contains_key(initiator);
        state.restand(id, |standing| standing.known_initiator = known);
    }

    /// The connection has come so far.
    pub fn progress(&self, id: u64, progress: Progress) {
        let mut state = self.lock();
        state.restand(id, |standing| standing.progress = progress);
    }

    /// Whether the connection waits for us, or again for its peer.
    pub fn awaits_us(&self, id: u64, awaits_us: bool) {
        let mut state = self.lock();
        state.restand(id, |standing| standing.set_awaits_us(awaits_us));
    }

    /// Gives the connection a session's place. False if there is none for this initiator, or if the connection has
    /// been told to leave.
    pub fn enter(&self, id: u64, initiator: &str, now: Instant) -> bool {
        let mut state = self.lock();
        if !state.guests.contains_key(&id) {
            return false;
        }
        // Saturating: a configuration change may have left fewer places than are taken.
        let taken = state.sessions.len() + state.kept.total;
        let free = state.places.sessions.saturating_sub(taken);
        let kept = state.kept.take(initiator);
        if kept.is_none() && free == 0 {
            return false;
        }
        let Some(guest) = state.stand(id) else {
            return false;
        };
        state.known.add(guest.peer);
        let session = AdmittedSession {
            entry: guest.entry,
            initiator: initiator.to_owned(),
            began: now,
            before: kept.unwrap_or_default(),
        };
        state.sessions.insert(id, session);
        *state.sessions_of.entry(initiator.to_owned()).or_default() += 1;
        true
    }

    /// What `name` says of each session.
    pub fn sessions<N>(&self, mut name: impl FnMut(&T) -> N) -> Vec<N> {
        let state = self.lock();
        state.sessions.values().map(|it| name(&it.entry)).collect()
    }

    /// Removes a connection that has ended.
    pub fn leave(&self, id: u64, now: Instant) {
        let mut state = self.lock();
        if state.leaving.remove(&id) || state.stand(id).is_some() {
            return;
        }
        if let Some(session) = state.sessions.remove(&id) {
            let AdmittedSession {
                entry: _,
                initiator,
                began,
                before,
            } = session;
            if let Some(count) = state.sessions_of.get_mut(&initiator) {
                *count -= 1;
                if *count == 0 {
                    state.sessions_of.remove(&initiator);
                }
            }
            let reserved = state.places.reserved;
            state.kept.add(initiator, now - began + before, reserved);
        }
    }
}

impl<T> AdmissionState<T> {
    /// A number that has nothing to do with who arrives when (xorshift64, Marsaglia 2003).
    fn chance(&mut self) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance
    }

    /// The connection that leaves next if there is no room for more.
    fn choose(&mut self) -> Option<Seat> {
        let (host, seat) = (self.chance(), self.chance());
        let (_, hosts) = self.hosts.first_key_value()?;
        let peer = hosts.choose(host)?.peer;
        self.seats_of.get(&peer)?.seats.choose(seat)
    }

    fn displace(&mut self, id: u64, limit: Limit) -> Option<Displaced<T>> {
        let guest = self.stand(id)?;
        self.leaving.insert(id);
        let entry = guest.entry;
        Some(Displaced { id, entry, limit })
    }

    /// Changes the standing of a connection before login.
    fn restand(&mut self, id: u64, change: impl FnOnce(&mut Standing)) {
        let Some(guest) = self.guests.get_mut(&id) else {
            return;
        };
        let before = guest.standing;
        change(&mut guest.standing);
        let (peer, now, seat) = (guest.peer, guest.standing, guest.seat);
        if now == before {
            return;
        }
        self.change_seats(peer, |own| own.remove(seat));
        let seat = self.sit(id, peer, now);
        self.guests.get_mut(&id).expect("it is here").seat = seat;
    }

    fn sit(&mut self, id: u64, peer: Peer, standing: Standing) -> Seat {
        self.events += 1;
        let seat = Seat::new(standing, self.events, id, peer);
        self.change_seats(peer, |own| own.insert(seat));
        seat
    }

    /// Changes the connections of a host, and with them its rank.
    fn change_seats(&mut self, peer: Peer, change: impl FnOnce(&mut Seats)) {
        let host = self.seats_of.entry(peer).or_default();
        if let Some((rank, seat)) = host.place.take() {
            let equals = self.hosts.get_mut(&rank).expect("it is among them");
            equals.remove(seat);
            if equals.is_empty() {
                self.hosts.remove(&rank);
            }
        }
        change(&mut host.seats);
        let Some(seat) = host.seats.first() else {
            self.seats_of.remove(&peer);
            return;
        };
        let part = KNOWN_LEAST.max(self.places.logins / KNOWN_PART);
        let comes_first = host.seats.len() <= part && self.known.knows(peer);
        let rank = (comes_first, Reverse(host.seats.len()));
        host.place = Some((rank, seat));
        self.hosts.entry(rank).or_default().insert(seat);
    }

    /// Removes a connection from those before login.
    fn stand(&mut self, id: u64) -> Option<Guest<T>> {
        let guest = self.guests.remove(&id)?;
        self.change_seats(guest.peer, |own| own.remove(guest.seat));
        Some(guest)
    }
}

#[cfg(test)]
mod tests;
