//! Admission control: how many connections may exist, and which of them are displaced by new ones.
//!
//! Connections that have not logged in are counted separately from sessions, so that merely connecting does not use
//! up a session's place. When there are too many of them, a new one is still accepted and an old one is closed: hosts
//! that have never logged in go first, among those the host with the most connections, of these the one that is least
//! far in its [`Progress`], and of equals the oldest. Each host has a share; beyond it, a new connection displaces only
//! the host's own.
//!
//! A session holds its place until it ends. Some places of ended sessions are reserved for their initiators, so that
//! a database that lost its connections can come back. If more sessions have ended than can be reserved for, the
//! longest-lived take precedence: an initiator that keeps logging in and out, under whatever names, cannot displace a
//! database.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
};

use engine::{Duration, Instant};

use crate::peer::Peer;

/// The maximum number of hosts remembered for having logged in; beyond it, the oldest login is forgotten.
const KNOWN_PEERS_MAX: usize = 1024;

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug)]
pub struct Places {
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
    /// [`Places::logins`].
    Logins,
    /// [`Places::logins_per_peer`].
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

/// How far a connection before login has come. What costs the peer more, or us, is worth more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Progress {
    /// It has failed to prove itself, and waits for the answer.
    Failed,
    /// It has sent nothing.
    Silent,
    /// It has begun its login or handshake.
    Begun,
    /// We have signed something for it (TLS), which takes us much time.
    Signed,
    /// It has proved who it is, and not asked for anything yet.
    Proven,
}

/// The rank of a connection before login. The address comes first: only a host on the network path can forge it,
/// whereas names are not secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Standing {
    known_peer: bool,
    known_initiator: bool,
    progress: Progress,
}

/// A connection before login; of a host, the least is displaced first.
type Seat = (Standing, u64);

/// A host with connections before login; the least is the first to lose one. It is ranked by its least connection.
type Rank = (bool, Reverse<usize>, Seat, Peer);

struct Guest<T> {
    peer: Peer,
    standing: Standing,
    entry: T,
}

struct Session<T> {
    entry: T,
    initiator: String,
    began: Instant,
    /// The total duration of the sessions that held this place before.
    before: Duration,
}

/// Shared by all lanes; used when a connection arrives, logs in or ends, never for an I/O. `T` is whatever is needed
/// to tell a connection to leave.
pub struct Admission<T>(Mutex<State<T>>);

struct State<T> {
    places: Places,
    last_id: u64,
    guests: HashMap<u64, Guest<T>>,
    hosts: BTreeSet<Rank>,
    seats_of: HashMap<Peer, BTreeSet<Seat>>,
    /// Connections that were told to leave but have not ended yet.
    leaving: BTreeSet<u64>,
    /// The sessions, and the number of sessions by initiator.
    sessions: HashMap<u64, Session<T>>,
    sessions_of: HashMap<String, usize>,
    kept: Kept,
    known: Known,
}

impl<T> Admission<T> {
    /// Nobody is there yet.
    pub fn new(places: Places) -> Self {
        Admission(Mutex::new(State {
            places,
            last_id: 0,
            guests: HashMap::new(),
            hosts: BTreeSet::new(),
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
    pub fn set_places(&self, places: Places) {
        let mut state = self.lock();
        state.places = places;
        state.kept.keep_at_most(places.reserved);
    }

    /// Admits a connection. Returns its number, and the connection it displaces, if any.
    pub fn arrive(&self, peer: Peer, entry: T) -> (u64, Option<Displaced<T>>) {
        let mut state = self.lock();
        let own = state.seats_of.get(&peer);
        let displaced = if own.is_some_and(|own| own.len() >= state.places.logins_per_peer) {
            let first = own.and_then(|own| own.first().copied());
            first.map(|seat| (seat, Limit::LoginsPerPeer))
        } else if state.guests.len() >= state.places.logins {
            let first = state.hosts.first();
            first.map(|(_, _, seat, _)| (*seat, Limit::Logins))
        } else {
            None
        };
        let displaced = displaced.and_then(|(seat, limit)| state.displace(seat, limit));
        state.last_id += 1;
        let id = state.last_id;
        let standing = Standing {
            known_peer: state.known.peers.contains_key(&peer),
            known_initiator: false,
            progress: Progress::Silent,
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
    pub fn make_room(&self) -> Option<Displaced<T>> {
        let mut state = self.lock();
        let (_, _, seat, _) = *state.hosts.first()?;
        state.displace(seat, Limit::Logins)
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

    /// The connection has started a login as `initiator`.
    pub fn begin(&self, id: u64, initiator: &str) {
        let mut state = self.lock();
        let known = state.kept.knows(initiator) || state.sessions_of.contains_key(initiator);
        state.restand(id, |standing| {
            standing.known_initiator = known;
            standing.progress = Progress::Begun;
        });
    }

    /// The connection has come so far.
    pub fn progress(&self, id: u64, progress: Progress) {
        let mut state = self.lock();
        state.restand(id, |standing| standing.progress = progress);
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
        let session = Session {
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
            let Session {
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

impl<T> State<T> {
    fn displace(&mut self, seat: Seat, limit: Limit) -> Option<Displaced<T>> {
        let id = seat.1;
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
        let (peer, before) = (guest.peer, guest.standing);
        change(&mut guest.standing);
        let now = guest.standing;
        self.rise(id, peer, before);
        self.sit(id, peer, now);
    }

    fn sit(&mut self, id: u64, peer: Peer, standing: Standing) {
        self.change_seats(peer, |own| own.insert((standing, id)));
    }

    fn rise(&mut self, id: u64, peer: Peer, standing: Standing) {
        self.change_seats(peer, |own| own.remove(&(standing, id)));
    }

    /// Changes the connections of a host, and with them its rank.
    fn change_seats(&mut self, peer: Peer, change: impl FnOnce(&mut BTreeSet<Seat>) -> bool) {
        let own = self.seats_of.entry(peer).or_default();
        if let Some(rank) = rank(peer, own) {
            self.hosts.remove(&rank);
        }
        let is_changed = change(own);
        debug_assert!(is_changed, "a connection has one seat");
        match rank(peer, own) {
            Some(rank) => drop(self.hosts.insert(rank)),
            None => drop(self.seats_of.remove(&peer)),
        }
    }

    /// Removes a connection from those before login.
    fn stand(&mut self, id: u64) -> Option<Guest<T>> {
        let guest = self.guests.remove(&id)?;
        self.rise(id, guest.peer, guest.standing);
        Some(guest)
    }
}

fn rank(peer: Peer, own: &BTreeSet<Seat>) -> Option<Rank> {
    let first = *own.first()?;
    let (standing, _) = first;
    Some((standing.known_peer, Reverse(own.len()), first, peer))
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
