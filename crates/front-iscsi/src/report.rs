//! A snapshot of a session for administrators.

use std::{net::SocketAddr, sync::Arc};

use engine::Duration;
use iscsi::{Chap, ChapAccount, Taken};

/// A snapshot of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionReport {
    /// InitiatorName.
    pub initiator: String,
    /// The initiator's address.
    pub peer: SocketAddr,
    /// The portal it connected to.
    pub portal: SocketAddr,
    /// TargetName; `None` for a discovery session.
    pub target: Option<String>,
    /// The tag of the target's portal group; 0 for a discovery session.
    pub portal_group_tag: u16,
    /// The lane that serves it.
    pub lane: usize,
    /// Whether PDU headers carry CRC32C.
    pub header_digest: bool,
    /// Whether data segments carry CRC32C.
    pub data_digest: bool,
    /// How long ago it began.
    pub age: Duration,
    /// Open commands and task management functions.
    pub outstanding: usize,
    /// The account with which its initiator has authenticated.
    pub account: Option<ChapAccount>,
    /// What its target asks for now, which may be another than at its login.
    pub chap: Option<Arc<Chap>>,
}

impl SessionReport {
    /// How its target would take its account now. What asks for none takes all.
    pub fn secret(&self) -> Taken {
        let taken = |chap: &Arc<Chap>| chap.takes(self.account.as_ref());
        self.chap.as_ref().map_or(Taken::Current, taken)
    }
}
