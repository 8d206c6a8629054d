//! The configuration of a disk's sessions: where the disk is, who we are to its target, and the time limits.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use engine::{
    Duration,
    net::{ConnectOptions, LocalEnd, SocketBuffers},
    store,
};
use iscsi::Isid;
use serde::Deserialize;

use super::{isids::Lease, ping_timeout::PingTimeout, secrets::Secrets};

/// Where the disk is, who we are, and how long to wait.
#[derive(Clone, Debug)]
pub struct IscsiConfig {
    /// The portal.
    pub address: SocketAddr,
    /// The target's iSCSI name.
    pub target_name: String,
    /// The logical unit number.
    pub lun: u16,
    /// The initiator name we log in with.
    pub initiator_name: String,
    /// Distinguishes this session from the initiator's others with the same target: [`next_isid`].
    pub isid: Isid,
    /// The other sessions with the disk, and how they are used together.
    pub multipath: Multipath,
    /// CHAP, to authenticate us and optionally the target; `None`: no authentication.
    pub chap: Option<Secrets>,
    /// Requests CRC32C header digests.
    pub header_digest: bool,
    /// Requests CRC32C data digests.
    pub data_digest: bool,
    /// Asks the target to report the stage times of each command, for a [watch](crate::layers).
    pub stage_times: bool,
    /// Limit for connecting and logging in.
    pub connect_timeout: Duration,
    /// Limit for the answer to a command, after which the session counts as lost.
    pub request_timeout: Duration,
    /// How long requests wait for a lost session to return, or for a target that temporarily refuses, before they
    /// fail.
    pub reconnect_timeout: Duration,
}

/// The sessions with a disk beyond the first, and settings common to all of them.
#[derive(Clone, Debug, Default)]
pub struct Multipath {
    /// The local source of the first session.
    pub source: Option<LocalEnd>,
    /// The other sessions.
    pub more: Vec<PathConfig>,
    /// The ISIDs of sessions that may be added while the disk is open.
    pub later_isids: Vec<Isid>,
    /// How many of these, counted from the end, only add speed: the disk is used without those that the target
    /// refuses.
    pub spare: usize,
    /// How a command chooses among the usable sessions.
    pub policy: Policy,
    /// The TCP congestion control algorithm, by its kernel name.
    pub congestion: Option<String>,
    /// How long sent data may stay unacknowledged (TCP_USER_TIMEOUT).
    pub user_timeout: Option<Duration>,
    /// How long a target may be silent before its session counts as lost.
    pub ping_timeout: PingTimeout,
    /// The sizes of the connections' buffers in the kernel.
    pub buffers: SocketBuffers,
    /// Keeps the ISIDs reserved while it lives.
    pub lease: Option<Arc<Lease>>,
}

/// How long the sessions of a disk wait, and with which secrets they log in. It may change while the disk is open.
#[derive(Clone, Debug)]
pub struct LoginTerms {
    /// As [`IscsiConfig::chap`].
    pub chap: Option<Secrets>,
    /// As [`IscsiConfig::connect_timeout`].
    pub connect_timeout: Duration,
    /// As [`IscsiConfig::request_timeout`].
    pub request_timeout: Duration,
    /// As [`IscsiConfig::reconnect_timeout`].
    pub reconnect_timeout: Duration,
    /// The user's setting of [`Multipath::ping_timeout`].
    pub ping_timeout: Option<Duration>,
}

/// One session with a disk.
#[derive(Clone, Debug)]
pub struct PathConfig {
    /// The portal.
    pub address: SocketAddr,
    /// The local source address or interface.
    pub source: Option<LocalEnd>,
    /// As [`IscsiConfig::isid`]: each session has its own and keeps it across losses.
    pub isid: Isid,
}

/// How a session's connection reaches the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The portal.
    pub address: SocketAddr,
    /// The local source address or interface.
    pub source: Option<LocalEnd>,
}

/// The sessions that a disk should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// The way of each, at least one.
    pub ways: Vec<Transport>,
    /// As [`Multipath::spare`].
    pub spare: usize,
}

impl Sessions {
    /// Whether the session with this number only adds speed.
    pub(super) fn is_spare(&self, number: usize) -> bool {
        number > 0 && number + self.spare >= self.ways.len()
    }

    /// Whether there are two different ways or more.
    pub(super) fn have_another_way(&self) -> bool {
        self.ways.iter().any(|way| *way != self.ways[0])
    }
}

/// How a command chooses among several paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Each in turn.
    RoundRobin,
    /// The one with the fewest outstanding commands.
    #[default]
    LeastOutstanding,
    /// The one with the lowest recent latency, weighted by its outstanding commands.
    LowestLatency,
}

impl IscsiConfig {
    /// All sessions, the first one first.
    pub fn sessions(&self) -> Sessions {
        let first = Transport {
            address: self.address,
            source: self.multipath.source.clone(),
        };
        let more = self.multipath.more.iter().map(|path| Transport {
            address: path.address,
            source: path.source.clone(),
        });
        Sessions {
            ways: std::iter::once(first).chain(more).collect(),
            spare: self.multipath.spare,
        }
    }

    /// From now on these are its terms. Those of open sessions that limit them change, too.
    pub(super) fn adopt(&mut self, terms: LoginTerms) {
        let LoginTerms {
            chap,
            connect_timeout,
            request_timeout,
            reconnect_timeout,
            ping_timeout,
        } = terms;
        let limits = &self.multipath.ping_timeout;
        limits.set(ping_timeout, request_timeout);
        self.chap = chap;
        self.connect_timeout = connect_timeout;
        self.request_timeout = request_timeout;
        self.reconnect_timeout = reconnect_timeout;
    }

    /// From now on these are its sessions, each with an ISID of its own; the first keeps the one it has.
    pub(super) fn adopt_sessions(&mut self, sessions: &Sessions) {
        let isids: Vec<_> = self.isids().collect();
        let paths = sessions
            .ways
            .iter()
            .zip(&isids)
            .map(|(way, isid)| PathConfig {
                address: way.address,
                source: way.source.clone(),
                isid: *isid,
            });
        let mut paths = paths.collect::<Vec<_>>().into_iter();
        let Some(first) = paths.next() else { return };
        self.address = first.address;
        self.multipath.source = first.source;
        self.multipath.more = paths.collect();
        self.multipath.later_isids = isids.into_iter().skip(sessions.ways.len()).collect();
        self.multipath.spare = sessions.spare;
    }

    /// The same sessions from other initiator ports: `port` gives the ISID of each by its number. Who opens a disk anew
    /// behind a fence gives ports that none of its earlier sessions has had, so that nothing of these is taken for theirs.
    #[must_use]
    pub fn from_ports(mut self, port: impl Fn(u16) -> Isid) -> IscsiConfig {
        let more = self.multipath.more.iter_mut().map(|path| &mut path.isid);
        let later = self.multipath.later_isids.iter_mut();
        let all = std::iter::once(&mut self.isid).chain(more).chain(later);
        for (isid, number) in all.zip(0..) {
            *isid = port(number);
        }
        self.multipath.lease = None;
        self
    }

    /// The ISIDs of all sessions, and then those of sessions that may be added.
    pub(super) fn isids(&self) -> impl Iterator<Item = Isid> {
        let more = self.multipath.more.iter().map(|path| path.isid);
        let later = self.multipath.later_isids.iter().copied();
        std::iter::once(self.isid).chain(more).chain(later)
    }

    /// The same with the first session under the ISID with this index among [`IscsiConfig::isids`], which is that of no
    /// other session.
    pub(super) fn with_first_isid(mut self, index: usize) -> IscsiConfig {
        let later = index.checked_sub(1 + self.multipath.more.len());
        if let Some(isid) = later.and_then(|at| self.multipath.later_isids.get_mut(at)) {
            std::mem::swap(&mut self.isid, isid);
        }
        self
    }

    /// The connection options for a path.
    pub(super) fn connect_options(&self, path: &PathConfig) -> ConnectOptions {
        ConnectOptions {
            source: path.source.clone(),
            congestion: self.multipath.congestion.clone(),
            user_timeout: self.multipath.user_timeout,
            buffers: self.multipath.buffers,
            // If this process dies, the kernel must not deliver its writes later: over another path its successor may
            // have written the same blocks by then.
            resets_when_closed: true,
        }
    }
}

/// An ISID for a session without a volume, such as discovery: unique within this process and among processes running
/// now.
pub fn next_isid() -> Isid {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Isid::random([a, b, c], NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The content of a small file, if one is there and can be read.
fn text_of(path: &str) -> String {
    let bytes = store::read(Path::new(path)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// This host's initiator name: open-iscsi's if configured, otherwise one derived from the host name.
pub(super) fn own_name() -> String {
    let configured = text_of("/etc/iscsi/initiatorname.iscsi");
    let mut lines = configured.lines().map(str::trim);
    if let Some(name) = lines.find_map(|line| line.strip_prefix("InitiatorName=")) {
        return name.trim().to_owned();
    }
    let host = text_of("/proc/sys/kernel/hostname");
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
