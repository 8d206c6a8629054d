//! A daemon described: what it serves, to whom, and what was asked of it. For people and for programs;
//! `docs/guide/show.md` has the shape in which programs get it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Of the descriptions' shape; a program that knows another one does not understand this one.
pub const VERSION: u32 = 1;

/// Everything that there is to see of a daemon, now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// [`VERSION`].
    pub version: u32,
    /// The configuration file that it serves.
    pub configuration: String,
    /// Its state directory.
    pub state: String,
    /// How many threads serve.
    pub lanes: usize,
    /// The volumes of the configuration, by name.
    pub volumes: BTreeMap<String, Volume>,
    /// The targets, by name.
    pub targets: BTreeMap<String, Target>,
    /// The sessions, in the order of their initiators' names.
    pub sessions: Vec<Session>,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Volume {
    /// What initiators know it by; absent when no target serves it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uuid: Option<String>,
    /// What it is made of.
    pub tree: Node,
    /// What initiators have made of it; absent when no target serves it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unit: Option<Unit>,
}

/// A node of a volume's tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its path, as `db/cache/stripe/0/file`: what counters go by.
    pub path: String,
    /// The volume that the configuration names in this place.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// What it is called in a configuration.
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
    /// The memory that it may fill.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_bytes: Option<u64>,
    /// Whether nobody can write to it.
    pub read_only: bool,
    /// Of a stripe: whether its children are still this daemon's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub claim: Option<Claim>,
    /// Of an `iscsi` volume: whether it has any session.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub session: Option<NodeSession>,
    /// Of an `iscsi` volume: each session that it is to have.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub sessions: Vec<PathSession>,
    /// Of a `cache` that was opened: what it answered from memory.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cache: Option<Cache>,
    /// What was asked of it since the start: `read`, `write`, `flush`, `discard`, those that there were.
    pub requests: BTreeMap<String, Requests>,
    /// What it is made of, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub children: Vec<Node>,
}

/// A stripe's claim on its children.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Whether it is held.
    pub held: bool,
    /// Why it is not.
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
    /// How often it was lost and is there again.
    pub relogins: u64,
    /// Why it was lost.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// One of the sessions of an `iscsi` volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathSession {
    /// `logged in`, `standby` (at a target port that may not be used now) or `none`.
    pub state: String,
    /// The portal.
    pub portal: String,
    /// Our end of the session that is or was there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub local: Option<String>,
    /// The lane on which it is.
    pub lane: usize,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// What a cache did since the start, and what it holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cache {
    /// Reads answered from memory at once.
    pub hits: u64,
    /// Reads that waited for blocks which were already on their way.
    pub late_hits: u64,
    /// Reads that had to ask what is below.
    pub misses: u64,
    /// What was read ahead.
    pub read_ahead_bytes: u64,
    /// Of this, what was read then.
    pub read_ahead_used_bytes: u64,
    /// Of this, what nobody will read any more.
    pub read_ahead_wasted_bytes: u64,
    /// In memory now.
    pub held_bytes: u64,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    /// Those that have ended.
    pub requests: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Those that nobody waited for to their end.
    pub unanswered: u64,
    /// Moved, or discarded.
    pub bytes: u64,
    /// How long they took.
    pub median_us: f64,
    /// Of a hundred, all but one were as fast.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// What initiators have made of a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    /// Who is registered for persistent reservations.
    pub registrations: Vec<Registration>,
    /// The persistent reservation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reservation: Option<Reservation>,
    /// The initiator port that holds it by RESERVE (6).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reserved_by: Option<String>,
    /// Whether it was ejected.
    pub ejected: bool,
    /// A sanitize: `running 43 %` or `failed`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sanitize: Option<String>,
}

/// A registration for persistent reservations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    /// The initiator port: name and ISID.
    pub initiator_port: String,
    /// Relative target port identifier.
    pub target_port: u16,
    /// The key, as `0x0000000000000001`.
    pub key: String,
}

/// A persistent reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reservation {
    /// Its type, in the words of SPC-4.
    pub r#type: String,
    /// The initiator port that holds it; absent when all registrants do.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub holder: Option<String>,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Its portal groups.
    pub portal_groups: Vec<PortalGroup>,
    /// Its logical units, by number.
    pub luns: BTreeMap<u32, Lun>,
    /// Who may log in; absent: everybody.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub allow: Option<Vec<String>>,
    /// Where from; none: anywhere.
    pub allow_from: Vec<String>,
    /// Whether initiators have to prove who they are.
    pub chap: bool,
    /// Where initiators are sent instead.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub redirect: Option<String>,
}

/// Portals that share their sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortalGroup {
    /// TargetPortalGroupTag.
    pub tag: u16,
    /// Relative target port identifier.
    pub target_port: u16,
    /// Addresses that it listens on.
    pub portals: Vec<String>,
}

/// A logical unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lun {
    /// Its volume.
    pub volume: String,
    /// Whether writes are refused here.
    pub read_only: bool,
    /// Whether initiators may eject it.
    pub removable: bool,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// The initiator's name.
    pub initiator: String,
    /// Its address.
    pub peer: String,
    /// The portal that it came in on.
    pub portal: String,
    /// Absent: it is for discovery.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<String>,
    /// Of the portal group; 0 for discovery.
    pub portal_group_tag: u16,
    /// The thread that serves it.
    pub lane: usize,
    /// Whether headers carry CRC32C.
    pub header_digest: bool,
    /// Whether data carry CRC32C.
    pub data_digest: bool,
    /// How long ago it began.
    pub age_s: f64,
    /// Commands that are open.
    pub outstanding: usize,
}

/// What was counted since the start: the difference of two of them is what happened in between.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Requests by the path of the node and their kind.
    pub nodes: BTreeMap<String, BTreeMap<String, Counted>>,
    /// What caches did, by the path of the node.
    #[serde(default)]
    pub caches: BTreeMap<String, Cache>,
    /// Commands by the volume and their kind: `read`, `write`, `other`.
    pub volumes: BTreeMap<String, BTreeMap<String, Counted>>,
    /// Commands by the initiator, of the sessions that it has now, and their kind.
    pub initiators: BTreeMap<String, BTreeMap<String, Counted>>,
}

/// Requests or commands of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Of requests: those that failed.
    pub errors: u64,
    /// Moved, or discarded.
    pub bytes: u64,
    /// How long they took: times in nanoseconds, ascending, each with how often it came.
    pub times_ns: Vec<(u64, u64)>,
    /// How long all of them together were in the daemon's hands, in nanoseconds: without the time that
    /// their data was waited for, and that their answers waited to be taken.
    pub busy_ns: u64,
}
