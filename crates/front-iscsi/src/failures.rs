//! Delays after failed authentications, by peer. A proof is looked at when it arrives, whoever has failed before: it may be
//! the right initiator's, whose name and address others can use. Only the answer to a wrong one is held back, longer with
//! each further one of that peer, so that guessing is slow for whoever waits for answers; those who do not wait have to
//! connect again for each guess. Memory is bounded: the peer that failed longest ago is forgotten first.

use std::{
    collections::HashMap,
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

/// Shared by all lanes; touched at login only.
#[derive(Default)]
pub(crate) struct Failures(Mutex<FailureTable>);

#[derive(Default)]
struct FailureTable {
    total: u64,
    peers: HashMap<Peer, Recent>,
}

/// The recent failures of a peer.
#[derive(Clone, Copy, Default)]
struct Recent {
    count: u32,
    last: Instant,
}

/// A failure that was noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotedFailure {
    /// How many there were from this peer, with this one.
    pub(crate) count: u32,
    /// How long it has to wait for its answer.
    pub(crate) delay: Duration,
}

impl Failures {
    fn lock(&self) -> MutexGuard<'_, FailureTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failure.
    pub(crate) fn note(&self, peer: Peer, now: Instant) -> NotedFailure {
        let mut state = self.lock();
        state.total += 1;
        if state.peers.len() >= PEERS_MAX && !state.peers.contains_key(&peer) {
            let oldest = state.peers.iter().min_by_key(|(_, recent)| recent.last);
            if let Some(oldest) = oldest.map(|(peer, _)| *peer) {
                state.peers.remove(&oldest);
            }
        }
        let recent = state.peers.entry(peer).or_default();
        if now - recent.last > MEMORY {
            recent.count = 0;
        }
        recent.count = recent.count.saturating_add(1);
        recent.last = now;
        let doublings = (recent.count - 1).min(8);
        NotedFailure {
            count: recent.count,
            delay: DELAY_MAX.min(DELAY_FIRST * (1 << doublings)),
        }
    }

    /// An initiator has authenticated from this peer: its failures are forgotten.
    pub(crate) fn forgive(&self, peer: Peer) {
        self.lock().peers.remove(&peer);
    }

    /// Other secrets are asked for from now on: everybody starts over.
    pub(crate) fn reset(&self) {
        self.lock().peers.clear();
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

    fn host(number: u32) -> Peer {
        Peer::of((0x0a00_0000 + number).to_be_bytes().into())
    }

    #[test]
    fn answers_take_longer_with_each_failure_of_a_peer_up_to_a_bound() {
        let failures = Failures::default();
        let [bad, good] = [host(1), host(2)];
        for (count, delay_ms) in [
            (1, 250),
            (2, 500),
            (3, 1000),
            (4, 2000),
            (5, 4000),
            (6, 4000),
        ] {
            let delay = Duration::from_millis(delay_ms);
            assert_eq!(failures.note(bad, at(10)), NotedFailure { count, delay });
        }
        for _ in 0..1000 {
            assert_eq!(failures.note(bad, at(10)).delay, DELAY_MAX);
        }
        assert_eq!(failures.note(good, at(10)).count, 1);
        assert_eq!(failures.note(bad, at(400)).count, 1, "it starts afresh");
        assert_eq!(failures.note(bad, at(400)).count, 2);
        failures.forgive(bad);
        assert_eq!(failures.note(bad, at(400)).count, 1);
        failures.reset();
        assert_eq!(failures.note(bad, at(400)).count, 1);
        assert_eq!(failures.total(), 1011);
    }

    #[test]
    fn no_more_peers_are_kept_than_allowed() {
        let failures = Failures::default();
        let all = 2 * PEERS_MAX as u32;
        for number in 0..all {
            failures.note(host(number), at(u64::from(number) / 100));
        }
        assert_eq!(failures.lock().peers.len(), PEERS_MAX);
        assert_eq!(failures.note(host(all - 1), at(20)).count, 2);
    }
}
