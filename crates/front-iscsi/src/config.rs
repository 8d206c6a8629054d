//! What a server is to serve, and its limits.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use iscsi::Chap;

use crate::prefix::Prefix;

/// All that a server serves.
#[derive(Clone)]
pub struct ServerConfig {
    /// The targets.
    pub targets: Vec<TargetSpec>,
    /// What a discovery session has to prove; `None`: nothing.
    pub discovery: Option<Arc<Chap>>,
    /// Whether CRC32C digests are used with initiators that prefer them to none.
    pub digests: bool,
    /// Bounds on what initiators can make the server do.
    pub limits: Limits,
}

/// One target: a name, its portals, and its logical units or where they have gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetSpec {
    /// iSCSI name.
    pub name: String,
    /// Where it is reached. Each group is a SCSI target port of its own.
    pub portal_groups: Vec<PortalGroup>,
    /// Logical units by number.
    pub luns: BTreeMap<u32, LunSpec>,
    /// Who may log in.
    pub allow: Allow,
    /// Where from; empty: from anywhere.
    pub allow_from: Vec<Prefix>,
    /// What initiators have to prove, and how the target proves itself; `None`: nothing.
    pub chap: Option<Arc<Chap>>,
    /// Where initiators that may log in are sent instead; `None`: nowhere.
    pub redirect: Option<Redirect>,
}

/// Portals that share their sessions (RFC 7143 §4.4.4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortalGroup {
    /// TargetPortalGroupTag, not 0.
    pub tag: u16,
    /// Relative target port identifier, not 0, another one for each group of a server. Reservations are
    /// kept under it: it is to be the same after a restart.
    pub relative_port: u16,
    /// Addresses that it listens on; port 0 takes any free one.
    pub portals: Vec<SocketAddr>,
}

impl PortalGroup {
    /// The one group of a server that has no others.
    pub fn only(portals: Vec<SocketAddr>) -> PortalGroup {
        PortalGroup {
            tag: 1,
            relative_port: 1,
            portals,
        }
    }
}

/// The answer to a login at a target that is served elsewhere (RFC 7143 §11.13.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redirect {
    /// The portal to log in at.
    pub to: SocketAddr,
    /// For good: initiators should remember it.
    pub permanently: bool,
}

/// One logical unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LunSpec {
    /// The name of its disk among the [units](unit::Units).
    pub volume: String,
    /// Whether initiators may eject it and put it back.
    pub removable: bool,
    /// Whether writes are refused here, whatever the volume would take.
    pub read_only: bool,
}

/// Which initiators may log in to a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Allow {
    /// All.
    Everyone,
    /// Those with these names, [folded](crate::folded_name).
    Names(Vec<String>),
}

impl Allow {
    /// Whether the initiator called `name` may log in.
    pub fn allows(&self, name: &str) -> bool {
        match self {
            Allow::Everyone => true,
            Allow::Names(names) => names.iter().any(|allowed| allowed == name),
        }
    }
}

/// Bounds on what initiators can make the server do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions at a time, over all lanes.
    pub connections_max: usize,
    /// Of these, kept for initiators that had one before; at most all of them.
    pub reserved: usize,
    /// Connections beside them that have not logged in, over all lanes: the oldest makes room.
    pub logins_max: usize,
    /// Of these, from one host.
    pub logins_per_peer_max: usize,
    /// Commands that one session may have open.
    pub command_window: u16,
    /// Longest data segment that is taken (MaxRecvDataSegmentLength), in bytes.
    pub data_segment_max_bytes: u32,
    /// Negotiation text in a login, and in one text exchange afterwards, in bytes.
    pub text_max_bytes: usize,
    /// From the first byte to the full feature phase.
    pub login_timeout: Duration,
    /// A session that is silent for so long is pinged.
    pub ping_interval: Duration,
    /// A ping not answered, or a reply not taken, for so long ends the connection.
    pub peer_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 1024,
            reserved: 256,
            logins_max: 512,
            logins_per_peer_max: 64,
            command_window: 1024,
            data_segment_max_bytes: 256 << 10,
            text_max_bytes: 64 << 10,
            login_timeout: Duration::from_secs(15),
            ping_interval: Duration::from_secs(30),
            peer_timeout: Duration::from_secs(30),
        }
    }
}
