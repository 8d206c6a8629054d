//! The places of clients at the admin socket. There are few, so whoever only holds one, and lets the daemon wait for its
//! request or for the taking of its answer, loses it to a newcomer: a script that hangs does not lock the administrator out.

use std::{
    io,
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// All places, taken or not.
#[derive(Clone, Debug)]
pub(super) struct Places {
    max: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// In the order of arrival.
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    number: u64,
    stream: UnixStream,
    /// Whether it is the client that is waited for.
    is_idle: bool,
}

/// The place of one client, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    places: Places,
}

impl Places {
    pub(super) fn new(max: usize) -> Places {
        Places {
            max,
            taken: Arc::default(),
        }
    }

    /// A place for the client at `stream`, whose request is waited for: a free one, or that of the client that has been
    /// waited for longest, which is disconnected. `None` if the daemon is at work for all others.
    ///
    /// # Errors
    /// Any error the system reports.
    pub(super) fn enter(&self, stream: &UnixStream) -> io::Result<Option<Place>> {
        let stream = stream.try_clone()?;
        let mut taken = self.taken();
        if taken.clients.len() >= self.max {
            let Some(idle) = taken.clients.iter().position(|client| client.is_idle) else {
                return Ok(None);
            };
            let displaced = taken.clients.remove(idle);
            // It may have disconnected itself.
            let _ = displaced.stream.shutdown(Shutdown::Both);
        }
        let number = taken.next;
        taken.next += 1;
        taken.clients.push(Client {
            number,
            stream,
            is_idle: true,
        });
        Ok(Some(Place {
            number,
            places: self.clone(),
        }))
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The daemon works for the client from now on; or, if `is_idle`, waits for it.
    pub(super) fn set_idle(&self, is_idle: bool) {
        let mut taken = self.places.taken();
        let mut clients = taken.clients.iter_mut();
        if let Some(client) = clients.find(|client| client.number == self.number) {
            client.is_idle = is_idle;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.clients.retain(|client| client.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    struct Visitor {
        place: Option<Place>,
        its: UnixStream,
    }

    fn visit(places: &Places) -> Visitor {
        let (ours, its) = UnixStream::pair().expect("two sockets");
        its.set_nonblocking(true).expect("a socket");
        let place = places.enter(&ours).expect("a descriptor");
        // The thread that serves it has the other descriptor.
        std::mem::forget(ours);
        Visitor { place, its }
    }

    fn is_disconnected(visitor: &mut Visitor) -> bool {
        matches!(visitor.its.read(&mut [0]), Ok(0))
    }

    #[test]
    fn who_is_waited_for_longest_makes_room() {
        let places = Places::new(3);
        let mut visitors: Vec<Visitor> = (0..3).map(|_| visit(&places)).collect();
        visitors[0].place.as_ref().expect("free").set_idle(false);
        let fourth = visit(&places);
        assert!(fourth.place.is_some());
        let gone: Vec<bool> = visitors.iter_mut().map(is_disconnected).collect();
        assert_eq!(gone, [false, true, false]);
        visitors[2].place.as_ref().expect("free").set_idle(false);
        let fourth = fourth.place.expect("a place");
        fourth.set_idle(false);
        assert!(visit(&places).place.is_none(), "all are at work");
        // The one that has lost its place gives none back.
        visitors[1].place = None;
        assert!(visit(&places).place.is_none());
        drop(fourth);
        assert!(visit(&places).place.is_some());
    }
}
