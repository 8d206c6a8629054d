//! The places of clients at the admin socket. There are few, so whoever only holds one, and lets the daemon wait for its
//! request or for the taking of its answer, loses it to a newcomer: a script that hangs does not lock the administrator out.

use std::{
    io,
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::net::{SendFlags, send};

/// How long a client is waited for in any case: its request may be on its way.
const PATIENCE: Duration = Duration::from_millis(500);

/// All places, taken or not.
#[derive(Clone, Debug)]
pub(super) struct ClientPlaces {
    max: usize,
    taken: Arc<Mutex<TakenPlaces>>,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    next: u64,
    /// In the order of arrival.
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    number: u64,
    stream: UnixStream,
    /// Since when it is the client that is waited for; `None`: the daemon is at work for it.
    idle_since: Option<Instant>,
}

/// The place of one client, until it is dropped.
#[derive(Debug)]
pub(super) struct ClientPlace {
    number: u64,
    places: ClientPlaces,
}

impl ClientPlaces {
    pub(super) fn new(max: usize) -> ClientPlaces {
        ClientPlaces {
            max,
            taken: Arc::default(),
        }
    }

    /// A place for the client at `stream`, whose request is waited for from `now` on: a free one, or that of a client that
    /// is waited for for too long, which is sent `refusal` and disconnected. `None` if there is none.
    ///
    /// # Errors
    /// Any error the system reports.
    pub(super) fn enter(
        &self,
        stream: &UnixStream,
        now: Instant,
        refusal: &[u8],
    ) -> io::Result<Option<ClientPlace>> {
        let stream = stream.try_clone()?;
        let mut taken = self.taken();
        if taken.clients.len() >= self.max {
            let is_late = |client: &Client| {
                let since = client.idle_since;
                since.is_some_and(|since| now.saturating_duration_since(since) >= PATIENCE)
            };
            let Some(late) = taken.clients.iter().position(is_late) else {
                return Ok(None);
            };
            let displaced = taken.clients.remove(late);
            // It may have disconnected itself, or take nothing.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = send(&displaced.stream, refusal, flags);
            let _ = displaced.stream.shutdown(Shutdown::Both);
        }
        let number = taken.next;
        taken.next += 1;
        taken.clients.push(Client {
            number,
            stream,
            idle_since: Some(now),
        });
        Ok(Some(ClientPlace {
            number,
            places: self.clone(),
        }))
    }

    fn taken(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientPlace {
    /// The daemon works for the client from now on; or, if `is_idle`, waits for it.
    pub(super) fn set_idle(&self, is_idle: bool) {
        let mut taken = self.places.taken();
        let mut clients = taken.clients.iter_mut();
        if let Some(client) = clients.find(|client| client.number == self.number) {
            client.idle_since = is_idle.then(Instant::now);
        }
    }
}

impl Drop for ClientPlace {
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
        place: Option<ClientPlace>,
        its: UnixStream,
    }

    fn visit(places: &ClientPlaces, now: Instant) -> Visitor {
        let (ours, its) = UnixStream::pair().expect("two sockets");
        its.set_nonblocking(true).expect("a socket");
        let place = places.enter(&ours, now, b"no").expect("a descriptor");
        // The thread that serves it has the other descriptor.
        std::mem::forget(ours);
        Visitor { place, its }
    }

    fn is_refused(visitor: &mut Visitor) -> bool {
        let mut said = Vec::new();
        visitor.its.read_to_end(&mut said).is_ok() && said == b"no"
    }

    #[test]
    fn who_is_waited_for_for_too_long_makes_room() {
        let places = ClientPlaces::new(3);
        let begun = Instant::now();
        let mut visitors: Vec<Visitor> = (0..3).map(|_| visit(&places, begun)).collect();
        visitors[0].place.as_ref().expect("free").set_idle(false);
        assert!(visit(&places, begun).place.is_none(), "it has just come");
        let later = begun + PATIENCE;
        let fourth = visit(&places, later);
        assert!(fourth.place.is_some());
        let refused: Vec<bool> = visitors.iter_mut().map(is_refused).collect();
        assert_eq!(refused, [false, true, false]);
        visitors[2].place.as_ref().expect("free").set_idle(false);
        let fourth = fourth.place.expect("a place");
        fourth.set_idle(false);
        let much_later = later + 100 * PATIENCE;
        assert!(
            visit(&places, much_later).place.is_none(),
            "all are at work"
        );
        // The one that has lost its place gives none back.
        visitors[1].place = None;
        assert!(visit(&places, much_later).place.is_none());
        drop(fourth);
        assert!(visit(&places, much_later).place.is_some());
    }
}
