//! How many connections may exist. Connections in their handshake are counted separately, so that lingering in the
//! handshake keeps no client out: when their places are all taken, the oldest makes room for a new one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::config::Limits;

/// Shared by all lanes; used when connections arrive, enter transmission, and end, never for an I/O. `T` is whatever
/// is needed to tell a connection to leave.
pub(crate) struct Places<T> {
    limits: Limits,
    state: Mutex<State<T>>,
}

struct State<T> {
    last_id: u64,
    /// Connections in their handshake, oldest first.
    handshakes: BTreeMap<u64, T>,
    /// Connections told to leave during their handshake that have not ended yet.
    leaving: BTreeSet<u64>,
    /// Connections in transmission, or waiting for their last I/O.
    clients: BTreeMap<u64, T>,
}

/// The outcome of a connection's arrival.
pub(crate) enum Arrival<T> {
    /// Admitted under this number. The other connection, if any, must leave.
    LetIn(u64, Option<(u64, T)>),
    /// The server already has its maximum number of clients, which is given.
    Refused(usize),
}

impl<T> Places<T> {
    pub(crate) fn new(limits: Limits) -> Places<T> {
        let state = State {
            last_id: 0,
            handshakes: BTreeMap::new(),
            leaving: BTreeSet::new(),
            clients: BTreeMap::new(),
        };
        Places {
            limits,
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a new connection, or refuses it.
    pub(crate) fn arrive(&self, entry: T) -> Arrival<T> {
        let mut state = self.lock();
        if state.clients.len() >= self.limits.connections_max {
            return Arrival::Refused(self.limits.connections_max);
        }
        let oldest = match state.handshakes.len() >= self.limits.handshakes_max {
            true => state.handshakes.pop_first(),
            false => None,
        };
        if let Some((id, _)) = &oldest {
            state.leaving.insert(*id);
        }
        state.last_id += 1;
        let id = state.last_id;
        state.handshakes.insert(id, entry);
        Arrival::LetIn(id, oldest)
    }

    /// Whether so many displaced connections are still closing that no more should be accepted for now; without this
    /// check their number would be unbounded.
    pub(crate) fn is_crowded(&self) -> bool {
        self.lock().leaving.len() >= self.limits.handshakes_max
    }

    /// Counts the connection as a client after its handshake, or returns why it may not continue.
    pub(crate) fn enter(&self, id: u64) -> Result<(), &'static str> {
        let mut state = self.lock();
        if state.clients.len() >= self.limits.connections_max {
            return Err("the limit on clients is reached; disconnect a client first");
        }
        let Some(entry) = state.handshakes.remove(&id) else {
            return Err("its handshake took so long that another client was given its place");
        };
        state.clients.insert(id, entry);
        Ok(())
    }

    /// What `name` says of each client.
    pub(crate) fn clients<N>(&self, name: impl FnMut(&T) -> N) -> Vec<N> {
        self.lock().clients.values().map(name).collect()
    }

    /// Removes a connection that has ended.
    pub(crate) fn leave(&self, id: u64) {
        let mut state = self.lock();
        state.handshakes.remove(&id);
        state.leaving.remove(&id);
        state.clients.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places<()> {
        Places::new(Limits {
            connections_max: 2,
            handshakes_max: 2,
            ..Limits::default()
        })
    }

    fn arrive(places: &Places<()>) -> Option<(u64, Option<u64>)> {
        match places.arrive(()) {
            Arrival::LetIn(id, oldest) => Some((id, oldest.map(|(id, ())| id))),
            Arrival::Refused(_) => None,
        }
    }

    #[test]
    fn the_oldest_handshake_makes_room_and_no_client_does() {
        let places = places();
        assert_eq!(arrive(&places), Some((1, None)));
        assert_eq!(places.enter(1), Ok(()));
        assert_eq!(arrive(&places), Some((2, None)));
        assert_eq!(arrive(&places), Some((3, None)));
        assert_eq!(arrive(&places), Some((4, Some(2))));
        assert!(
            places
                .enter(2)
                .is_err_and(|why| why.contains("given its place"))
        );
        assert_eq!(arrive(&places), Some((5, Some(3))));
        assert!(places.is_crowded());
        places.leave(2);
        assert!(!places.is_crowded());
    }

    #[test]
    fn clients_have_their_number_whoever_began_before() {
        let places = places();
        assert_eq!(arrive(&places), Some((1, None)));
        assert_eq!(places.enter(1), Ok(()));
        assert_eq!(arrive(&places), Some((2, None)));
        assert_eq!(arrive(&places), Some((3, None)));
        assert_eq!(places.enter(3), Ok(()));
        assert_eq!(places.clients(|()| ()).len(), 2);
        assert!(
            places
                .enter(2)
                .is_err_and(|why| why.contains("limit on clients"))
        );
        assert_eq!(arrive(&places), None);
        places.leave(1);
        places.leave(3);
        assert!(
            places.clients(|()| ()).is_empty(),
            "a handshake is no client"
        );
        assert_eq!(places.enter(2), Ok(()), "there is a place now");
    }
}
