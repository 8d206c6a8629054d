//! Failed logins by peer: counted, and each further login from there kept waiting for a while. The
//! wait is bounded and belongs to the peer alone, so that guessing is slow and nobody is locked
//! out. What is kept is bounded too: the peer that failed longest ago is forgotten first.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use engine::Instant;

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
    peers: HashMap<IpAddr, Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    count: u32,
    last: Instant,
}

impl Failures {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failure; gives the peer's number of them.
    pub(crate) fn note(&self, peer: IpAddr, now: Instant) -> u32 {
        let mut state = self.lock();
        state.total += 1;
        let peer = who(peer);
        if state.peers.len() >= PEERS_MAX && !state.peers.contains_key(&peer) {
            let oldest = state.peers.iter().min_by_key(|(_, entry)| entry.last);
            if let Some(oldest) = oldest.map(|(peer, _)| *peer) {
                state.peers.remove(&oldest);
            }
        }
        let entry = state.peers.entry(peer).or_insert(Entry {
            count: 0,
            last: now,
        });
        if now - entry.last > MEMORY {
            entry.count = 0;
        }
        entry.count = entry.count.saturating_add(1);
        entry.last = now;
        entry.count
    }

    /// How long a login from there has to wait.
    pub(crate) fn delay(&self, peer: IpAddr, now: Instant) -> Duration {
        let entry = self.lock().peers.get(&who(peer)).copied();
        match entry.filter(|entry| now - entry.last <= MEMORY) {
            None => Duration::ZERO,
            Some(entry) => DELAY_MAX.min(DELAY_FIRST * (1 << (entry.count - 1).min(8))),
        }
    }

    /// A login from there has succeeded.
    pub(crate) fn forgive(&self, peer: IpAddr) {
        self.lock().peers.remove(&who(peer));
    }

    /// Failures of all peers so far.
    pub(crate) fn total(&self) -> u64 {
        self.lock().total
    }
}

/// A host: an IPv4 address, or the network of 64 bits that an IPv6 host chooses addresses from.
fn who(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_ns(seconds * 1_000_000_000)
    }

    #[test]
    fn the_wait_grows_to_its_bound_for_that_peer_alone_and_passes() {
        let failures = Failures::default();
        let [bad, good]: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        assert_eq!(failures.delay(bad, at(0)), Duration::ZERO);
        for (count, wait_ms) in [
            (1, 250),
            (2, 500),
            (3, 1000),
            (4, 2000),
            (5, 4000),
            (6, 4000),
        ] {
            assert_eq!(failures.note(bad, at(10)), count);
            assert_eq!(failures.delay(bad, at(10)), Duration::from_millis(wait_ms));
        }
        for _ in 0..100 {
            failures.note(bad, at(10));
        }
        assert_eq!(failures.delay(bad, at(310)), DELAY_MAX);
        assert_eq!(failures.delay(bad, at(311)), Duration::ZERO);
        assert_eq!(failures.delay(good, at(10)), Duration::ZERO);
        assert_eq!(failures.note(bad, at(400)), 1, "it starts afresh");
        failures.forgive(bad);
        assert_eq!(failures.delay(bad, at(400)), Duration::ZERO);
        assert_eq!(failures.total(), 107);
    }

    #[test]
    fn one_host_is_one_peer_whatever_address_it_takes() {
        let failures = Failures::default();
        for (first, second, same) in [
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
        ] {
            failures.note(first.parse().unwrap(), at(1));
            let slowed = failures.delay(second.parse().unwrap(), at(1)) > Duration::ZERO;
            assert_eq!(slowed, same, "{first} {second}");
        }
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
        assert!(failures.delay(last, at(21)) > Duration::ZERO);
    }
}
