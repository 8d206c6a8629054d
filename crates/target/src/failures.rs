//! Failed logins by peer: counted, and each further login from there kept waiting for a while, one
//! after the other, so that guessing is slow and many connections at once do not make it faster.
//! The wait belongs to the peer alone, and an initiator that has logged in from there before does
//! not stand in the line of those who have not: nobody is locked out by another one's guesses. What
//! is kept is bounded: the peer that failed longest ago is forgotten first.
//!
//! A peer that has not failed yet may try as often at once as it may have connections before login;
//! all of these count, and then it waits.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use engine::Instant;

use crate::peer::Peer;

/// The wait after the first failure; it doubles with each further one.
const DELAY_FIRST: Duration = Duration::from_millis(250);
const DELAY_MAX: Duration = Duration::from_secs(4);
/// A peer that has not failed for so long starts afresh.
const MEMORY: Duration = Duration::from_secs(300);
const PEERS_MAX: usize = 1024;

/// Shared by all lanes; touched at login only.
#[derive(Default)]
pub(crate) struct Failures(Mutex<State>);

#[derive(Default)]
struct State {
    total: u64,
    peers: HashMap<Peer, Entry>,
}

#[derive(Clone, Default)]
struct Entry {
    count: u32,
    last: Instant,
    /// When the last login in each line may go on: of strangers, and of those known here.
    next: [Instant; 2],
}

impl Failures {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failure; gives the peer's number of them.
    pub(crate) fn note(&self, peer: IpAddr, now: Instant) -> u32 {
        let mut state = self.lock();
        state.total += 1;
        let peer = Peer::of(peer);
        if state.peers.len() >= PEERS_MAX && !state.peers.contains_key(&peer) {
            let oldest = state.peers.iter().min_by_key(|(_, entry)| entry.last);
            if let Some(oldest) = oldest.map(|(peer, _)| *peer) {
                state.peers.remove(&oldest);
            }
        }
        let entry = state.peers.entry(peer).or_default();
        if now - entry.last > MEMORY {
            entry.count = 0;
        }
        entry.count = entry.count.saturating_add(1);
        entry.last = now;
        entry.count
    }

    /// How long a login from there has to wait, as the last in its line; `None` when that is more
    /// than `max`, and it stands in no line.
    pub(crate) fn wait(
        &self,
        peer: IpAddr,
        known: bool,
        now: Instant,
        max: Duration,
    ) -> Option<Duration> {
        let mut state = self.lock();
        let Some(entry) = state.peers.get_mut(&Peer::of(peer)) else {
            return Some(Duration::ZERO);
        };
        if now - entry.last > MEMORY {
            return Some(Duration::ZERO);
        }
        let delay = DELAY_MAX.min(DELAY_FIRST * (1 << (entry.count - 1).min(8)));
        let next = &mut entry.next[usize::from(known)];
        let turn = (*next).max(now) + delay;
        if turn - now > max {
            return None;
        }
        *next = turn;
        Some(turn - now)
    }

    /// A login from there has succeeded.
    pub(crate) fn forgive(&self, peer: IpAddr) {
        self.lock().peers.remove(&Peer::of(peer));
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

    /// The wait of a stranger who alone stands in line.
    fn delay(failures: &Failures, peer: IpAddr, now: Instant) -> Duration {
        let wait = failures.wait(peer, false, now, PATIENCE);
        if let Some(entry) = failures.lock().peers.get_mut(&Peer::of(peer)) {
            entry.next = Default::default();
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
            assert_eq!(failures.note(bad, at(10)), count);
            assert_eq!(
                delay(&failures, bad, at(10)),
                Duration::from_millis(wait_ms)
            );
        }
        for _ in 0..100 {
            failures.note(bad, at(10));
        }
        assert_eq!(delay(&failures, bad, at(310)), DELAY_MAX);
        assert_eq!(delay(&failures, bad, at(311)), Duration::ZERO);
        assert_eq!(delay(&failures, good, at(10)), Duration::ZERO);
        assert_eq!(failures.note(bad, at(400)), 1, "it starts afresh");
        failures.forgive(bad);
        assert_eq!(delay(&failures, bad, at(400)), Duration::ZERO);
        assert_eq!(failures.total(), 107);
    }

    #[test]
    fn guesses_at_once_wait_one_after_the_other_and_not_for_ever() {
        let failures = Failures::default();
        let peer = "10.0.0.1".parse().unwrap();
        for _ in 0..9 {
            failures.note(peer, at(10));
        }
        let waits: Vec<_> = (0..100)
            .filter_map(|_| failures.wait(peer, false, at(10), PATIENCE))
            .map(|wait| wait.as_secs())
            .collect();
        assert_eq!(waits, [4, 8, 12], "the others are refused at once");
        // Who has logged in from there before waits for itself only.
        let known = failures.wait(peer, true, at(10), PATIENCE);
        assert_eq!(known, Some(DELAY_MAX));
    }

    #[test]
    fn no_more_peers_are_kept_than_allowed() {
        let failures = Failures::default();
        for host in 0..2 * PEERS_MAX as u32 {
            failures.note(
                IpAddr::from((0x0a00_0000 + host).to_be_bytes()),
                at(u64::from(host) / 100),
            );
        }
        assert_eq!(failures.lock().peers.len(), PEERS_MAX);
        let last = IpAddr::from((0x0a00_0000 + 2 * PEERS_MAX as u32 - 1).to_be_bytes());
        assert!(delay(&failures, last, at(21)) > Duration::ZERO);
    }
}
