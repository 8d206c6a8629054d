//! A session as an administrator looks at it.

use std::net::SocketAddr;

use engine::Duration;

/// A session, now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionReport {
    /// InitiatorName.
    pub initiator: String,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// The portal that it came in on.
    pub portal: SocketAddr,
    /// TargetName; `None`: it is for discovery.
    pub target: Option<String>,
    /// Of the target's portal group; 0 for discovery.
    pub portal_group_tag: u16,
    /// The lane that serves it.
    pub lane: usize,
    /// Whether PDU headers carry CRC32C.
    pub header_digest: bool,
    /// Whether data segments carry CRC32C.
    pub data_digest: bool,
    /// How long ago it began.
    pub age: Duration,
    /// Commands and functions that are open.
    pub outstanding: usize,
}
