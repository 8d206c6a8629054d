//! Delays after failed authentications, by peer. Once a peer has failed, its attempts are queued with a delay between
//! them, so that guessing is slow and opening many connections does not make it faster. Logins without authentication
//! never wait. An initiator that has authenticated from a peer before has its own queue, in which only failures under
//! its name count, so nobody is locked out by someone else's guesses. Memory is bounded: the peer that failed longest
//! ago is forgotten first, and so is the initiator whose last success is oldest.
//!
//! A peer that has not failed yet may make as many attempts at once as it may have connections before login. All of
//! them count, and then it waits.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use engine::Instant;
use front::Peer;

/// The delay after the first failure; it doubles with each further one.
const DELAY_FIRST: Duration = Duration::from_millis(250);
const DELAY_MAX: Duration = Duration::from_secs(4);
/// A peer that has not failed for this long starts over.
const MEMORY: Duration = Duration::from_secs(300);
const PEERS_MAX: usize = 1024;
const KNOWN_MAX: usize = 1024;

/// Shared by all lanes; touched at login only.
#[derive(Default)]
pub(crate) struct Failures(Mutex<State>);

#[derive(Default)]
struct State {
    total: u64,
    /// The queues of initiators that have not authenticated.
    peers: HashMap<Peer, Line>,
    /// Initiators that have authenticated from a peer, each with its own queue.
    known: HashMap<(Peer, String), Known>,
    proofs: u64,
}

struct Known {
    /// The sequence number of its last success.
    proof: u64,
    line: Line,
}

/// A queue of attempts, which proceed one at a time.
#[derive(Clone, Default)]
struct Line {
    count: u32,
    last: Instant,
    /// When the next attempt may proceed.
    next: Instant,
}

impl Line {
    fn delay(&self) -> Duration {
        match self.count {
            0 => Duration::ZERO,
            count => DELAY_MAX.min(DELAY_FIRST * (1 << (count - 1).min(8))),
        }
    }

    fn note(&mut self, now: Instant) {
        if now - self.last > MEMORY {
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.last = now;
        self.next = self.next.max(now + self.delay());
    }

    fn wait(&mut self, now: Instant, max: Duration) -> Option<Duration> {
        if self.count == 0 || now - self.last > MEMORY {
            return Some(Duration::ZERO);
        }
        let turn = self.next.max(now);
        if turn - now > max {
            return None;
        }
        self.next = turn + self.delay();
        Some(turn - now)
    }
}

impl Failures {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failure under this name; returns the peer's number of failures.
    pub(crate) fn note(&self, peer: IpAddr, initiator: &str, now: Instant) -> u32 {
        let mut state = self.lock();
        state.total += 1;
        let peer = Peer::of(peer);
        if let Some(known) = state.known.get_mut(&(peer, initiator.to_owned())) {
            known.line.note(now);
        }
        if state.peers.len() >= PEERS_MAX && !state.peers.contains_key(&peer) {
            let oldest = state.peers.iter().min_by_key(|(_, line)| line.last);
            if let Some(oldest) = oldest.map(|(peer, _)| *peer) {
                state.peers.remove(&oldest);
            }
        }
        let line = state.peers.entry(peer).or_default();
        line.note(now);
        line.count
    }

    /// Appends an attempt under this name to its queue and returns how long it must wait; `None`, without joining the
    /// queue, if that is more than `max`.
    pub(crate) fn wait(
        &self,
        peer: IpAddr,
        initiator: &str,
        now: Instant,
        max: Duration,
    ) -> Option<Duration> {
        let state = &mut *self.lock();
        let peer = Peer::of(peer);
        let known = state.known.get_mut(&(peer, initiator.to_owned()));
        let line = known.map(|known| &mut known.line);
        match line.or_else(|| state.peers.get_mut(&peer)) {
            Some(line) => line.wait(now, max),
            None => Some(Duration::ZERO),
        }
    }

    /// The initiator has authenticated from this peer: it no longer waits, and the peer's failures are forgotten.
    pub(crate) fn forgive(&self, peer: IpAddr, initiator: &str) {
        let state = &mut *self.lock();
        let peer = Peer::of(peer);
        state.peers.remove(&peer);
        state.proofs += 1;
        let known = Known {
            proof: state.proofs,
            line: Line::default(),
        };
        state.known.insert((peer, initiator.to_owned()), known);
        if state.known.len() > KNOWN_MAX {
            let oldest = state.known.iter().min_by_key(|(_, known)| known.proof);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                state.known.remove(&oldest);
            }
        }
    }

    /// Failures of all peers so far.
    pub(crate) fn total(&self) -> u64 {
        self.lock().total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_ns(seconds * 1_000_000_000)
    }

    const PATIENCE: Duration = Duration::from_secs(15);

    /// The delay of an unknown initiator's attempt right after the last failure, without joining the queue.
    fn delay(failures: &Failures, peer: IpAddr, now: Instant) -> Duration {
        let before = failures.lock().peers.get(&Peer::of(peer)).cloned();
        let wait = failures.wait(peer, "stranger", now, PATIENCE);
        if let Some(line) = before {
            failures.lock().peers.insert(Peer::of(peer), line);
        }
        wait.expect("nobody else waits")
    }

    #[test]
    fn the_wait_grows_to_its_bound_for_that_peer_alone_and_passes() {
        let failures = Failures::default();
        let [bad, good]: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        assert_eq!(delay(&failures, bad, at(0)), Duration::ZERO);
        for (count, wait_ms) in [
            (1, 250),
            (2, 500),
            (3, 1000),
            (4, 2000),
            (5, 4000),
            (6, 4000),
        ] {
            assert_eq!(failures.note(bad, "stranger", at(10)), count);
            assert_eq!(
                delay(&failures, bad, at(10)),
                Duration::from_millis(wait_ms)
            );
        }
        for _ in 0..100 {
            failures.note(bad, "stranger", at(10));
        }
        assert_eq!(
            delay(&failures, bad, at(11)),
            DELAY_MAX - Duration::from_secs(1)
        );
        assert_eq!(
            delay(&failures, bad, at(14)),
            Duration::ZERO,
            "it has waited"
        );
        assert_eq!(delay(&failures, good, at(10)), Duration::ZERO);
        assert_eq!(
            failures.note(bad, "stranger", at(400)),
            1,
            "it starts afresh"
        );
        failures.forgive(bad, "owner");
        assert_eq!(delay(&failures, bad, at(400)), Duration::ZERO);
        assert_eq!(failures.total(), 107);
    }

    #[test]
    fn guesses_at_once_wait_one_after_the_other_and_not_for_ever() {
        let failures = Failures::default();
        let peer = "10.0.0.1".parse().unwrap();
        for _ in 0..9 {
            failures.note(peer, "stranger", at(10));
        }
        let waits: Vec<_> = (0..100)
            .filter_map(|_| failures.wait(peer, "stranger", at(10), PATIENCE))
            .map(|wait| wait.as_secs())
            .collect();
        assert_eq!(waits, [4, 8, 12], "the others are refused at once");
        // Later arrivals, too, proceed one per delay.
        assert_eq!(
            failures.wait(peer, "stranger", at(22), PATIENCE),
            Some(DELAY_MAX)
        );
    }

    #[test]
    fn who_has_proved_itself_waits_for_failures_under_its_own_name_only() {
        let failures = Failures::default();
        let [here, there]: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        failures.forgive(here, "db");
        for _ in 0..9 {
            failures.note(here, "stranger", at(10));
            failures.note(there, "stranger", at(10));
        }
        let wait = |peer, name| {
            failures
                .wait(peer, name, at(10), PATIENCE)
                .map(|w| w.as_millis())
        };
        for _ in 0..100 {
            assert_eq!(wait(here, "db"), Some(0));
        }
        assert_eq!(wait(there, "db"), Some(4000), "it has proved nothing there");
        assert_eq!(wait(here, "stranger"), Some(4000));
        // Someone else may use its name: that is also slow, and parallel attempts are no faster.
        failures.note(here, "db", at(10));
        let waits: Vec<_> = (0..3).map(|_| wait(here, "db")).collect();
        assert_eq!(waits, [Some(250), Some(500), Some(750)]);
        failures.forgive(here, "db");
        assert_eq!([wait(here, "db"), wait(here, "stranger")], [Some(0); 2]);
    }

    #[test]
    fn no_more_peers_are_kept_than_allowed() {
        let failures = Failures::default();
        for host in 0..2 * PEERS_MAX as u32 {
            failures.note(
                IpAddr::from((0x0a00_0000 + host).to_be_bytes()),
                "stranger",
                at(u64::from(host) / 100),
            );
            failures.forgive("192.0.2.1".parse().unwrap(), &host.to_string());
        }
        assert_eq!(failures.lock().peers.len(), PEERS_MAX);
        assert_eq!(failures.lock().known.len(), KNOWN_MAX);
        let last = IpAddr::from((0x0a00_0000 + 2 * PEERS_MAX as u32 - 1).to_be_bytes());
        assert!(delay(&failures, last, at(20)) > Duration::ZERO);
    }
}
