//! The description of a running daemon or an attached volume: what it serves, to whom, and its counters. For people
//! and for programs; `docs/guide/show.md` documents the format for programs.

use std::{collections::BTreeMap, ops::Not};

pub use front::report::{PortalGroup, ReportedLun, ReportedSession, ReportedTarget};
use serde::{Deserialize, Serialize};

/// Version of the format; a program written for another version cannot interpret this one.
pub const VERSION: u32 = 1;

/// Everything there is to see of a daemon or of an attached volume now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// [`VERSION`].
    pub version: u32,
    /// The release of Sanstone.
    #[serde(default)]
    pub product_version: String,
    /// The process.
    #[serde(default)]
    pub pid: u32,
    /// When it started, in seconds since 1970.
    #[serde(default)]
    pub started_unix_s: u64,
    /// The configuration file that it was started with.
    pub configuration: String,
    /// Its state directory.
    pub state: String,
    /// Why no more can be kept there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state_error: Option<String>,
    /// The number of serving threads.
    pub lanes: usize,
    /// The volumes of the configuration by name; where one is attached, that one alone.
    pub volumes: BTreeMap<String, Volume>,
    /// The targets, by name.
    pub targets: BTreeMap<String, ReportedTarget>,
    /// Where its volume is attached; absent for a daemon, which has targets.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attached: Option<Attached>,
    /// The sessions, in the order of their initiators' names.
    pub sessions: Vec<ReportedSession>,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Volume {
    /// Its identity for initiators; absent when it is not served.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uuid: Option<String>,
    /// Its NAA name in hexadecimal digits, which systems know a disk by: `/dev/disk/by-id/wwn-0x…`. Absent as the identity.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub naa: Option<String>,
    /// Its serial number; absent as the identity.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub serial: Option<String>,
    /// The tree of nodes it is made of.
    pub tree: Node,
    /// The SCSI state set by initiators; absent when it is not served.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unit: Option<UnitDescription>,
    /// Commands of all fronts since the start: `read`, `write`, `other`, as far as there were any.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub commands: BTreeMap<String, Commands>,
}

/// Commands of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Commands {
    /// Completed commands.
    pub commands: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// The sum of the times that they spent in each stage: `transfer`, `queue`, `volume`, `reply`, and in `total`.
    pub sum_us: BTreeMap<String, f64>,
}

/// A node of a volume's tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its path, such as `db/cache/stripe/0/file`: the key of its counters.
    pub path: String,
    /// The volume that the configuration names at this place.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// The kind, as written in a configuration.
    pub kind: String,
    /// A path or a URL.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub place: Option<String>,
    /// Whether it is open.
    pub open: bool,
    /// Its length.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size_bytes: Option<u64>,
    /// The length of a logical block.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub block_size_bytes: Option<u32>,
    /// The most memory that it may use.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_bytes: Option<u64>,
    /// For a file: the space that it takes, and what its file system has left.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub space: Option<Space>,
    /// For an open file: whether its path leads to another one or to none, so that what is served is lost at the end.
    #[serde(skip_serializing_if = "Not::not", default)]
    pub lost_path: bool,
    /// Whether it is read-only.
    pub read_only: bool,
    /// For a stripe: whether this daemon still owns its children.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub claim: Option<ClaimDescription>,
    /// For an `iscsi` volume: its session state.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub session: Option<NodeSession>,
    /// For an `iscsi` volume: each session that it should have.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub sessions: Vec<PathSession>,
    /// How its requests fail, until one succeeds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<Failure>,
    /// For an open `cache`: its counters.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cache: Option<CacheDescription>,
    /// For an open `mirror`: its copies, and how far they are.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mirror: Option<MirrorDescription>,
    /// Requests since the start: `read`, `write`, `flush`, `discard`, as far as there were any.
    pub requests: BTreeMap<String, Requests>,
    /// The nodes it is made of, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub children: Vec<Node>,
}

/// The space of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// How much of it is allocated.
    pub allocated_bytes: u64,
    /// How much its file system has left for it.
    pub free_bytes: u64,
}

/// A stripe's claim on its children.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimDescription {
    /// Whether it is held.
    pub held: bool,
    /// Why not, if it is not held.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// The session of an `iscsi` volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSession {
    /// `logged in`, `lost` or `none`.
    pub state: String,
    /// The portal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<String>,
    /// How often it was lost and re-established.
    pub relogins: u64,
    /// Whether the disk is claimed, and its target has no persistent reservations to keep other owners out.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub lacks_fence: bool,
    /// Why it was lost.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// One of the sessions of an `iscsi` volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathSession {
    /// `logged in`, `standby` (the target port is not in active use) or `none`.
    pub state: String,
    /// The portal.
    pub portal: String,
    /// The local address of the current or last session.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub local: Option<String>,
    /// The lane that runs it.
    pub lane: usize,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// A cache's counters since the start, and the data it holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheDescription {
    /// Reads answered from memory at once.
    pub hits: u64,
    /// Reads that waited for blocks already being fetched.
    pub late_hits: u64,
    /// Reads that had to be passed down.
    pub misses: u64,
    /// Bytes read ahead.
    pub read_ahead_bytes: u64,
    /// Of those, bytes that were then read.
    pub read_ahead_used_bytes: u64,
    /// Of those, bytes dropped without having been read.
    pub read_ahead_wasted_bytes: u64,
    /// Bytes in memory now.
    pub held_bytes: u64,
}

/// What a mirror says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MirrorDescription {
    /// Whether every copy holds everything that was acknowledged.
    pub in_sync: bool,
    /// The epoch of its owner: how often it was claimed.
    pub epoch: u64,
    /// Its copies, in the order in which it was created.
    pub copies: Vec<MirrorCopy>,
    /// Bytes in regions that were written recently.
    pub marked_bytes: u64,
    /// Bytes that may differ, and are being made equal before they are read.
    pub in_doubt_bytes: u64,
    /// Bytes that a copy which is back has still to get.
    pub left_to_fill_bytes: u64,
    /// Why its register does not change, for which a copy that leaves or returns waits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub register_error: Option<String>,
    /// Why it serves nothing any more.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// One copy of a mirror.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MirrorCopy {
    /// Its place in the configuration, and what it is.
    pub name: String,
    /// `in sync`, `in trouble` (it has failed, and leaves if it can, or does not answer at the moment), `being filled`,
    /// `being fenced` or `out`.
    pub state: String,
    /// Why it is not in sync.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    /// Completed requests.
    pub requests: u64,
    /// Of those, with an error.
    pub errors: u64,
    /// Requests abandoned before their end.
    pub unanswered: u64,
    /// Requests that are in progress now.
    #[serde(default)]
    pub pending: u64,
    /// For how long the oldest of these has been in progress, at a resolution of a second; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub oldest_s: Option<f64>,
    /// Bytes moved or discarded.
    pub bytes: u64,
    /// Median duration.
    pub median_us: f64,
    /// 99th percentile of the duration.
    pub p99_us: f64,
    /// Longest duration.
    pub max_us: f64,
    /// The sum of all durations.
    #[serde(default)]
    pub sum_us: f64,
}

/// The SCSI state of a disk that initiators have set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnitDescription {
    /// Registrants for persistent reservations.
    pub registrations: Vec<RegistrationDescription>,
    /// The persistent reservation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reservation: Option<ReservationDescription>,
    /// The initiator port that holds it by RESERVE(6).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reserved_by: Option<String>,
    /// Whether an initiator has write-protected the disk for all (SWP in the control mode page).
    #[serde(default)]
    pub write_protected: bool,
    /// Whether the medium has been ejected.
    pub ejected: bool,
    /// Why every command fails, as it cannot be found out whom the disk lets in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// A sanitize: `running 43 %` or `failed`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sanitize: Option<String>,
}

/// A registration for persistent reservations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegistrationDescription {
    /// The initiator port: name and ISID.
    pub initiator_port: String,
    /// Relative target port identifier.
    pub target_port: u16,
    /// The key, as `0x0000000000000001`.
    pub key: String,
}

/// A persistent reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReservationDescription {
    /// Its type, as SPC-4 names it.
    pub r#type: String,
    /// The initiator port that holds it; absent when all registrants do.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub holder: Option<String>,
}

/// How the requests of a node fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What the last of these was, such as `write`.
    pub kind: String,
    /// Its error.
    pub error: String,
    /// Whether writes that were acknowledged may be lost.
    pub may_have_lost: bool,
    /// Whether it has none of what it is asked for.
    pub is_gone: bool,
}

/// A volume that is attached to this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attached {
    /// Its name.
    pub volume: String,
    /// What shows it: `fuse` or `nbd`.
    pub front: String,
    /// The path of the file, or the address at which NBD clients are served.
    pub place: String,
    /// Whether writes are refused here.
    pub read_only: bool,
    /// Where its file system is mounted, if it is and has become read-only by itself.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub broken_mount: Option<String>,
    /// Whether it is to end, and waits until nobody uses it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub is_stopping: bool,
}

/// Counters since the start; subtract two snapshots to see what happened in between.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CounterSnapshot {
    /// Requests by node path and kind.
    pub nodes: BTreeMap<String, BTreeMap<String, RequestCounts>>,
    /// Cache counters by node path.
    #[serde(default)]
    pub caches: BTreeMap<String, CacheDescription>,
    /// Commands by volume and kind: `read`, `write`, `other`.
    pub volumes: BTreeMap<String, BTreeMap<String, RequestCounts>>,
    /// Commands of current sessions, by initiator and kind.
    pub initiators: BTreeMap<String, BTreeMap<String, RequestCounts>>,
    /// By volume, what is in progress in it now.
    #[serde(default)]
    pub volumes_in_progress: BTreeMap<String, InProgress>,
    /// By initiator, what it waits for now.
    #[serde(default)]
    pub initiators_in_progress: BTreeMap<String, InProgress>,
}

/// Commands that have not ended yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InProgress {
    /// How many.
    pub pending: u64,
    /// For how long the oldest of them has been in progress, at a resolution of a second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub oldest_s: Option<f64>,
}

/// Requests or commands of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// For requests: how many failed.
    pub errors: u64,
    /// For requests: how many are in progress now.
    #[serde(default)]
    pub pending: u64,
    /// For requests: for how long the oldest of these has been in progress, at a resolution of a second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub oldest_s: Option<f64>,
    /// Bytes moved or discarded.
    pub bytes: u64,
    /// Durations: times in nanoseconds, ascending, each with its count.
    pub times_ns: Vec<(u64, u64)>,
    /// Total time in the daemon's hands, in nanoseconds: excludes waiting for data from the initiator,
    /// and for the network to accept the answers.
    pub busy_ns: u64,
}
