//! The configuration of a server: its targets and its limits.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use front::PlaceLimits;
use iscsi::Chap;

use crate::prefix::Prefix;

/// Everything a server serves.
#[derive(Clone)]
pub struct ServerConfig {
    /// The targets.
    pub targets: Vec<TargetSpec>,
    /// What the initiator of a discovery session must prove; `None` requires no authentication.
    pub discovery: Option<Arc<Chap>>,
    /// Whether to use CRC32C digests with initiators that list them before None.
    pub digests: bool,
    /// Bounds on what initiators can make the server do.
    pub limits: Limits,
}

impl ServerConfig {
    /// The addresses that it listens on, without duplicates.
    pub(crate) fn portals(&self) -> BTreeSet<SocketAddr> {
        let groups = self.targets.iter().flat_map(|target| &target.portal_groups);
        groups
            .flat_map(|group| group.portals.iter().copied())
            .collect()
    }
}

/// One target: a name, its portals, and its logical units or a redirection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetSpec {
    /// iSCSI name.
    pub name: String,
    /// Where it can be reached. Each group is a separate SCSI target port.
    pub portal_groups: Vec<PortalGroup>,
    /// Logical units by number.
    pub luns: BTreeMap<u32, LunSpec>,
    /// Who may log in.
    pub allow: Allow,
    /// The networks they may log in from; empty allows any.
    pub allow_from: Vec<Prefix>,
    /// What initiators must prove, and how the target proves itself; `None` requires no authentication.
    pub chap: Option<Arc<Chap>>,
    /// Where to redirect initiators that may log in; `None` serves them here.
    pub redirect: Option<Redirect>,
}

impl TargetSpec {
    /// Why this initiator may not log in from `peer`: which access list it is not in.
    pub(crate) fn refusal_of(&self, initiator_name: &str, peer: IpAddr) -> Option<&'static str> {
        let from = &self.allow_from;
        let may_come = from.is_empty() || from.iter().any(|prefix| prefix.contains(peer));
        match (self.allow.allows(initiator_name), may_come) {
            (true, true) => None,
            (false, true) => Some("its name is not in `allow`"),
            (true, false) => Some("its address is not in `allow_from`"),
            (false, false) => Some("its name is not in `allow`, nor its address in `allow_from`"),
        }
    }
}

/// Portals that share their sessions (RFC 7143 §4.4.4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortalGroup {
    /// TargetPortalGroupTag, not 0.
    pub tag: u16,
    /// Relative target port identifier, not 0, unique among the groups of a server. Persistent reservations are
    /// stored under it, so it must stay the same across restarts.
    pub relative_port: u16,
    /// The addresses to listen on; port 0 picks a free one.
    pub portals: Vec<SocketAddr>,
}

impl PortalGroup {
    /// The only portal group of a server.
    pub fn only(portals: Vec<SocketAddr>) -> PortalGroup {
        PortalGroup {
            tag: 1,
            relative_port: 1,
            portals,
        }
    }
}

/// The login response for a target that is served elsewhere (RFC 7143 §11.13.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redirect {
    /// The portal to log in at.
    pub to: SocketAddr,
    /// Whether the move is permanent, so that initiators should remember the new address.
    pub permanently: bool,
}

/// One logical unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LunSpec {
    /// The name of its disk among the [units](unit::Units).
    pub volume: String,
    /// Whether initiators may eject and reload the medium.
    pub removable: bool,
    /// Whether writes are refused here, even if the volume accepts them.
    pub read_only: bool,
}

/// Which initiators may log in to a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Allow {
    /// Every initiator.
    Everyone,
    /// Those with these names, in [folded](crate::folded_name) form.
    Names(BTreeSet<String>),
}

impl Allow {
    /// Whether the initiator called `name` may log in.
    pub fn allows(&self, name: &str) -> bool {
        match self {
            Allow::Everyone => true,
            Allow::Names(names) => names.contains(name),
        }
    }
}

/// Bounds on what initiators can make the server do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of sessions, over all lanes.
    pub connections_max: usize,
    /// How many of these may be reserved for initiators that had a session before; at most all.
    pub reserved: usize,
    /// Maximum number of connections not logged in, over all lanes; beyond it, one is displaced.
    pub logins_max: usize,
    /// How many of these one host may have.
    pub logins_per_peer_max: usize,
    /// Maximum number of commands that one session may have open.
    pub command_window: u16,
    /// Longest data segment accepted (MaxRecvDataSegmentLength), in bytes.
    pub data_segment_max_bytes: u32,
    /// Maximum length of negotiation text in a login, and in one later text exchange, in bytes.
    pub text_max_bytes: usize,
    /// Maximum time from the first byte to full feature phase.
    pub login_timeout: Duration,
    /// A session that has been silent for this long is pinged.
    pub ping_interval: Duration,
    /// The connection ends if a ping is unanswered, or a reply not taken, for this long.
    pub peer_timeout: Duration,
}

impl Limits {
    /// The places that they provide.
    pub(crate) fn places(&self) -> PlaceLimits {
        PlaceLimits {
            sessions: self.connections_max,
            reserved: self.reserved.min(self.connections_max),
            logins: self.logins_max,
            logins_per_peer: self.logins_per_peer_max,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 1024,
            reserved: 256,
            logins_max: 2048,
            logins_per_peer_max: 1024,
            command_window: 1024,
            data_segment_max_bytes: 256 << 10,
            text_max_bytes: 16 << 10,
            login_timeout: Duration::from_secs(15),
            ping_interval: Duration::from_secs(30),
            peer_timeout: Duration::from_secs(30),
        }
    }
}
