//! How many connections there may be. Those in their handshake have places of their own, so that who stays in it
//! keeps no client out: when these are taken, the oldest of them makes room for a new one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::config::Limits;

/// Shared by all lanes; touched when connections come, begin their transmission and end, never for an I/O. `T` is what
/// it takes to tell a connection that it has to leave.
pub(crate) struct Places<T> {
    limits: Limits,
    state: Mutex<State<T>>,
}

struct State<T> {
    last_id: u64,
    /// In their handshake, the oldest first.
    handshakes: BTreeMap<u64, T>,
    /// Told to leave during their handshake, and not gone yet.
    leaving: BTreeSet<u64>,
    /// In transmission, or at the end of their I/O.
    clients: BTreeSet<u64>,
}

/// What becomes of a connection that has come.
pub(crate) enum Arrival<T> {
    /// It is let in under this number. The other one has to leave.
    LetIn(u64, Option<(u64, T)>),
    /// There are as many clients as there may be: so many.
    Refused(usize),
}

impl<T> Places<T> {
    pub(crate) fn new(limits: Limits) -> Places<T> {
        let state = State {
            last_id: 0,
            handshakes: BTreeMap::new(),
            leaving: BTreeSet::new(),
            clients: BTreeSet::new(),
        };
        Places {
            limits,
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection has come.
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

    /// Whether as many have been told to leave as have room and are not gone yet: whoever lets connections in waits, or
    /// the number of those that leave would have no bound.
    pub(crate) fn is_crowded(&self) -> bool {
        self.lock().leaving.len() >= self.limits.handshakes_max
    }

    /// Its handshake is over. Otherwise why it may not go on.
    pub(crate) fn enter(&self, id: u64) -> Result<(), &'static str> {
        let mut state = self.lock();
        if state.clients.len() >= self.limits.connections_max {
            return Err("there are as many clients as there may be; end some of them");
        }
        if state.handshakes.remove(&id).is_none() {
            return Err("its handshake took so long that it had to make room for another one");
        }
        state.clients.insert(id);
        Ok(())
    }

    /// It is gone.
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
        assert!(places.enter(2).is_err_and(|why| why.contains("make room")));
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
        assert!(
            places
                .enter(2)
                .is_err_and(|why| why.contains("as many clients"))
        );
        assert_eq!(arrive(&places), None);
        places.leave(1);
        assert_eq!(places.enter(2), Ok(()), "there is a place now");
    }
}
