//! Where a disk is, who we are to its target, and how long we wait for it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use engine::{
    Duration,
    net::{ConnectOptions, Source},
};
use iscsi::{Chap, Isid};
use serde::Deserialize;

/// Where the disk is and how long to wait for it.
#[derive(Clone, Debug)]
pub struct IscsiConfig {
    /// The portal.
    pub address: SocketAddr,
    /// The target's iSCSI name.
    pub target_name: String,
    /// The logical unit number.
    pub lun: u16,
    /// The name that we log in with.
    pub initiator_name: String,
    /// Tells sessions of this initiator with the same target apart: [`next_isid`].
    pub isid: Isid,
    /// The other sessions with the disk, and how they are used together.
    pub multipath: Multipath,
    /// How we prove who we are, and the target has to; `None`: not at all.
    pub chap: Option<Arc<Chap>>,
    /// Asks for CRC32C over the headers.
    pub header_digest: bool,
    /// Asks for CRC32C over the data.
    pub data_digest: bool,
    /// Asks the target to tell where the time of each command goes, for whoever [watches](crate::layers).
    pub stage_times: bool,
    /// For a connection and its login.
    pub connect_timeout: Duration,
    /// For the answer to a command, before the session counts as lost.
    pub request_timeout: Duration,
    /// For a lost session to come back and for a target that refuses for now to do what it is
    /// asked, before requests fail.
    pub reconnect_timeout: Duration,
}

/// The sessions with a disk beside the first, and how all of them are made and used.
#[derive(Clone, Debug, Default)]
pub struct Multipath {
    /// Where the first session leaves this machine.
    pub source: Option<Source>,
    /// The others.
    pub more: Vec<PathConfig>,
    /// How many of these, the last ones, are there for speed alone: the disk is used without those that
    /// the target refuses.
    pub spare: usize,
    /// Which of those that can be used a command takes.
    pub policy: Policy,
    /// The congestion control of their connections, by the kernel's name.
    pub congestion: Option<String>,
    /// For how long what was sent may go without an acknowledgement (TCP_USER_TIMEOUT).
    pub user_timeout: Option<Duration>,
    /// Keeps the ISIDs from being given out again.
    pub lease: Option<Arc<()>>,
}

/// One session with a disk.
#[derive(Clone, Debug)]
pub struct PathConfig {
    /// The portal.
    pub address: SocketAddr,
    /// Where it leaves this machine.
    pub source: Option<Source>,
    /// As [`IscsiConfig::isid`]: each session has its own, which it keeps when it is lost.
    pub isid: Isid,
}

/// Which of several paths a command takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// One after the other.
    RoundRobin,
    /// The one with the fewest commands that are not answered.
    #[default]
    LeastOutstanding,
    /// The one that has answered fastest of late, for as many as are not answered there.
    LowestLatency,
}

impl IscsiConfig {
    /// Its sessions, the first one first.
    pub(super) fn paths(&self) -> Vec<PathConfig> {
        let first = PathConfig {
            address: self.address,
            source: self.multipath.source.clone(),
            isid: self.isid,
        };
        let more = self.multipath.more.iter().cloned();
        std::iter::once(first).chain(more).collect()
    }

    /// How the connection of a path is made.
    pub(super) fn connect_options(&self, path: &PathConfig) -> ConnectOptions {
        ConnectOptions {
            source: path.source.clone(),
            congestion: self.multipath.congestion.clone(),
            user_timeout: self.multipath.user_timeout,
        }
    }
}

/// An ISID for a session that no volume has, as for discovery: no other one of this process, nor of another one that
/// runs now, has the same.
pub fn next_isid() -> Isid {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Isid::random([a, b, c], NEXT.fetch_add(1, Ordering::Relaxed))
}

/// This host's initiator name: the one that open-iscsi uses if there is one, else one made from
/// the host's own name.
pub(super) fn own_name() -> String {
    let configured = std::fs::read_to_string("/etc/iscsi/initiatorname.iscsi").unwrap_or_default();
    let mut lines = configured.lines().map(str::trim);
    if let Some(name) = lines.find_map(|line| line.strip_prefix("InitiatorName=")) {
        return name.trim().to_owned();
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host
        .trim()
        .to_lowercase()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' || c == '.' {
                c
            } else {
                '-'
            }
        })
        .collect();
    format!(
        "iqn.2026-11.io.sanstone:{}",
        if host.is_empty() { "host" } else { &host }
    )
}
