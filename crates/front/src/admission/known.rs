//! The hosts that have logged in before.

use std::collections::{BTreeMap, HashMap};

use crate::peer::Peer;

/// The maximum number of hosts remembered; beyond it, the oldest login is forgotten.
const KNOWN_PEERS_MAX: usize = 1024;

/// Hosts that have logged in before.
#[derive(Default)]
pub(super) struct KnownPeers {
    peers: HashMap<Peer, u64>,
    by_age: BTreeMap<u64, Peer>,
    logins: u64,
}

impl KnownPeers {
    pub(super) fn knows(&self, peer: Peer) -> bool {
        self.peers.contains_key(&peer)
    }

    pub(super) fn add(&mut self, peer: Peer) {
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
