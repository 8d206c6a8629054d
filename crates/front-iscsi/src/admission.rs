//! Admission control: how many connections may exist, and which of them are displaced by new ones.
//!
//! Connections that have not logged in are counted separately from sessions, so that merely connecting does not use
//! up a session's place. When there are too many of them, a new one is still accepted and an old one is closed: hosts
//! that have never logged in go first, among those the connections that have sent nothing, and of equals the oldest.
//! Each host has a share; beyond it, a new connection displaces only the host's own.
//!
//! A session holds its place until it ends. Some places of ended sessions are reserved for their initiators, so that
//! a database that lost its connections can come back. If more sessions have ended than can be reserved for, the
//! longest-lived take precedence: an initiator that keeps logging in and out, under whatever names, cannot displace a
//! database.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use engine::{Duration, Instant};

use crate::{config::Limits, peer::Peer};

/// The maximum number of hosts remembered for having logged in; beyond it, the oldest login is forgotten.
const KNOWN_PEERS_MAX: usize = 1024;

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// Maximum number of sessions.
    pub(crate) sessions: usize,
    /// How many of these places may be reserved for initiators that had a session before.
    pub(crate) reserved: usize,
    /// Maximum number of connections that have not logged in.
    pub(crate) logins: usize,
    /// How many of these one host may have.
    pub(crate) logins_per_peer: usize,
}

impl Places {
    /// The places that a configuration provides.
    pub(crate) fn of(limits: &Limits) -> Places {
        Places {
            sessions: limits.connections_max,
            reserved: limits.reserved.min(limits.connections_max),
            logins: limits.logins_max,
            logins_per_peer: limits.logins_per_peer_max,
        }
    }
}

/// The limit that made a connection leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limit {
    /// [`Places::logins`].
    Logins,
    /// [`Places::logins_per_peer`].
    LoginsPerPeer,
}

/// A connection that must make room for another: its number and the entry it was admitted with.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Displaced<T> {
    pub(crate) id: u64,
    pub(crate) entry: T,
    pub(crate) limit: Limit,
}

/// The rank of a connection before login. The address comes first: only a host on the network path can forge it,
/// whereas names are not secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Standing {
    known_peer: bool,
    known_initiator: bool,
    begun: bool,
}

/// A connection before login; the least is displaced first.
type Seat = (Standing, u64);

struct Guest<T> {
    peer: Peer,
    standing: Standing,
    entry: T,
}

struct Session {
    initiator: String,
    began: Instant,
    /// The total duration of the sessions that held this place before.
    before: Duration,
}

/// Shared by all lanes; used when a connection arrives, logs in or ends, never for an I/O. `T` is whatever is needed
/// to tell a connection to leave.
pub(crate) struct Admission<T>(Mutex<State<T>>);

struct State<T> {
    places: Places,
    last_id: u64,
    guests: HashMap<u64, Guest<T>>,
    seats: BTreeSet<Seat>,
    seats_of: HashMap<Peer, BTreeSet<Seat>>,
    /// Connections that were told to leave but have not ended yet.
    leaving: BTreeSet<u64>,
    /// The sessions, and the number of sessions by initiator.
    sessions: HashMap<u64, Session>,
    sessions_of: HashMap<String, usize>,
    kept: Kept,
    known: Known,
}

impl<T> Admission<T> {
    pub(crate) fn new(places: Places) -> Self {
        Admission(Mutex::new(State {
            places,
            last_id: 0,
            guests: HashMap::new(),
            seats: BTreeSet::new(),
            seats_of: HashMap::new(),
            leaving: BTreeSet::new(),
            sessions: HashMap::new(),
            sessions_of: HashMap::new(),
            kept: Kept::default(),
            known: Known::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the limits. Existing connections keep their places.
    pub(crate) fn set_places(&self, places: Places) {
        let mut state = self.lock();
        state.places = places;
        state.kept.keep_at_most(places.reserved);
    }

    /// Admits a connection. Returns its number, and the connection it displaces, if any.
    pub(crate) fn arrive(&self, from: IpAddr, entry: T) -> (u64, Option<Displaced<T>>) {
        let mut state = self.lock();
        let peer = Peer::of(from);
        let own = state.seats_of.get(&peer);
        let displaced = if own.is_some_and(|own| own.len() >= state.places.logins_per_peer) {
            let first = own.and_then(|own| own.first().copied());
            first.map(|seat| (seat, Limit::LoginsPerPeer))
        } else if state.seats.len() >= state.places.logins {
            let first = state.seats.first().copied();
            first.map(|seat| (seat, Limit::Logins))
        } else {
            None
        };
        let displaced = displaced.and_then(|(seat, limit)| state.displace(seat, limit));
        state.last_id += 1;
        let id = state.last_id;
        let standing = Standing {
            known_peer: state.known.peers.contains_key(&peer),
            known_initiator: false,
            begun: false,
        };
        state.sit(id, peer, standing);
        let guest = Guest {
            peer,
            standing,
            entry,
        };
        state.guests.insert(id, guest);
        (id, displaced)
    }

    /// Displaces a connection, as if one more had arrived.
    pub(crate) fn make_room(&self) -> Option<Displaced<T>> {
        let mut state = self.lock();
        let seat = *state.seats.first()?;
        state.displace(seat, Limit::Logins)
    }

    /// Whether so many displaced connections are still closing that no more should be accepted for now; without this
    /// check their number would be unbounded.
    pub(crate) fn is_crowded(&self) -> bool {
        let state = self.lock();
        state.leaving.len() >= state.places.logins
    }

    /// The connection has started a login as `initiator`.
    pub(crate) fn begin(&self, id: u64, initiator: &str) {
        let mut state = self.lock();
        let known_initiator =
            state.kept.knows(initiator) || state.sessions_of.contains_key(initiator);
        let Some(guest) = state.guests.get_mut(&id) else {
            return;
        };
        let (peer, before) = (guest.peer, guest.standing);
        guest.standing.begun = true;
        guest.standing.known_initiator = known_initiator;
        let now = guest.standing;
        state.rise(id, peer, before);
        state.sit(id, peer, now);
    }

    /// Gives the connection a session's place. False if there is none for this initiator, or if the connection has
    /// been told to leave.
    pub(crate) fn enter(&self, id: u64, initiator: &str, now: Instant) -> bool {
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
        if let Some(guest) = state.stand(id) {
            state.known.add(guest.peer);
        }
        let session = Session {
            initiator: initiator.to_owned(),
            began: now,
            before: kept.unwrap_or_default(),
        };
        state.sessions.insert(id, session);
        *state.sessions_of.entry(initiator.to_owned()).or_default() += 1;
        true
    }

    /// Removes a connection that has ended.
    pub(crate) fn leave(&self, id: u64, now: Instant) {
        let mut state = self.lock();
        if state.leaving.remove(&id) || state.stand(id).is_some() {
            return;
        }
        if let Some(session) = state.sessions.remove(&id) {
            let Session {
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

impl<T> State<T> {
    fn displace(&mut self, seat: Seat, limit: Limit) -> Option<Displaced<T>> {
        let id = seat.1;
        let guest = self.stand(id)?;
        self.leaving.insert(id);
        let entry = guest.entry;
        Some(Displaced { id, entry, limit })
    }

    fn sit(&mut self, id: u64, peer: Peer, standing: Standing) {
        self.seats.insert((standing, id));
        self.seats_of
            .entry(peer)
            .or_default()
            .insert((standing, id));
    }

    fn rise(&mut self, id: u64, peer: Peer, standing: Standing) {
        self.seats.remove(&(standing, id));
        if let Some(own) = self.seats_of.get_mut(&peer) {
            own.remove(&(standing, id));
            if own.is_empty() {
                self.seats_of.remove(&peer);
            }
        }
    }

    /// Removes a connection from those before login.
    fn stand(&mut self, id: u64) -> Option<Guest<T>> {
        let guest = self.guests.remove(&id)?;
        self.rise(id, guest.peer, guest.standing);
        Some(guest)
    }
}

/// Places reserved for initiators whose sessions have ended.
#[derive(Default)]
struct Kept {
    places: HashMap<String, KeptFor>,
    /// The least is forgotten first.
    by_merit: BTreeMap<Merit, String>,
    total: usize,
    ended: u64,
}

struct KeptFor {
    places: usize,
    merit: Merit,
}

/// How long an initiator's sessions lasted; of equals, the one that ended last ranks higher.
type Merit = (Duration, u64);

impl Kept {
    fn knows(&self, initiator: &str) -> bool {
        self.places.contains_key(initiator)
    }

    /// Reserves a place for `initiator`, whose session lasted `lasted`. Beyond `max` places, the one with the least
    /// merit is dropped.
    fn add(&mut self, initiator: String, lasted: Duration, max: usize) {
        self.ended += 1;
        self.total += 1;
        let mut merit = (lasted, self.ended);
        let mut places = 1;
        if let Some(before) = self.places.remove(&initiator) {
            self.by_merit.remove(&before.merit);
            merit.0 = merit.0.max(before.merit.0);
            places += before.places;
        }
        self.by_merit.insert(merit, initiator.clone());
        self.places.insert(initiator, KeptFor { places, merit });
        self.keep_at_most(max);
    }

    fn keep_at_most(&mut self, max: usize) {
        while self.total > max {
            let Some(least) = self.by_merit.values().next().cloned() else {
                return;
            };
            self.take(&least);
        }
    }

    /// Takes a place reserved for `initiator`, if any, and returns how long its sessions lasted.
    fn take(&mut self, initiator: &str) -> Option<Duration> {
        let kept = self.places.get_mut(initiator)?;
        let merit = kept.merit;
        kept.places -= 1;
        self.total -= 1;
        if kept.places == 0 {
            self.by_merit.remove(&merit);
            self.places.remove(initiator);
        }
        Some(merit.0)
    }
}

/// Hosts that have logged in before.
#[derive(Default)]
struct Known {
    peers: HashMap<Peer, u64>,
    by_age: BTreeMap<u64, Peer>,
    logins: u64,
}

impl Known {
    fn add(&mut self, peer: Peer) {
        self.logins += 1;
        if let Some(age) = self.peers.insert(peer, self.logins) {
            self.by_age.remove(&age);
        }
        self.by_age.insert(self.logins, peer);
        if self.peers.len() > KNOWN_PEERS_MAX {
            if let Some((_, oldest)) = self.by_age.pop_first() {
                self.peers.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests;
